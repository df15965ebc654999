"""Load that is driven on a host: here this machine plays the host, through the same stream that a distant one would be talked to."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autotuner.errors import Interrupted, RetryTrial, StopStudy
from autotuner.loadgen.cells import THROWN_AWAY
from autotuner.loadgen.crew import Crew
from autotuner.loadgen.fleet import Fleet, fleet
from autotuner.loadgen.hosttime import ClockSample, HostClock
from autotuner.loadgen.plan import Share
from autotuner.loadgen.prompts import PromptSource
from autotuner.loadgen.remote import TITLE, RemoteWorker, host_fleet
from autotuner.model.workload import Cell, Sampling
from autotuner.transports.base import Stream
from autotuner.transports.local import LocalTransport
from tests.halt import Halt
from tests.integration.simulated import Running, server
from tests.ports import free_port
from tests.small_cells import ENDLESS, PATH, PLAN, measure

FLAGS = ("--tp-size", "8", "--ep-size", "8", "--enable-metrics")
FAR_S = 0.15
FAR = """
import os, queue, subprocess, sys, threading, time
child = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def carry(source, sink):
    def deliver():
        while True:
            at, data = due.get()
            time.sleep(max(0, at - time.monotonic()))
            if not data:
                return os.close(sink)
            while data:
                data = data[os.write(sink, data):]
    due = queue.Queue()
    threading.Thread(target=deliver).start()
    while True:
        data = os.read(source, 1 << 16)
        due.put((time.monotonic() + float(sys.argv[1]), data))
        if not data:
            return
