"""``autotuner service``: what it says before a host is asked, and in words about one that was."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotuner.cli.main import run
from autotuner.cli.service import as_json_object, as_text
from autotuner.cli.status import lease_json
from autotuner.deploy.people import Holder, Situation
from autotuner.deploy.state import Outcome, SessionState
from autotuner.discover.ports import Listener
from autotuner.discover.units import Unit
from autotuner.documents import dump
from autotuner.model.document import Metadata
from autotuner.model.host import ProductionUnit, Service, SshTransport
from tests import builders as b

SYSTEMD = Service(manager="systemd", production=ProductionUnit(unit="prod"), conflicts=("other.service",))


def test_the_module_of_the_commands_loads_no_heavy_library() -> None:
    script = "import sys, autotuner.cli.service\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {name.split(".")[0] for name in loaded} & {"pydantic", "httpx", "yaml", "paramiko", "numpy", "structlog"}


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["lab", "shw"], "autotuner service lab show"),
        (["show", "lab"], "the host comes first: autotuner service lab show"),
        (["lab", "frobnicate"], "one of: show, stop, start, restore, logs, grant"),
        (["lab", "stop", "--force"], "`autotuner service HOST stop --help` lists what can be given"),
        (["lab", "logs", "-n", "0"], "`autotuner service HOST logs --help` lists what can be given"),
        (["lab"], "`autotuner service --help` lists what can be given"),
    ],
)
def test_what_cannot_be_asked_is_answered_with_what_can(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["service", *words]) == 2
    assert f"\nhint: {hint}\n" in capsys.readouterr().err


def test_a_host_that_nobody_described_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["service", "nowhere", "show"]) == 2
    assert "there is no host 'nowhere'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "plain processes need nothing granted"),
        ({"service": SYSTEMD}, "names no user to grant anything to"),
        ({"service": SYSTEMD, "transport": SshTransport(type="ssh", hostname="h", user="root")}, "root needs nothing granted"),
        ({"service": SYSTEMD, "transport": SshTransport(type="ssh", hostname="h", user="a=b")}, "'a=b' is not the name of a user"),
    ],
)
def test_there_is_no_script_where_nothing_can_be_granted(
    changes: dict[str, object], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lab.yaml").write_text(dump(b.host(**changes)))
    assert run(["service", str(tmp_path / "lab.yaml"), "grant"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err


def test_who_is_not_root_is_told_the_command_for_this_very_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The host is this machine, with a Python that says it is another user's and without the program behind sudo."""
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\nprintf '%s\\n' /usr/bin/python3 1000 3.11\n")
    python.chmod(0o755)
    document = tmp_path / "my lab.yaml"
    document.write_text(dump(b.host(metadata=Metadata(name="lab"), service=SYSTEMD)))
    monkeypatch.setenv("PATH", str(tmp_path))
    told = f"have an administrator of the host run what `autotuner service '{document}' grant` prints, or connect as root"
    assert run(["service", str(document), "show"]) == 4
    assert f"\nhint: {told}\n" in capsys.readouterr().err
    assert run(["--state-dir", str(tmp_path / "state"), "status", str(document)]) == 0
    assert f"(hint: {told})" in capsys.readouterr().out
    assert lease_json(str(document))["lease"]["hint"] == told


def test_the_script_to_grant_names_the_units_of_the_document_in_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lab.yaml").write_text(dump(b.host(service=SYSTEMD, transport=SshTransport(type="ssh", hostname="h", user="tuner"))))
    assert run(["service", str(tmp_path / "lab.yaml"), "grant"]) == 0
    assert "Lets tuner have these units stopped and started by autotuner, and nothing else: 'prod.service' 'other.service'" in (
        capsys.readouterr().out
    )


def unit(name: str, role: str, **details: object) -> Unit:
    return Unit(
        name=name, role=role, active=details["ActiveState"] == "active", pid=int(details.get("MainPID", 0)), argv=(), details=details
    )


def situation(**changes: object) -> Situation:
    session = SessionState(token=None, live=False, armed=False, restoring=False, outcome=None, by_hand=None)
    values: dict[str, object] = {
        "address": "tuner@h:22",
        "manager": "systemd",
        "production": unit("prod.service", "production", ActiveState="active", SubState="running", UnitFileState="enabled", MainPID=7),
        "answers": True,
        "others": (unit("other.service", "conflict", ActiveState="failed", SubState="failed", UnitFileState="masked"),),
        "candidates": (),
        "problems": (),
        "holder": None,
        "session": session,
        "listener": Listener(listening=True),
    }
    return Situation(**{**values, **changes})


