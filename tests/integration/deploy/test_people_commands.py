"""``autotuner service`` and the lease in ``autotuner status``, for a host of plain processes: this machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest

from autotuner.cli.main import run
from autotuner.deploy import people, recovery
from autotuner.services.onhost import lease


@pytest.fixture
def service(stage, tmp_path, monkeypatch, capsys):
    """Run a command about the stage's host; its exit code, standard output and standard error. State and leases are the stage's own."""
    monkeypatch.chdir(tmp_path)
    Path("here.yaml").write_text(json.dumps({key: value for key, value in stage.host_document.items() if key != "simulate"}))
    monkeypatch.setattr(people, "reached", lambda _, **__: contextlib.nullcontext(stage.side))

    def command(*arguments: str) -> tuple[int, str, str]:
        code = run(["service", "here.yaml", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


class Left:
    """A session whose tuner is on another machine: production stopped, a candidate serving."""

    def __init__(self, stage, *, ttl_s: float = 600.0) -> None:
        self.stage, self.side = stage, stage.side
        self.folder = f"{self.side.state}/sessions/{stage.port}"
        holder = {"machine": "elsewhere", "pid": 4711, "started": 1, "node": "farbox"}
        content = {"token": "t0", "session": self.folder, "ttl_s": ttl_s, "holder": "ada@farbox", "purpose": "tune here", "since": "then"}
        names = ["gpus", f"port-{stage.port}"]
        taken = self.side.call("acquire", {"folder": self.side.leases, "names": names, "content": {**content, **holder}})["taken"]
        snapshot = {
            "token": "t0",
            "manager": "process",
            "holder": holder,
            "leases": taken,
            "state": self.side.state,
            "port": stage.port,
            "address": "127.0.0.1",
            "ready_path": "/health_generate",
            "models_path": "/v1/models",
            "answered": True,
            "ttl_s": ttl_s,
            "stop_timeout_s": 5.0,
            "ready_timeout_s": 30.0,
            "production": self.side.call("inspect", {"port": stage.port})["owner"],
            "units": [],
        }
        assert "error" not in self.side.call("arm", {"session": self.folder, "snapshot": snapshot})
        self.side.call("stop-production", {"session": self.folder, "token": "t0"})
        stage.services.start(stage.spec(), session=self.folder)
        stage.until(lambda: (stage.serving() or {}).get("label") == "candidate", "the candidate")

    def kill_watchdog(self) -> None:
        os.kill(json.loads(Path(self.folder, "watchdog.json").read_text())["pid"], signal.SIGKILL)
        self.stage.until(lambda: not self.side.call("session", {"session": self.folder})["armed"], "the end of the watchdog")


def test_a_free_host_is_shown_with_what_listens(stage, service) -> None:
    code, out, _ = service("show")
    assert code == 0
    assert "production        nothing serves\n" in out
    assert "lease             free: nobody tunes this host\n" in out
    assert "dead-man switch   not armed: no session is on the host\n" in out
    assert f"port {stage.port}".ljust(18) + "nothing listens\n" in out
    assert "last restore      none is recorded" in out

    process = stage.produce()
    code, out, _ = service("show", "--json")
    shown = json.loads(out)
    assert code == 0
    assert (shown["listener"]["listening"], shown["listener"]["pid"]) == (True, process.pid)
    assert (shown["lease"], shown["left_to_restore"], shown["last_restore"]) == (None, False, None)
    assert shown["dead_man_switch"] == {"armed": False, "remaining_s": None, "restoring": False}


def test_a_host_that_is_tuned_names_its_holder_and_when_the_lease_expires(stage, service, tmp_path, capsys) -> None:
    stage.produce()
    Left(stage)

    shown = json.loads(service("show", "--json")[1])
    assert shown["lease"]["alive"] is True
    assert (shown["lease"]["holder"], shown["lease"]["purpose"], shown["lease"]["node"]) == ("ada@farbox", "tune here", "farbox")
    assert 0 < shown["lease"]["expires_s"] <= 600
    assert shown["dead_man_switch"]["armed"] is True
    assert shown["listener"]["left_by_tuner"] is True
    assert not shown["left_to_restore"]
    assert "ada@farbox since then: tune here; expires in " in service("show")[1]

    assert run(["--state-dir", str(tmp_path / "none"), "status", "here.yaml"]) == 0
    captured = capsys.readouterr()
    assert "here now: ada@farbox since then: tune here; expires in " in captured.out
    assert run(["--state-dir", str(tmp_path / "none"), "status", "--offline", "here.yaml"]) == 0
    assert "now:" not in capsys.readouterr().out


def test_a_tuner_that_died_with_the_lease_alone_has_left_nothing_to_restore(stage, service) -> None:
    stage.produce()
    content = {
        "token": "t0",
        "session": f"{stage.side.state}/sessions/{stage.port}",
        "ttl_s": 0.0,
        "holder": "ada@farbox",
        "machine": "away",
    }
    stage.side.call(
        "acquire", {"folder": stage.side.leases, "names": ["gpus"], "content": {**content, "purpose": "tune here", "since": "then"}}
    )

    shown = json.loads(service("show", "--json")[1])
    assert (shown["lease"]["alive"], shown["left_to_restore"]) == (False, False)
    assert service("show")[1].splitlines()[-1] == (
        "a tuner that is gone left its lease alone: nothing on this host was changed, and the next `tune` takes it over"
    )


def test_nothing_is_brought_back_under_a_tuner_that_lives_unless_it_is_taken_over(stage, service) -> None:
    stage.produce()
    Left(stage)

    code, _, err = service("restore")
    assert code == 4
    assert "here is being tuned by ada@farbox since then: tune here" in err
    assert "kill 4711 on farbox" in err
    assert "autotuner service here restore --take-over" in err
    assert stage.serving()["label"] == "candidate"

    code, out, _ = service("restore", "--take-over")
    assert code == 0
    assert "here: restored; the host was held by ada@farbox since then: tune here\n" in out
    assert "lease             free" in out
    assert stage.serving() == {"label": "production", "marker": "as before"}
    assert stage.candidates() == set()

    code, out, _ = service("restore")
    assert (code, out) == (0, "here: nothing is left to restore\n")


def test_what_a_dead_tuner_and_a_dead_watchdog_left_is_brought_back(stage, service) -> None:
    stage.produce()
    left = Left(stage, ttl_s=3.0)
    left.kill_watchdog()
    stage.until(lambda: json.loads(service("show", "--json")[1])["lease"]["alive"] is False, "the end of the lease")

    out = service("show")[1]
    assert "lease             left by ada@farbox since then: tune here, who is gone\n" in out
    assert "dead-man switch   NOT ARMED" in out
    assert out.endswith("a tuner that is gone left this host to be restored: autotuner service here restore\n")

    code, out, _ = service("restore")
    assert code == 0
    assert "last restore      production is as it was" in out
    assert stage.serving() == {"label": "production", "marker": "as before"}
    assert list(Path(stage.side.leases).iterdir()) == []


def test_a_lease_without_a_session_is_removed(stage, service) -> None:
    content = {"token": "t1", "session": "", "ttl_s": 3, "holder": "bob", "purpose": "tune", "since": "then", "machine": lease.machine()}
    names = ["gpus", f"port-{stage.port}"]
    stage.side.call("acquire", {"folder": stage.side.leases, "names": names, "content": {**content, "pid": 1, "started": 1}})

    code, out, _ = service("restore")
    assert code == 0
    assert "the host was held by bob since then: tune" in out
    assert list(Path(stage.side.leases).iterdir()) == []


def test_production_that_cannot_come_back_ends_with_five_and_the_command_for_a_person(stage, service, monkeypatch) -> None:
    monkeypatch.setattr(recovery, "_FAILING_S", 1.0)
    stage.produce()
    Left(stage)
    for pid in stage.candidates():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    stage.until(lambda: stage.listener() is None, "a free port")
    stage.start_foreign()

    code, _, err = service("restore", "--take-over")
    assert code == 5
    assert f"here: production on port {stage.port} is not as it was" in err
    assert "hint: on the host: " in err


@pytest.mark.parametrize("verb", ["stop", "start"])
def test_a_plain_process_is_neither_stopped_nor_started(stage, service, verb) -> None:
    process = stage.produce()
    code, _, err = service(verb)
    assert code == 2
    assert "here: production is no systemd unit (manager: process)" in err
    assert {"stop": f"hint: on the host: kill {process.pid}", "start": "serves already"}[verb] in err
    assert stage.serving() is not None


def test_logs_are_the_files_of_production_and_of_the_newest_candidate(stage, service) -> None:
    code, _, err = service("logs")
    assert code == 2
    assert "there is no log of production" in err
    code, _, err = service("logs", "--candidate")
    assert code == 2
    assert "no candidate has left a log" in err

    stage.produce()
    with (stage.folder / "production.out").open("a") as log:
        log.write("one\ntwo\nthree\n")
    code, out, err = service("logs", "-n", "2")
    assert (code, out) == (0, "two\nthree\n")
    assert str(stage.folder / "production.out") in err

    Left(stage)
    code, out, err = service("logs", "--candidate")
    assert code == 0
    assert "/services/candidate-1/log" in err
    assert out


def test_a_host_that_cannot_be_asked_is_a_line_of_its_status_and_not_an_error(stage, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    elsewhere = {"type": "ssh", "hostname": "127.0.0.1", "port": 1, "config_file": "none"}
    document = {**stage.host_document, "metadata": {"name": "far"}, "transport": elsewhere}
    del document["simulate"]
    Path("far.yaml").write_text(json.dumps(document))

    assert run(["--state-dir", str(tmp_path / "none"), "status", "far.yaml"]) == 0
    assert "far now: cannot be asked: " in capsys.readouterr().out


def test_a_name_without_a_document_asks_nobody(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["--state-dir", str(tmp_path / "none"), "status", "nowhere"]) == 0
    assert capsys.readouterr().out == ""
