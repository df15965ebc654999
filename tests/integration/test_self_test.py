"""The load generator's self-test against a real process: it is measured, kept and named, and nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotuner.bench import selftest
from autotuner.bench.floor import FILE, read_floor
from autotuner.cli.main import run
from autotuner.errors import AutotunerError, Interrupted
from autotuner.loadgen.validity import relaxed
from autotuner.services.onhost import processes

QUICK = relaxed(
    selftest.CellPlan(window_s=0.6, max_window_s=2.0, warmup_s=0.2, settle_s=0.2, max_warmup_s=10.0, request_timeout_s=20.0, repeats=0)
)
PATIENCE_S = 60


def engines() -> set[int]:
    """Simulated engines of a self-test, below this process or orphaned by it."""
    return {pid for pid in processes.table() if {"autotuner.engines.simulated", "simulated"} <= set(processes.arguments(pid))}


def gone(pids: set[int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while pids & set(processes.table()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_floor_is_measured_at_each_concurrency_and_no_engine_is_left() -> None:
    before, told = engines(), []
    found = selftest.measure_floor(4, should_stop=lambda: False, on_point=told.append, plan=QUICK)
    assert [point.concurrency for point in found.points] == [1, 4]
    assert list(found.points) == told
    assert found.clock == "kernel"
    assert (found.highest_valid, found.holds) == (4, True), [point.invalid for point in found.points]
    for point in found.points:
        assert point.chunks_s > 0
        assert point.lag_p99_ms >= point.lag_p50_ms >= 0
        assert 0 < point.cpu_us_per_chunk < 100_000
    gone(engines() - before)


def test_the_first_concurrency_that_is_not_valid_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    strict = dataclasses.replace(QUICK, cpu_share=0.0)
    found = selftest.measure_floor(4, should_stop=lambda: False, plan=strict)
    assert [point.concurrency for point in found.points] == [1]
    assert "of a core, 0% are allowed" in found.points[0].invalid[0]
    assert found.highest_valid is None


def test_an_engine_that_does_not_start_is_told_with_its_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "_SETTING", {"profile": "nonsense"})
    with pytest.raises(AutotunerError, match=r"the simulated engine of the self-test did not start: .+"):
        selftest.measure_floor(1, should_stop=lambda: False, plan=QUICK)


def test_it_can_be_stopped_while_the_engine_starts() -> None:
    before = engines()
    with pytest.raises(Interrupted):
        selftest.measure_floor(1, should_stop=lambda: True, plan=QUICK)
    gone(engines() - before)


def test_an_engine_ends_with_the_process_that_wanted_it() -> None:
    program = (
        "import time\n"
        "from autotuner.bench.selftest import simulated_engine\n"
        "with simulated_engine(1, lambda: False) as url:\n"
        "    print(url, flush=True)\n"
        "    time.sleep(600)\n"
    )
    before = engines()
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline().startswith("http://127.0.0.1:")
        started = engines() - before
        assert started
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
    gone(started)


def test_doctor_keeps_it_and_says_one_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(selftest, "PLAN", QUICK)
    monkeypatch.chdir(Path(__file__).parents[2])
    code = run(["--state-dir", str(tmp_path), "doctor", "simulated-b300", "--load-self-test", "--concurrency", "2", "--json"])
    told = json.loads(capfd.readouterr().out)
    kept = read_floor(tmp_path)
    assert kept is not None
    assert kept.wanted == 2
    assert told["load_self_test"]["highest_valid"] == kept.highest_valid == 2
    verdict = [check for check in told["checks"] if check["name"] == "load-generator"]
    assert [(check["status"], check["detail"]) for check in verdict] == [("pass", kept.sentence)]
    assert code == (0 if told["healthy"] else 1)
    assert (tmp_path / FILE).exists()