SESSION_ID = "t"
HOLDER = Holder(
    who="ada@box",
    purpose="tune lab",
    since="then",
    node="box",
    pid=5,
    how_to_stop="kill 5 on box",
    alive=True,
    session="/s",
    token=SESSION_ID,
    expires_s=41.6,
)
SESSION = SessionState(token=SESSION_ID, live=True, armed=True, restoring=False, outcome=None, by_hand=None, remaining_s=41.6)


def test_a_quiet_host_in_words() -> None:
    assert as_text(b.host(service=SYSTEMD), situation()).splitlines() == [
        "lab (systemd, tuner@h:22)",
        "  production        prod.service: active (running), pid 7, enabled, answers",
        "  conflict          other.service: failed (failed), masked",
        "  lease             free: nobody tunes this host",
        "  dead-man switch   not armed: no session is on the host",
        "  port 30000        a process that this user cannot see",
        "  last restore      none is recorded",
    ]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"answers": False}, "production        prod.service: active (running), pid 7, enabled, does not answer"),
        (
            {
                "answers": None,
                "production": unit("prod.service", "production", ActiveState="inactive", LoadState="not-found"),
            },
            "production        prod.service: does not exist on the host",
        ),
        ({"production": None, "listener": Listener(listening=False)}, "production        nothing serves"),
        ({"holder": HOLDER}, "lease             ada@box since then: tune lab; expires in 42 s unless it is renewed"),
        ({"session": SESSION}, "dead-man switch   armed: in 42 s the host brings production back unless the tuner is heard of"),
        ({"session": replace(SESSION, armed=False)}, "dead-man switch   NOT ARMED, and a session is on the host"),
        ({"session": replace(SESSION, restoring=True)}, "dead-man switch   the host is bringing production back now"),
        ({"session": replace(SESSION, by_hand="somebody stopped x")}, "by hand           somebody stopped x"),
        ({"problems": ("prod.service is masked",)}, "problem           prod.service is masked"),
        (
            {"session": replace(SESSION, outcome=Outcome(ok=False, detail="it ended", notes=("n",), token=SESSION_ID))},
            "last restore      FAILED: it ended",
        ),
    ],
)
def test_every_state_has_its_words(changes: dict[str, object], line: str) -> None:
    assert f"  {line}" in as_text(b.host(service=SYSTEMD), situation(**changes)).splitlines()


def test_what_a_dead_tuner_left_is_said_with_the_command_for_it() -> None:
    gone = replace(HOLDER, alive=False)
    found = situation(holder=gone, session=SESSION)
    assert as_text(b.host(), found).endswith("a tuner that is gone left this host to be restored: autotuner service lab restore")
    assert "  lease             left by ada@box since then: tune lab, who is gone" in as_text(b.host(), found).splitlines()
    assert as_json_object(b.host(), found)["left_to_restore"] is True


def test_a_tuner_that_died_before_it_had_changed_anything_has_left_nothing_to_restore() -> None:
    found = situation(holder=replace(HOLDER, alive=False))
    assert as_text(b.host(), found, folder="/s").endswith(
        "a tuner that is gone left its lease alone: nothing on this host was changed, and the next `tune` takes it over"
    )
    assert as_json_object(b.host(), found, folder="/s")["left_to_restore"] is False
    elsewhere = as_text(b.host(), found, folder="/another")  # a session of another port, say: what became of that is not known here
    assert elsewhere.endswith("left this host to be restored: autotuner service lab restore")


def test_a_living_tuner_has_left_nothing_to_restore() -> None:
    assert as_json_object(b.host(), situation(holder=HOLDER, session=SESSION))["left_to_restore"] is False


def test_the_situation_is_one_json_object_of_plain_values() -> None:
    found = as_json_object(b.host(service=SYSTEMD), situation(holder=HOLDER, session=SESSION))
    assert json.loads(json.dumps(found)) == found
    assert found["lease"] == {
        "holder": "ada@box", "purpose": "tune lab", "since": "then", "node": "box", "pid": 5, "alive": True, "expires_s": 41.6,
    }  # fmt: skip
    assert found["dead_man_switch"] == {"armed": True, "remaining_s": 41.6, "restoring": False}
