"""What a user without root may send to the program that runs as root: what the tuner sends, and nothing beside it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from autotuner.deploy.lease import Lease
from autotuner.deploy.production import HostBefore
from autotuner.deploy.snapshot import snapshot_of
from autotuner.discover.units import read_units
from autotuner.engines.sglang.engine import SglangEngine
from autotuner.services.onhost import permit, systemctl, units
from tests import builders as b

SHOWN = Path(__file__).parents[1] / "data" / "systemd" / "show-production.txt"
FOLDER = "/var/lib/autotuner/sessions/30000"


class Side:
    """As much of the host's programs as a snapshot names."""

    state = "/var/lib/autotuner"


def unit(name: str, role: str) -> dict[str, Any]:
    found = {key: value for key, value in systemctl.parse_show(SHOWN.read_text()).items() if key in units.PROPERTIES}
    told = {"name": name, "role": role, "active": True, "argv": ["/usr/bin/python3"], "limits": {"LimitNOFILE": "1024:524288"}}
    told |= {"ExecStart": "", "EnvironmentFiles": "", "env_sha256": "", "sha256": "0" * 64}
    return found | told | ({"listens": True, "answered": True, "models": ["kimi"]} if role == "production" else {})


def sent(*found: dict[str, Any]) -> dict[str, Any]:
    """The snapshot that the tuner sends for these units, as it arrives."""
    told = read_units({"production": "prod.service", "units": list(found)})
    recorded = dict(told.production.details) if told.production else None
    lease = Lease(token="t0-k3n", paths=("/var/tmp/autotuner-lease/port-30000.json",), holder={"machine": "m", "pid": 7, "started": 1})  # noqa: S106, S108
    before = HostBefore(production=None, recorded=recorded, units=told.all)
    host = b.host(service={"manager": "systemd", "production": {"unit": "prod"}})
    return dict(json.loads(json.dumps(snapshot_of(host, SglangEngine(), Side(), lease, before, ttl_s=60.0))))


@pytest.fixture
def snapshot() -> dict[str, Any]:
    return sent(unit("prod.service", "production"), unit("other.service", "conflict"))


@pytest.fixture(autouse=True)
def granted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permit, "allowed", lambda _: {"prod.service", "other.service"})


def refused(snapshot: object, command: str = "arm", session: str = FOLDER) -> str | None:
    return permit.refusal("ada", command, {"session": session, "snapshot": snapshot})


def test_what_the_tuner_sends_is_taken(snapshot: dict[str, Any]) -> None:
    assert snapshot["production"] == snapshot["units"][0]
    for command in ("arm", "verify", "request-restore"):
        assert refused(snapshot, command) is None
    assert refused(sent(unit("other.service", "conflict"))) is None
    assert refused(sent()) is None


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("manager", "process"),
        ("state", "/home/ada"),
        ("leases", ["/etc/passwd"]),
        ("leases", ["/var/tmp/autotuner-lease/../x.json"]),  # noqa: S108
        ("token", "a b"),
        ("token", None),
        ("port", "30000"),
        ("port", 30000.0),
        ("address", "127.0.0.1/x?"),
        ("ready_path", "http://elsewhere/"),
        ("ready_timeout_s", math.nan),
        ("ready_timeout_s", math.inf),
        ("stop_timeout_s", -1),
        ("ttl_s", True),
        ("production", None),
        ("production", {"argv": ["/bin/sh"], "uid": 0}),
        ("units", "prod.service"),
        ("units", [{"name": "prod.service"}]),
        ("another", 1),
    ],
)
def test_a_snapshot_that_holds_anything_else_is_refused(snapshot: dict[str, Any], where: str, value: object) -> None:
    said = refused({**snapshot, where: value})
    assert said == f"arm: {where} of the snapshot is not as the tuner sends it"


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("role", "root"),
        ("active", 1),
        ("name", ["prod.service"]),
        ("limits", {"LimitRTPRIO": "99:99"}),
        ("limits", {"LimitNOFILE": "1\nExecStartPre=/bin/sh"}),
        ("ExecStartPre", "/bin/sh"),
    ],
)
def test_a_unit_that_holds_anything_else_is_refused_even_when_production_is_the_same(
    snapshot: dict[str, Any], where: str, value: object
) -> None:
    changed = {**snapshot["units"][0], where: value}
    said = refused({**snapshot, "production": changed, "units": [changed, snapshot["units"][1]]})
    assert said == "arm: units of the snapshot is not as the tuner sends it"


def test_two_units_cannot_both_be_production(snapshot: dict[str, Any]) -> None:
    second = {**snapshot["units"][0], "name": "other.service"}
    assert "production of the snapshot" in str(refused({**snapshot, "units": [snapshot["units"][0], second]}))


def test_a_part_that_is_missing_is_named(snapshot: dict[str, Any]) -> None:
    del snapshot["holder"]
    assert refused(snapshot) == "arm: holder of the snapshot is not as the tuner sends it"
    assert refused([]) == "arm: the form of the snapshot is not as the tuner sends it"


def test_a_unit_that_was_not_granted_is_named_wherever_it_stands() -> None:
    for stranger in (unit("ssh.service", "conflict"), unit("ssh.service", "dependent")):
        assert "ada may not touch ssh.service" in str(refused(sent(unit("prod.service", "production"), stranger)))


def test_a_session_is_of_its_own_port_only(snapshot: dict[str, Any]) -> None:
    said = refused(snapshot, session="/var/lib/autotuner/sessions/30001")
    assert said == "arm: the session is not the one of the snapshot's port"


def test_whoever_only_looks_may_see_that_another_tunes(monkeypatch: pytest.MonkeyPatch, snapshot: dict[str, Any]) -> None:
    stored = {**snapshot, "units": [unit("ssh.service", "production")]}
    monkeypatch.setattr(permit.session, "snapshot_of", lambda _: stored)
    assert permit.refusal("ada", "session", {"session": FOLDER}) is None
    for command in ("restore", "request-restore", "disarm", "renew", "stop-production", "verify"):
        assert "ada may not touch ssh.service" in str(permit.refusal("ada", command, {"session": FOLDER}))
