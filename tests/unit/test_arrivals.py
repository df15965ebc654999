from __future__ import annotations

import statistics
from itertools import islice, pairwise

import pytest

from autotuner.decide.openloop import judged, open_loop_report
from autotuner.decide.window import Window
from autotuner.errors import UsageError
from autotuner.loadgen.arrivals import Arrivals
from autotuner.loadgen.lanes import Progress
from autotuner.loadgen.open_loop import LEAD_S
from autotuner.loadgen.open_steering import OpenSteering
from autotuner.loadgen.plan import CellPlan
from autotuner.model.measurement import CellResult, ClientReport, RequestRecord

CLIENT = ClientReport(
    clock="kernel", reads=1, lag_p50_ms=0, lag_p99_ms=0, lag_max_ms=0, coalesced=0, cpu=0, steal=0, gc_pause_max_ms=0, clock_step_ms=0
)
RESULT = CellResult(key="k", context=60, concurrency=64, output_tokens=8, metrics={}, window_s=10, requests=1, steady=False, client=CLIENT)


def test_poisson_arrivals_have_the_rate_and_the_spread_of_their_law() -> None:
    times = list(islice(Arrivals(kind="poisson", rate=5).times(3), 20_000))
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert statistics.fmean(gaps) == pytest.approx(0.2, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(0.2, rel=0.03)


def test_arrivals_are_the_same_for_the_same_seed_however_many_workers_share_them() -> None:
    arrivals = Arrivals(kind="poisson", rate=7)
    whole = list(islice(enumerate(arrivals.times(1)), 90))
    parts = [list(islice(arrivals.part(1, first, 3), 30)) for first in range(3)]
    assert sorted(pair for part in parts for pair in part) == whole
    assert list(islice(arrivals.times(2), 5)) != [at for _, at in whole[:5]]


def test_fixed_arrivals_do_not_drift() -> None:
    *_, last = islice(Arrivals(kind="fixed", rate=3).times(0), 300_001)
    assert last == 100_000.0


def test_a_replay_ends() -> None:
    arrivals = Arrivals(kind="replay", offsets_s=(0.0, 0.5, 0.5, 2.0))
    assert list(arrivals.part(0, 1, 2)) == [(1, 0.5), (3, 2.0)]
    assert (arrivals.count, arrivals.last_s, arrivals.mean_rate) == (4, 2.0, 2.0)


@pytest.mark.parametrize("rate", [None, 0, -1, float("nan"), float("inf"), 1e9])
def test_a_rate_that_cannot_be_driven_is_refused(rate: float | None) -> None:
    with pytest.raises(UsageError, match="arrival rate"):
        Arrivals(kind="poisson", rate=rate)


@pytest.mark.parametrize("offsets", [(), (-1.0, 0.0), (1.0, 0.5)])
def test_arrival_times_that_go_back_are_refused(offsets: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="in order"):
        Arrivals(kind="replay", offsets_s=offsets)


def request(due: float, took: float | None, late: float = 0.0, held: float = 0.0) -> RequestRecord:
    end = None if took is None else due + took
    chunks = () if end is None else ((end, 8),)
    return RequestRecord(
        index=0, lane=0, domain="code", start_s=due, sent_s=due + held + late, held_s=held, chunks=chunks, end_s=end, completion_tokens=8
    )


def test_a_server_that_keeps_up_is_steady_whatever_its_rate_does() -> None:
    records = [request(at / 4, 1.0, late=0.001) for at in range(110)]
    report = open_loop_report(records, Window(5, 25))
    assert (report.due, report.offered_rate, report.held, report.growing) == (80, 4.0, 0, False)
    assert report.late_p99_ms == pytest.approx(1.0)
    assert judged(RESULT, report, late_limit_ms=10, max_in_flight=64).steady


def test_a_backlog_that_grows_is_not_steady() -> None:
    records = [request(at / 4, 1.0 + at / 8) for at in range(100)]
    report = open_loop_report(records, Window(0, 25))
    result = judged(RESULT, report, late_limit_ms=10, max_in_flight=64)
    assert not result.steady
    assert any(warning.startswith("not steady: the backlog grew") for warning in result.warnings)


def test_requests_that_were_never_sent_are_part_of_the_backlog() -> None:
    waiting = [RequestRecord(index=at, lane=0, domain="code", start_s=at / 4) for at in range(100)]
    assert open_loop_report(waiting, Window(0, 25)).growing


def test_a_client_that_sends_late_makes_its_cell_invalid_and_a_full_house_does_not() -> None:
    late = judged(RESULT, open_loop_report([request(1, 0.5, late=0.02)], Window(0, 2)), late_limit_ms=10, max_in_flight=64)
    assert late.client is not None
    assert not late.client.valid
    held = judged(RESULT, open_loop_report([request(1, 0.5, held=0.7)], Window(0, 2)), late_limit_ms=10, max_in_flight=64)
    assert held.client is not None
    assert held.client.valid
    assert any("1 of 1 requests waited up to 700 ms for a place: 64 were in flight" in warning for warning in held.warnings)


def steering(arrivals: Arrivals, *, window_s: float = 4) -> OpenSteering:
    plan = CellPlan(window_s=window_s, warmup_s=1, request_timeout_s=30)
    return OpenSteering(plan, arrivals, workers=1, begin_ns=0)


def test_the_window_of_an_open_loop_has_its_length_whatever_the_server_does() -> None:
    follow = steering(Arrivals(kind="fixed", rate=5))
    for tick in range(200):
        follow.observe(tick * 50_000_000, Progress())
        if follow.window_end_ns is not None:
            break
    assert follow.window_begin_ns == pytest.approx((LEAD_S + 1) * 1e9, abs=50_000_000)
    assert follow.window_end_ns == pytest.approx((LEAD_S + 5) * 1e9, abs=100_000_000)


def test_a_replay_goes_on_until_its_last_request_has_ended() -> None:
    follow = steering(Arrivals(kind="replay", offsets_s=(0.0, 1.0)))
    follow.observe(0, Progress())
    follow.observe(20_000_000_000, Progress(answered=1))
    assert follow.window_end_ns is None
    follow.observe(21_000_000_000, Progress(answered=1, failed=1))
    assert follow.window_end_ns == 21_000_000_000
    assert not follow.warnings


def test_a_replay_whose_server_hangs_comes_to_an_end_and_says_so() -> None:
    follow = steering(Arrivals(kind="replay", offsets_s=(0.0, 1.0)))
    follow.observe(0, Progress())
    follow.observe(32_000_000_000, Progress(answered=1))
    assert follow.window_end_ns is not None
    assert "1 of 2 requests had not ended" in follow.warnings[0]


def test_a_server_that_answers_nothing_any_more_cuts_the_cell_short() -> None:
    follow = steering(Arrivals(kind="fixed", rate=5))
    follow.observe(100, Progress(dead=1))
    assert follow.window_end_ns == 100
    assert "cut short" in follow.warnings[0]
