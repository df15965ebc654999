from __future__ import annotations

import pytest

from autotuner.loadgen.lanes import Pace, Progress
from autotuner.loadgen.plan import CellPlan
from autotuner.loadgen.steering import Steering

PLAN = CellPlan(window_s=4, warmup_s=1.5, max_window_s=10, max_warmup_s=20, settle_s=3, min_answers=3)
S = 1_000_000_000


def drive(steering: Steering, until_s: float, progress_at: object) -> None:
    """Observe every 50 ms."""
    for step in range(round(until_s * 20)):
        steering.observe(step * S // 20, progress_at(step / 20))  # type: ignore[operator]


def test_the_window_waits_for_every_lane_and_grows_until_enough_answers_ended() -> None:
    steering = Steering(PLAN, concurrency=8, domains=5, begin_ns=0)
    drive(steering, 20, lambda s: Progress(first=8 if s >= 3 else 7, answered=int(s), reads=int(s * 1000)))
    assert steering.window_begin_ns == pytest.approx(3 * S, abs=S / 10)
    assert steering.window_end_ns == pytest.approx(11 * S, abs=S / 10)  # 8 answers at one a second
    assert steering.warnings == []


def test_a_rate_that_still_moves_delays_the_window_but_not_forever() -> None:
    steering = Steering(PLAN, concurrency=8, domains=5, begin_ns=0)
    drive(steering, 10, lambda s: Progress(first=8, reads=int(100 * 2 ** (2 * s))))
    assert steering.window_begin_ns == pytest.approx(4.5 * S, abs=S / 10)


def test_the_window_is_capped_and_says_when_few_answers_ended() -> None:
    steering = Steering(PLAN, concurrency=8, domains=5, begin_ns=0)
    drive(steering, 60, lambda s: Progress(first=8, reads=int(s * 1000), answered=1 if s > 5 else 0))
    assert steering.window_begin_ns is not None
    assert steering.window_end_ns is not None
    assert steering.window_end_ns - steering.window_begin_ns == pytest.approx(10 * S, abs=S / 10)
    assert any("only 1 answers" in warning for warning in steering.warnings)


def halting(*halts: tuple[float, float]) -> object:
    """1000 reads a second, none while halted."""

    def progress(s: float) -> Progress:
        running = s - sum(max(0.0, min(s, end) - begin) for begin, end in halts)
        return Progress(first=8, answered=int(running * 8), reads=int(running * 1000))

    return progress


def test_a_stall_for_compilation_is_left_out_of_the_window_and_said() -> None:
    steering = Steering(PLAN, concurrency=8, domains=5, begin_ns=0)
    drive(steering, 20, halting((2.0, 2.6)))
    assert steering.window_begin_ns is not None
    assert 2.6 * S <= steering.window_begin_ns <= 3.1 * S
    assert steering.window_end_ns == pytest.approx(steering.window_begin_ns + 4 * S, abs=S / 10)
    assert any("stalled for" in warning for warning in steering.warnings)


def test_a_stall_right_after_the_window_was_opened_is_seen_although_nobody_looked_meanwhile() -> None:
    steering = Steering(PLAN, concurrency=8, domains=5, begin_ns=0)
    progress = halting((1.5, 2.0))
    for step in range(20 * 20):
        if not 1.5 < step / 20 < 2.0:  # reading the counters took that long
            steering.observe(step * S // 20, progress(step / 20))  # type: ignore[operator]
    assert steering.window_begin_ns is not None
    assert steering.window_begin_ns >= 1.9 * S
    assert any("stalled for" in warning for warning in steering.warnings)


def test_a_server_that_stalls_again_and_again_is_measured_with_its_stalls() -> None:
    steering = Steering(PLAN, concurrency=8, domains=5, begin_ns=0)
    drive(steering, 40, halting(*[(2.0 + 3 * n, 2.8 + 3 * n) for n in range(12)]))
    assert steering.window_begin_ns is not None
    assert steering.window_end_ns is not None
    assert steering.window_end_ns < 20 * S


def test_lanes_that_never_get_a_token_do_not_hold_the_cell_up() -> None:
    steering = Steering(PLAN, concurrency=8, domains=5, begin_ns=0)
    drive(steering, 40, lambda s: Progress(first=6, reads=int(s * 1000), answered=int(s)))
    assert steering.window_begin_ns == 20 * S
    assert any("2 of 8 lanes" in warning for warning in steering.warnings)


def test_one_lane_begins_and_ends_where_an_answer_ends() -> None:
    steering = Steering(PLAN, concurrency=1, domains=2, begin_ns=0)
    drive(steering, 30, lambda s: Progress(first=1, answered=int(s / 0.7), reads=1, last_end_ns=int(s / 0.7) * 7 * S // 10))
    assert steering.window_begin_ns == pytest.approx(2.1 * S)
    assert steering.window_end_ns == pytest.approx(6.3 * S)


def test_a_slow_single_lane_waits_for_its_first_answer_beyond_the_cap() -> None:
    steering = Steering(PLAN, concurrency=1, domains=2, begin_ns=0)

    def progress(s: float) -> Progress:
        ended = [t for t in (1, 2, 24) if t <= s]
        return Progress(first=1, answered=len(ended), last_end_ns=(ended or [0])[-1] * S)

    drive(steering, 40, progress)
    assert (steering.window_begin_ns, steering.window_end_ns) == (2 * S, 24 * S)


def test_dead_lanes_end_the_cell_at_once() -> None:
    steering = Steering(PLAN, concurrency=8, domains=5, begin_ns=5)
    steering.observe(S, Progress(failed=24, dead=8))
    assert (steering.window_begin_ns, steering.window_end_ns) == (5, S)


def test_warm_up_answers_have_different_lengths_and_measured_ones_do_not() -> None:
    pace = Pace(lanes=tuple(range(8)), concurrency=8, output_tokens=512, warmup_s=1.5, begin_ns=0)
    assert [pace.limit(lane, S) for lane in range(8)] == [32, 64, 128, 192, 256, 320, 384, 448]
    assert {pace.limit(lane, 2 * S) for lane in range(8)} == {512}
    assert [pace.start_delay_s(lane) for lane in (0, 4)] == [0, 0.375]


def test_the_caps_follow_the_window_and_the_warm_up_unless_given() -> None:
    assert (CellPlan(window_s=0.5, warmup_s=0.2).longest_window_s, CellPlan(warmup_s=0.5).longest_warmup_s) == (2, 1.5)
    given = CellPlan(window_s=6, max_window_s=5, warmup_s=1, settle_s=0)
    assert (given.longest_window_s, given.longest_warmup_s) == (6, 1)
