"""The commands of a session on its host, called as the tuner calls them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from autotuner.services.base import LaunchSpec
from autotuner.services.onhost import lease, processes, session


class Guarded:
    def __init__(self, stage, ttl_s: float = 60.0) -> None:
        self.stage, self.side, self.token = stage, stage.side, "t0"
        self.folder = f"{self.side.state}/sessions/{stage.port}"
        production = self.call("inspect", port=stage.port).get("owner")
        own = processes.read(os.getpid())
        content = {"token": self.token, "session": self.folder, "ttl_s": ttl_s, "machine": "elsewhere", "pid": 1, "started": 1}
        taken = self.call("acquire", folder=self.side.leases, names=["gpu-0"], content=content)["taken"]
        self.snapshot = {
            "token": self.token,
            "manager": "process",
            "holder": {"machine": lease.machine(), "pid": os.getpid(), "started": own.started},
            "leases": taken,
            "state": self.side.state,
            "port": stage.port,
            "address": "127.0.0.1",
            "ready_path": "/health_generate",
            "answered": production is not None,
            "ttl_s": ttl_s,
            "stop_timeout_s": 5.0,
            "ready_timeout_s": 30.0,
            "production": production,
        }

    def call(self, command: str, **request: object) -> dict:
        return self.side.call(command, request)

    def arm(self) -> dict:
        return self.call("arm", session=self.folder, snapshot=self.snapshot)

    def renew(self) -> bool:
        return self.call("renew", session=self.folder, token=self.token)["live"]

    def state(self) -> dict:
        return self.call("session", session=self.folder)

    def take(self) -> None:
        assert self.arm() == {}
        assert self.call("stop-production", session=self.folder, token=self.token) == {"left": []}
        self.stage.services.start(self.stage.spec(), session=self.folder)
        self.stage.until(lambda: (self.stage.serving() or {}).get("label") == "candidate", "the candidate")

    def ask(self, *, keep: bool) -> None:
        assert self.call("request-restore", session=self.folder, token=self.token, keep=keep) == {}

    @property
    def leases(self) -> list[Path]:
        return list(Path(self.side.leases).iterdir())

    def assert_over(self) -> None:
        self.stage.until(lambda: self.state()["snapshot"] is None and not Path(self.folder).exists(), "the end of the session")
        assert self.leases == []
        assert self.stage.serving() == {"label": "production", "marker": "as before"}
        assert self.stage.candidates() == set()


def test_arming_twice_is_arming_once_and_another_session_is_not_overwritten(stage) -> None:
    guarded = Guarded(stage)
    assert guarded.arm() == {}
    watchdog = json.loads(Path(guarded.folder, "watchdog.json").read_text())
    assert guarded.arm() == {}
    assert json.loads(Path(guarded.folder, "watchdog.json").read_text()) == watchdog
    assert guarded.renew()
    state = guarded.state()
    assert (state["snapshot"], state["live"], state["armed"], state["restoring"]) == ("t0", True, True, False)
    assert 0 < state["remaining_s"] <= 60
    reply = guarded.call("arm", session=guarded.folder, snapshot={**guarded.snapshot, "token": "other"})
    assert reply["kind"] == "held"
    guarded.ask(keep=False)
    stage.until(lambda: guarded.state()["snapshot"] is None, "the end")
    assert guarded.arm()["kind"] == "fenced"


def test_a_kept_restore_waits_for_whoever_verifies_and_disarms(stage) -> None:
    stage.produce()
    guarded = Guarded(stage)
    guarded.take()
    assert guarded.call("disarm", session=guarded.folder, token=guarded.token)["kind"] == "live"
    guarded.ask(keep=True)
    stage.until(lambda: (guarded.state()["outcome"] or {}).get("ok") is True, "the outcome")
    assert guarded.state()["snapshot"] == "t0"
    assert len(guarded.leases) == 1
    assert not guarded.renew()
    assert guarded.call("verify", session=guarded.folder) == {"problems": [], "notes": [], "running": []}
    reply = guarded.call("stop-production", session=guarded.folder, token=guarded.token)
    assert reply["kind"] == "fenced"
    for _ in range(2):
        assert guarded.call("disarm", session=guarded.folder, token=guarded.token) == {}
    guarded.assert_over()


def test_a_kept_restore_that_nobody_looks_at_is_repaired_and_ended_by_the_host(stage) -> None:
    stage.produce()
    guarded = Guarded(stage, ttl_s=3.0)
    guarded.take()
    guarded.ask(keep=True)
    stage.until(lambda: (guarded.state()["outcome"] or {}).get("ok") is True, "the outcome")
    os.kill(stage.listener(), signal.SIGKILL)
    guarded.assert_over()
    assert guarded.state()["outcome"]["ok"] is True


def test_silence_is_measured_on_the_host_and_ends_in_production(stage) -> None:
    stage.produce()
    guarded = Guarded(stage, ttl_s=3.0)
    guarded.take()
    guarded.assert_over()
    assert not guarded.renew()


def test_the_same_start_again_is_answered_with_the_same_server(stage) -> None:
    guarded = Guarded(stage)
    assert guarded.arm() == {}
    spec = stage.spec()
    request = {
        "state": stage.side.state,
        "manager": "process",
        "session": guarded.folder,
        "name": spec.name,
        "mark": "candidate-1/abc",
        "argv": list(spec.argv),
        "env": {},
        "cwd": "/",
        "secrets": {},
    }
    first = guarded.side.call("start", request)
    assert guarded.side.call("start", request) == first
    assert "runs already" in guarded.side.call("start", {**request, "mark": "candidate-1/def"})["error"]
    guarded.ask(keep=False)
    stage.until(lambda: not stage.candidates(), "the end of the candidate")
    with pytest.raises(Exception, match="lease was lost"):
        stage.services.start(LaunchSpec(name="late", argv=spec.argv), session=guarded.folder)


def test_a_holder_elsewhere_is_judged_by_when_it_was_heard_of_last(stage) -> None:
    guarded = Guarded(stage)
    held = json.loads(guarded.leases[0].read_text())
    assert lease.in_force(held)
    assert not lease.in_force({**held, "ttl_s": 0.0})
    assert not lease.in_force({**held, "taken": {**held["taken"], "boot": "before"}})
    folder = Path(guarded.folder)
    folder.mkdir(parents=True)
    session.beat(folder)
    assert lease.in_force({**held, "taken": None})
    again = guarded.call("acquire", folder=stage.side.leases, names=["gpu-0", "gpu-1"], content=held)
    assert len(again["taken"]) == 2
    other = guarded.call("acquire", folder=stage.side.leases, names=["gpu-1"], content={**held, "token": "other"})
    assert (other["held"]["token"], other["alive"]) == ("t0", True)


def test_http_is_asked_from_the_host(stage) -> None:
    stage.produce()
    url = f"http://127.0.0.1:{stage.port}"
    answer = stage.side.call("http", {"method": "GET", "url": f"{url}/server_info?x=1", "timeout_s": 10})
    assert (answer["status"], json.loads(answer["body"])["label"]) == (200, "production")
    stage.clean()
    assert stage.side.call("http", {"method": "GET", "url": url, "timeout_s": 5})["kind"] == "connection"
