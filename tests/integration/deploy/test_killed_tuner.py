"""A tuner that is killed, stopped or hangs in any phase: the host serves what it served before, without anybody's help."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autotuner.errors import Refused
from autotuner.services.onhost import processes

CONTROLLER = Path(__file__).parents[2] / "data" / "deploy" / "controller.py"
PHASES = ("entered", "stage-start", "stage-load", "stage-ready", "measuring", "stopped")


def control(stage, phase: str, *, ttl_s: float = 60.0, candidate: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """A tuner of its own that waits in ``phase``."""
    task = {
        "host": stage.host_document,
        "state": str(stage.folder / "state"),
        "leases": str(stage.folder / "leases"),
        "phase": phase,
        "ttl_s": ttl_s,
        "candidate": stage.command(*candidate),
    }
    process = subprocess.Popen([sys.executable, str(CONTROLLER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    stage.started.append(process)
    process.stdin.write(json.dumps(task))
    process.stdin.close()
    for line in process.stdout:
        if line.strip() == phase:
            return process
    raise AssertionError(f"the tuner ended before phase {phase}")


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def assert_as_before(stage, argv: list[str]) -> None:
    stage.until(lambda: (stage.serving() or {}).get("label") == "production", "production")
    stage.until(lambda: not list((stage.folder / "leases").iterdir()), "the lease given back")
    assert stage.serving() == {"label": "production", "marker": "as before"}
    assert processes.arguments(stage.listener()) == argv
    assert stage.candidates() == set()


@pytest.mark.parametrize("phase", PHASES)
def test_kill_9(stage, phase: str) -> None:
    before = stage.produce()
    end(control(stage, phase, candidate=("--grandchild", str(stage.folder / "grandchild"), "--clean-environment", "--start-s", "0.5")))
    assert_as_before(stage, list(before.args))
    if (stage.folder / "grandchild").exists():
        assert int((stage.folder / "grandchild").read_text()) not in processes.table()
    if phase == "entered":
        assert stage.listener() == before.pid


def test_kill_9_without_production_stops_the_orphan(stage) -> None:
    end(control(stage, "measuring"))
    stage.until(lambda: stage.listener() is None, "the end of the candidate")
    stage.until(lambda: not stage.ours(), "the end of everything")


def test_a_hung_tuner_is_not_waited_for_and_touches_nothing_when_it_comes_back(stage) -> None:
    before = stage.produce()
    process = control(stage, "measuring", ttl_s=2.0)
    os.kill(process.pid, signal.SIGSTOP)
    assert_as_before(stage, list(before.args))
    restored = stage.listener()
    os.kill(process.pid, signal.SIGCONT)
    os.kill(process.pid, signal.SIGINT)
    process.wait()
    end(process)
    assert stage.listener() == restored
    assert stage.serving()["label"] == "production"


def test_sigint_in_its_own_process_restores_before_it_exits(stage) -> None:
    stage.produce()
    process = control(stage, "measuring")
    process.send_signal(signal.SIGINT)
    process.wait()
    assert stage.serving()["label"] == "production"
    end(process)


def test_tuner_and_watchdog_both_killed_the_next_start_restores(stage) -> None:
    """As after a reboot: nobody is left on the host."""
    before = stage.produce()
    process = control(stage, "measuring")
    watchdog = json.loads((stage.folder / "state" / "sessions" / str(stage.port) / "watchdog.json").read_text())
    os.kill(watchdog["pid"], signal.SIGKILL)
    end(process)
    assert stage.serving()["label"] == "candidate"
    with stage.session() as session:
        assert session.production is not None
        assert session.production.argv == tuple(before.args)
        assert stage.serving() == {"label": "production", "marker": "as before"}
    assert any("taking over from test since" in notice for notice in stage.notices)
    assert_as_before(stage, list(before.args))


def test_a_killed_watchdog_is_started_again_by_the_living_tuner(stage) -> None:
    stage.produce()
    with stage.session() as session:
        record = Path(session.folder, "watchdog.json")
        first = json.loads(record.read_text())["pid"]
        os.kill(first, signal.SIGKILL)
        stage.until(lambda: first not in processes.table(), "the end of the watchdog")
        session.launch(stage.spec(), on_stage=lambda *_: None, should_stop=lambda: False)
        second = json.loads(record.read_text())["pid"]
        assert second != first
        os.kill(second, signal.SIGKILL)
    assert stage.serving()["label"] == "production"


def test_a_living_tuner_of_another_process_is_not_taken_over(stage) -> None:
    process = control(stage, "measuring")
    with pytest.raises(Refused, match="here is being tuned by test since"), stage.session():
        pass
    assert stage.serving()["label"] == "candidate"
    end(process)
    stage.until(lambda: not stage.ours(), "the end of everything")


def test_a_leftover_snapshot_is_private(stage) -> None:
    stage.produce()
    with stage.session() as session:
        found = [path for path in Path(session.folder).parent.parent.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]
        assert sorted(path.name for path in found) == [f"{stage.port}.json", "snapshot.json"]
        assert not any(path.stat().st_mode & 0o077 for path in found)
    assert not [path for path in (stage.folder / "state").rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]
