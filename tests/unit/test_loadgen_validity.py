from __future__ import annotations

import asyncio
import gc
import time
from dataclasses import replace

import pytest

from autotuner.loadgen.answers import ReadLog
from autotuner.loadgen.lanes import Exchange
from autotuner.loadgen.plan import CellPlan
from autotuner.loadgen.selfcheck import LoadCheck, SelfCheck, cpu_ticks
from autotuner.loadgen.validity import ClientLimits, client_report, relaxed

MS = 1_000_000
LIMITS = ClientLimits()
GOOD = LoadCheck(
    reads=100,
    lag_p50_ms=0.1,
    lag_p99_ms=1.0,
    lag_max_ms=2.0,
    cpu=0.3,
    steal=0.0,
    stalled=0.0,
    gc_pause_max_ms=0.0,
    clock_step_ms=0.01,
)


def test_a_client_that_kept_every_limit_is_valid_and_the_worst_worker_counts() -> None:
    lagging = replace(GOOD, reads=50, lag_p99_ms=4.0, cpu=0.5, clock_step_ms=-0.5)
    report = client_report("kernel", [GOOD, lagging], coalesced=0.0, limits=LIMITS)
    assert report.valid
    assert (report.reads, report.lag_p99_ms, report.cpu, report.clock_step_ms) == (150, 4.0, 0.5, -0.5)
    assert client_report("user", [], coalesced=0.0, limits=LIMITS).clock == "user"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lag_p99_ms": 10.1}, "waited 10.1 ms to be read"),
        ({"cpu": 0.9}, "used 90% of a core"),
        ({"steal": 0.06}, "hypervisor took 6.0%"),
        ({"gc_pause_max_ms": 6.0}, "garbage collection held the load generator for 6.0 ms"),
        ({"clock_step_ms": -3.0}, r"moved by -3.0 ms"),
    ],
)
def test_every_broken_limit_is_a_sentence_of_its_own(change: dict[str, float], said: str) -> None:
    report = client_report("kernel", [GOOD, replace(GOOD, **change)], coalesced=0.0, limits=LIMITS)
    assert not report.valid
    assert len(report.invalid) == 1
    assert said in report.invalid[0]
    assert client_report("kernel", [replace(GOOD, **change)], coalesced=0.0, limits=relaxed(LIMITS)).valid


def test_chunks_that_came_together_are_the_clients_fault_only_while_it_stood_still() -> None:
    halted = replace(GOOD, stalled=0.07)
    assert client_report("kernel", [GOOD], coalesced=0.5, limits=LIMITS).valid  # the server sends two at a time
    assert client_report("kernel", [halted], coalesced=0.0, limits=LIMITS).valid  # nothing came meanwhile
    report = client_report("kernel", [halted], coalesced=0.05, limits=LIMITS)
    assert "5.0% of the chunks were read together with a later one" in report.invalid[0]


def test_a_clock_that_is_set_breaks_relaxed_limits_too() -> None:
    assert not client_report("kernel", [replace(GOOD, clock_step_ms=500)], coalesced=0.0, limits=relaxed(LIMITS)).valid


def test_a_plan_holds_the_limits_and_relaxing_changes_nothing_else() -> None:
    plan = relaxed(CellPlan(window_s=9, seed=3, lag_p99_ms=1))
    assert (plan.window_s, plan.seed, plan.repeats) == (9, 3, 2)
    assert plan.lag_p99_ms > 100
    assert CellPlan().coalesced_share == 0.01


def logged(*lags_ms: float | None) -> Exchange:
    """An exchange with a read every 10 ms, each seen so late; ``None`` has no stamp of the kernel's."""
    log = ReadLog(sent_ns=0)
    for number, lag in enumerate(lags_ms, start=1):
        log.reads.append((number * 10 * MS, b"x"))
        log.seen.append(0 if lag is None else number * 10 * MS + round(lag * MS))
    return Exchange(0, 0, log)


def test_lag_is_from_the_stamp_to_the_read_over_the_window_alone() -> None:
    report = SelfCheck().report([logged(900, 1, 2, None, 3, 900)], 15 * MS, 55 * MS)
    assert report.reads == 4
    assert (report.lag_p50_ms, report.lag_p99_ms, report.lag_max_ms) == (2, 3, 3)
    assert SelfCheck().report([logged(None)], 0, 99 * MS).lag_p99_ms is None


def test_a_process_sees_its_own_halts_pauses_and_work() -> None:
    check = SelfCheck()

    async def life() -> tuple[int, int]:
        watching = asyncio.create_task(check.watch())
        await asyncio.sleep(0.05)
        begin_ns = time.monotonic_ns()
        time.sleep(0.2)  # noqa: ASYNC251 - the halt that is to be seen
        await asyncio.sleep(0.05)
        gc.collect()
        spin_until = time.process_time() + 0.1
        while time.process_time() < spin_until:
            pass
        await asyncio.sleep(0.05)
        end_ns = time.monotonic_ns()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        return begin_ns, end_ns

    begin_ns, end_ns = asyncio.run(life())
    report = check.report([], begin_ns, end_ns)
    length_s = (end_ns - begin_ns) / 1e9
    assert report.stalled * length_s >= 0.25  # the sleep and the spinning, less a tick each
    assert report.cpu * length_s >= 0.09
    assert report.gc_pause_max_ms > 0
    assert check._on_gc not in gc.callbacks
    before = check.report([], begin_ns - 40 * MS, begin_ns - 10 * MS)
    assert before.gc_pause_max_ms == 0


def test_a_clock_that_was_set_in_the_window_is_seen_by_how_far_and_which_way() -> None:
    check = SelfCheck()
    check._offsets = [(10 * MS, 5), (20 * MS, 5), (30 * MS, 5 - 7 * MS), (40 * MS, 5 - 7 * MS)]
    assert check.report([], 15 * MS, 35 * MS).clock_step_ms == -7
    assert check.report([], 32 * MS, 35 * MS).clock_step_ms == 0
    assert check.report([], 22 * MS, 25 * MS).clock_step_ms == -7  # by the next look at the latest


def test_stolen_time_is_a_share_of_all_time() -> None:
    check = SelfCheck()
    check._stolen, check._all = [(0, 0.0), (100 * MS, 5.0)], [(0, 0.0), (100 * MS, 50.0)]
    assert check.report([], 20 * MS, 80 * MS).steal == pytest.approx(0.1)
    assert SelfCheck().report([], 0, MS).steal is None
    ticks = cpu_ticks()
    assert ticks is None or 0 <= ticks[0] < ticks[1]