threading.Thread(target=carry, args=(child.stdout.fileno(), 1)).start()
carry(0, os.dup(child.stdin.fileno()))
child.stdin.close()
"""


class FarTransport(LocalTransport):
    """Every byte of a stream arrives late, in both directions."""

    def stream(self, argv: Sequence[str]) -> Stream:
        return super().stream([sys.executable, "-c", FAR, str(FAR_S), *argv])


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with server(tmp_path_factory.mktemp("engine"), *FLAGS, profile="b300") as running:
        running.wait_ready()
        yield running


@pytest.fixture(scope="module")
def host() -> Iterator[Fleet]:
    made = host_fleet(LocalTransport())
    yield made
    made.close()
    fleet().close()


def wait_until(holds: Callable[[], bool], timeout_s: float = 20) -> bool:
    end = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return holds()


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def resting(host: Fleet) -> RemoteWorker:
    [worker] = host._idle
    assert isinstance(worker, RemoteWorker)
    return worker


@pytest.mark.alone
@pytest.mark.parametrize("concurrency", [1, 16])
def test_a_cell_is_the_same_wherever_its_load_comes_from(engine: Running, host: Fleet, concurrency: int) -> None:
    here = measure(engine.url, None, concurrency=concurrency)
    there = measure(engine.url, host, concurrency=concurrency)
    assert there.result.failed == here.result.failed == 0
    for metric in ("output_tok_s", "user_tok_s", "tpot_p50_ms"):
        assert there.result.metrics[metric] == pytest.approx(here.result.metrics[metric], rel=0.2), metric
    assert there.result.prompt_tokens_p50 == pytest.approx(here.result.prompt_tokens_p50, abs=3)
    assert {record.lane for record in there.records} == set(range(concurrency))
    # Whatever is said about one is said about the other: no lane waited for the network, no clock moved, every read has a kernel's stamp.
    assert not [warning for warning in there.result.warnings if "waited" in warning or "clock" in warning or "kernel" in warning]
    for record in there.records:
        if record.valid:
            assert record.completion_tokens == record.chunks[-1][1] <= 64
            assert record.finish_reason == "length"
            assert record.start_s <= record.chunks[0][0] <= record.chunks[-1][0] <= (record.end_s or 0)
        assert record.domain == ("code", "poem")[record.index % 2]
        assert record.index % concurrency == record.lane
    assert len({record.index for record in there.records}) == len(there.records)


def test_a_worker_on_a_host_says_of_itself_what_one_here_says(engine: Running, host: Fleet) -> None:
    found = measure(engine.url, host)
    client = found.result.client
    assert client is not None
    assert (client.clock, client.valid) == ("kernel", True)
    assert client.lag_p50_ms is not None
    assert 0 <= client.lag_p50_ms <= (client.lag_p99_ms or 0)
    assert 0 < client.cpu < 1
    assert client.gc_pause_max_ms == 0
    within = sum(found.window.holds(at) for record in found.records for at, _ in record.chunks)
    assert client.reads >= 0.5 * within > 0, "reads are those of the window, on the host's own clock"


def test_a_host_whose_worker_is_held_up_has_its_cell_measured_again(engine: Running) -> None:
    host = host_fleet(LocalTransport())
    try:
        measure(engine.url, host)
        [worker] = host._idle
        plan = replace(PLAN, coalesced_share=0.0)
        halt = Halt(worker.pid, 0.3)
        found = measure(engine.url, host, concurrency=1, output_tokens=256, plan=plan, observe=halt)
    finally:
        host.close()
    thrown = [warning for warning in found.result.warnings if warning.startswith(THROWN_AWAY)]
    assert "while the load generator stood still" in thrown[0]
    assert halt.attempts >= 2


def test_one_lane_is_measured_from_the_end_of_an_answer_to_the_end_of_an_answer_there_too(engine: Running, host: Fleet) -> None:
    result = measure(engine.url, host, concurrency=1, output_tokens=48).result
    whole = result.metrics["output_tok_s"] * result.window_s / 48
    assert whole == pytest.approx(round(whole), abs=0.02)
    assert result.requests == round(whole)


@pytest.mark.alone
def test_a_long_way_to_the_host_slows_no_lane_down_even_when_answers_are_short(engine: Running) -> None:
    far = host_fleet(FarTransport())
    try:
        here = measure(engine.url, None, concurrency=2, output_tokens=16)
        there = measure(engine.url, far, concurrency=2, output_tokens=16)
        [worker] = far._idle
        assert worker.lead_s > FAR_S
    finally:
        far.close()
    assert there.result.failed == 0
    assert not [warning for warning in there.result.warnings if "waited" in warning]
    assert there.result.metrics["output_tok_s"] == pytest.approx(here.result.metrics["output_tok_s"], rel=0.2)


def test_workers_are_kept_between_cells_and_end_with_the_fleet(engine: Running) -> None:
    host = host_fleet(LocalTransport())
    measure(engine.url, host)
    worker = resting(host)
    measure(engine.url, host)
    assert resting(host) is worker
    assert TITLE in Path(f"/proc/{worker.pid}/cmdline").read_text()
    host.close()
    assert wait_until(lambda: not runs(worker.pid))


def test_lanes_are_spread_over_processes_as_far_as_the_host_has_processors() -> None:
    host = host_fleet(LocalTransport())
    assert host.size(32) == 1
    assert host.size(4096) == len(os.sched_getaffinity(0))


def test_a_stop_leaves_nothing_running_on_the_host(engine: Running, host: Fleet) -> None:
    measure(engine.url, host)
    worker = resting(host)
    stop_at = time.monotonic() + 0.8
    with pytest.raises(Interrupted):
        measure(engine.url, host, plan=ENDLESS, output_tokens=4000, should_stop=lambda: time.monotonic() > stop_at)
    assert wait_until(lambda: not runs(worker.pid))
    assert measure(engine.url, host).result.requests > 0


def test_abandoned_requests_count_for_tokens_and_not_as_failures(engine: Running, host: Fleet) -> None:
    plan = replace(PLAN, window_s=0.5, max_window_s=0.5)
    found = measure(engine.url, host, output_tokens=8000, plan=plan)
    abandoned = [record for record in found.records if record.end_s is None]
    assert abandoned
    assert all(record.error is None and record.completion_tokens is None and record.chunks for record in abandoned)
    assert found.result.metrics["output_tok_s"] > 0
    assert found.result.failed == 0


def test_a_server_that_dies_in_a_cell_ends_the_cell_and_keeps_what_was_there(tmp_path: Path, host: Fleet) -> None:
    with server(tmp_path, *FLAGS, profile="b300") as doomed:
        doomed.wait_ready()
        timer = threading.Timer(2.0, os.killpg, (doomed.process.pid, signal.SIGKILL))
        timer.start()
        found = measure(doomed.url, host, plan=ENDLESS)
        timer.join()
    assert found.result.requests > 0
    assert found.result.errors["connection"] >= 4
    assert any("cut short" in warning for warning in found.result.warnings)


def test_a_port_where_nobody_listens_is_a_result(host: Fleet) -> None:
    result = measure(f"http://127.0.0.1:{free_port()}", host).result
    assert result.requests == 0
    assert set(result.errors) == {"connection"}


def test_a_worker_that_is_killed_is_a_reason_to_try_again(engine: Running, host: Fleet) -> None:
    measure(engine.url, host)
    victim = resting(host).pid
    killer = threading.Timer(0.5, os.kill, (victim, signal.SIGKILL))
    killer.start()
    with pytest.raises(RetryTrial, match=rf"load worker {victim} on local was lost"):
        measure(engine.url, host, plan=ENDLESS)
    killer.join()
    assert measure(engine.url, host).result.requests > 0


def test_a_worker_that_died_at_rest_is_replaced_without_a_word(engine: Running, host: Fleet) -> None:
    measure(engine.url, host)
    worker = resting(host)
    os.kill(worker.pid, signal.SIGKILL)
    assert wait_until(lambda: not worker.alive)
    assert measure(engine.url, host).result.requests > 0
    assert resting(host) is not worker


def two_lanes(engine: Running) -> Share:
    return Share(
        base_url=engine.url,
        model="kimi",
        chat_path=PATH,
        cell=Cell(context=60, concurrency=2, output_tokens=64),
        lanes=(0, 1),
        prompts=PromptSource(("code",)),
        sampling=Sampling(),
        warmup_s=0.2,
        request_timeout_s=10,
        seed=0,
    )


def test_a_report_that_crosses_a_stop_brings_the_host_no_more_requests(engine: Running) -> None:
    worker = RemoteWorker(LocalTransport(), ["python3"], HostClock())
    crew = Crew([worker])
    try:
        crew.await_ready([worker])
        for _ in range(2):
            begin_ns = crew.start([two_lanes(engine)])
            while not crew.progress(0.05).answered:
                pass
            assert worker._supply is not None
            all_taken = list(worker._supply._sent)
            end_ns = time.monotonic_ns()
            worker.stop(begin_ns, end_ns)
            worker._refill(all_taken)
            assert crew.stop(begin_ns, end_ns)
    finally:
        crew.close()
        worker.close()


@pytest.mark.alone
def test_lanes_end_by_themselves_when_the_tuner_falls_silent(engine: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotuner.loadgen.remote.SILENCE_S", 1.0)
    worker = RemoteWorker(LocalTransport(), ["python3"], HostClock())
    crew = Crew([worker])
    try:
        crew.await_ready([worker])
        begun = time.monotonic()
        crew.start([two_lanes(engine)])
        while time.monotonic() - begun < 2:
            assert crew.progress(0.05).failed == 0
            worker._pinged_s = 0.0  # every call is a word
        assert runs(worker.pid)
        assert wait_until(lambda: not runs(worker.pid))
        with pytest.raises(RetryTrial, match=rf"load worker {worker.pid} on local was lost"):
            wait_until(lambda: crew.progress(0.1) is None)  # never true: what ended it is the loss
    finally:
        crew.close()
        worker.close()


def test_a_clock_that_moves_against_ours_is_said(engine: Running) -> None:
    class Moving(HostClock):
        def since(self, at_ns: int) -> list[ClockSample]:
            return [replace(sample, offset_ns=sample.offset_ns + 50_000_000) for sample in super().since(at_ns)]

    clock = Moving()
    moving = Fleet(lambda: RemoteWorker(LocalTransport(), ["python3"], clock), lambda: 1)
    with contextlib.closing(moving):
        warnings = measure(engine.url, moving).result.warnings
    assert any("moved by +50 ms" in warning for warning in warnings)


def test_the_hosts_python_needs_no_package_at_all(engine: Running) -> None:
    bare = Path("/usr/bin/python3")
    with contextlib.closing(host_fleet(LocalTransport(), (str(bare if bare.exists() else sys.executable),))) as host:
        measure(engine.url, host)
        argv = Path(f"/proc/{resting(host).pid}/cmdline").read_bytes().split(b"\0")
    assert argv[1:4] == [b"-E", b"-s", b"-S"]


def test_a_host_without_a_python_that_is_new_enough_is_said_with_what_was_found(tmp_path: Path) -> None:
    old = tmp_path / "python-old"
    old.write_text("#!/bin/sh\nprintf '/usr/bin/python3\\n4\\n3\\n8\\n'\n")
    old.chmod(0o755)
    with pytest.raises(StopStudy, match=r"Python 3\.10 or newer \(.*: 3\.8; /nowhere/python3: "):
        host_fleet(LocalTransport(), (str(old), "/nowhere/python3"))
