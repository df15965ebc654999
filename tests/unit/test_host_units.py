"""What the host says about its units, and what becomes of it on the controller."""

from __future__ import annotations

import json

from autotuner.deploy.production import HostBefore, ProductionState, refused
from autotuner.deploy.reach import choose_load_path
from autotuner.deploy.snapshot import redacted
from autotuner.discover.units import Reason, read_units, units_request
from autotuner.engines.sglang.engine import SglangEngine
from autotuner.model.host import Host
from autotuner.services.onhost.revertable import grant

ANY = "0.0.0.0"  # noqa: S104 - compared, not bound
DOCUMENT = {
    "apiVersion": "autotuner/v1",
    "kind": "Host",
    "metadata": {"name": "far"},
    "transport": {"type": "ssh", "hostname": "gpu7"},
    "engine": {"name": "sglang"},
    "model": {"path": "/m"},
    "service": {"manager": "systemd", "production": {"unit": "prod.service"}, "conflicts": ["beside.service"]},
}


class Far:
    """As much of a transport as choosing a way looks at."""

    address = "me@gpu7:2222"
    hostname = "gpu7.internal"
    rtt_s = 0.002


def host(**changes: object) -> Host:
    return Host.model_validate_json(json.dumps({**DOCUMENT, **changes}))


def test_the_hosts_answer_is_read_by_role() -> None:
    units = read_units(
        {
            "production": "prod.service",
            "units": [
                {"name": "prod.service", "role": "production", "active": True, "MainPID": 7, "argv": ["sglang"], "answered": True},
                {"name": "beside.service", "role": "conflict", "active": False},
            ],
            "problems": [{"message": "masked", "hint": "unmask it"}, {"message": "no hint"}],
            "notes": ["a note"],
        }
    )
    assert units.production is not None
    assert (units.production.name, units.production.pid, units.production.argv) == ("prod.service", 7, ("sglang",))
    assert [(unit.name, unit.active) for unit in units.others] == [("beside.service", False)]
    assert units.reasons == (Reason(message="masked", hint="unmask it"), Reason(message="no hint"))
    assert units.notes == ("a note",)


def test_an_answer_without_units_has_none() -> None:
    units = read_units({"production": None, "units": [], "problems": [], "notes": []})
    assert (units.production, units.all, units.reasons) == (None, (), ())


def test_the_document_says_which_unit_is_asked_for() -> None:
    endpoints = SglangEngine().endpoints
    asked = units_request(host(), endpoints)
    assert (asked["unit"], asked["conflicts"], asked["models_path"]) == ("prod.service", ["beside.service"], "/v1/models")
    assert (asked["host"], asked["ssh"]) == ("far", True)
    assert grant(asked) == "autotuner service far grant"
    for written, unit in (("auto", "auto"), ("none", None)):
        assert units_request(host(service={"manager": "systemd", "production": written}), endpoints)["unit"] == unit


def test_every_reason_is_told_with_its_hint() -> None:
    one = refused(host(), (Reason(message="it is masked", hint="unmask it"),))
    assert (one.message, one.hint, one.exit_code) == ("far could not be brought back as it is: it is masked", "unmask it", 4)
    both = refused(host(), (Reason(message="it is masked", hint="unmask it"), Reason(message="the disk is full")))
    assert "for 2 reasons" in both.message
    assert "it is masked (hint: unmask it)" in both.message
    assert "the disk is full" in both.message


def test_inactive_units_need_not_be_stopped_and_active_ones_do() -> None:
    units = read_units({"units": [{"name": "beside.service", "role": "conflict", "active": True}]}).all
    assert not HostBefore(production=None, recorded=None).must_stop
    assert HostBefore(production=None, recorded=None, units=units).must_stop
    state = ProductionState(argv=("a",), env={}, cwd="/", pid=1, answered=True, details={})
    assert HostBefore(production=state, recorded={}).must_stop


def test_the_controllers_copy_of_a_snapshot_holds_no_secret() -> None:
    snapshot = {
        "token": "t0k3n",
        "port": 30000,
        "production": {
            "argv": ["sglang", "--api-key", "s3cret", "--admin-api-key=s3cret", "--tokenizer-path", "/t"],
            "env": {"HF_TOKEN": "s3cret", "LANG": "C"},
        },
        "units": [{"name": "prod.service", "argv": ["x", "--auth-token", "s3cret"]}],
    }
    kept = redacted(snapshot)
    text = json.dumps(kept)
    assert "s3cret" not in text
    assert "t0k3n" not in text
    assert kept["production"]["argv"] == ["sglang", "--api-key", "***", "--admin-api-key=***", "--tokenizer-path", "/t"]
    assert kept["production"]["env"]["HF_TOKEN"].startswith("sha256:")
    assert kept["units"][0]["argv"] == ["x", "--auth-token", "***"]


def test_the_way_of_the_load_follows_the_address_that_the_server_binds() -> None:
    def way(**changes: object) -> tuple[str, str]:
        path = choose_load_path(host(**changes), Far())
        return path.source, path.base_url

    assert way() == ("host", "http://127.0.0.1:30000")
    assert way(endpoint={"address": "::1"}) == ("host", "http://[::1]:30000")
    assert way(endpoint={"address": ANY}) == ("controller", "http://gpu7.internal:30000")
    assert way(endpoint={"address": "10.0.0.7", "port": 8000}) == ("controller", "http://10.0.0.7:8000")
    assert way(endpoint={"address": "10.0.0.7"}, load={"from": "host"}) == ("host", "http://10.0.0.7:30000")
    assert way(endpoint={"address": ANY}, load={"from": "host"}) == ("host", "http://127.0.0.1:30000")
    assert way(transport={"type": "local"}, service={}) == ("controller", "http://127.0.0.1:30000")
