from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner.decide.cells import Window, derive, tokens_until
from autotuner.decide.statistics import percentile
from autotuner.model.measurement import METRICS, RequestRecord
from autotuner.model.workload import Cell

CELL = Cell(context=60, concurrency=2, output_tokens=20)


@dataclass(frozen=True)
class Count:
    generation_tokens: float | None = None
    verify_steps: float | None = None
    retractions: float | None = None
    drafted_tokens: float | None = None
    accepted_tokens: float | None = None


def record(
    start: float,
    *,
    first: float,
    step: float = 0.1,
    chunks: int = 10,
    per_chunk: int = 2,
    index: int = 0,
    ended: bool = True,
    **more: object,
) -> RequestRecord:
    """A request whose chunks of ``per_chunk`` tokens come at ``first``, ``first + step`` …"""
    times = tuple((first + step * number, per_chunk * (number + 1)) for number in range(chunks))
    values: dict[str, object] = {
        "index": index,
        "lane": 0,
        "domain": "code",
        "start_s": start,
        "chunks": times,
        "end_s": times[-1][0] + 0.05 if ended else None,
        "prompt_tokens": 60,
        "completion_tokens": per_chunk * chunks if ended else None,
        "finish_reason": "length" if ended else None,
    }
    return RequestRecord(**{**values, **more})  # type: ignore[arg-type]


def test_metrics_of_a_scripted_cell_are_exact() -> None:
    # Decoding at 20 tok/s each; one answer wholly inside, one cut by either edge.
    records = [
        record(0.0, first=0.5, index=0),  # chunks 0.5 … 1.4: 2 … 20 tokens
        record(1.5, first=1.8, index=1),  # 1.8 … 2.7
        record(2.8, first=3.0, index=2, ended=False),  # 3.0 … 3.9
    ]
    result = derive(CELL, records, Window(1.0, 3.5))
    # at 1.0 the first has 12 of 20; the second has 20; the third has 12 at 3.5
    assert result.metrics["output_tok_s"] == pytest.approx((8 + 20 + 12) / 2.5)
    assert result.metrics["user_tok_s"] == pytest.approx((18 + 18) / (0.9 + 0.9))
    assert result.metrics["ttft_p50_ms"] == pytest.approx(250)  # 300 and 200: the first one's token came before the window
    assert result.metrics["tpot_p50_ms"] == pytest.approx(50)
    assert result.metrics["e2e_p50_ms"] == pytest.approx((1400 + 1200) / 2)
    assert (result.requests, result.failed, result.window_s) == (3, 0, 2.5)
    assert sum(result.batch_means) / len(result.batch_means) == pytest.approx(16)
    assert len(result.batch_means) == 3
    assert set(result.metrics) <= set(METRICS)
    assert result.prompt_tokens_p50 == 60


def test_tokens_are_interpolated_between_chunks_but_not_before_the_first() -> None:
    one = record(0, first=1.0, step=0.5, chunks=3, per_chunk=4)
    assert [tokens_until(one, at) for at in (0.99, 1.0, 1.25, 1.5, 9)] == [0, 4, 6, 8, 12]


def test_the_first_chunks_real_tokens_are_left_out_of_tpot() -> None:
    one = record(0, first=1.0, step=0.1, chunks=2, per_chunk=8)
    result = derive(CELL, [one], Window(0.5, 2))
    assert result.metrics["tpot_p50_ms"] == pytest.approx(100 / 8)


def test_user_rate_is_weighted_by_tokens() -> None:
    fast = record(1.0, first=1.1, step=0.01, chunks=10, per_chunk=1)
    slow = record(1.0, first=1.1, step=0.1, chunks=11, per_chunk=1)
    result = derive(CELL, [fast, slow], Window(1, 4))
    assert result.metrics["user_tok_s"] == pytest.approx((9 + 10) / (0.09 + 1.0))


def test_percentiles_need_enough_samples() -> None:
    few = derive(CELL, [record(0, first=1.1 + i / 100, index=i) for i in range(19)], Window(1, 4))
    assert "ttft_p95_ms" not in few.metrics
    assert any("95th percentile" in warning for warning in few.warnings)
    enough = derive(CELL, [record(0, first=1.0 + i / 100, index=i) for i in range(1, 21)], Window(1, 4))
    assert enough.metrics["ttft_p95_ms"] == pytest.approx(1190.5)
    assert enough.metrics["ttft_p50_ms"] == pytest.approx(1105)
    assert not any("95th" in warning for warning in enough.warnings)


def test_answers_shortened_for_the_warm_up_have_no_end_to_end_time() -> None:
    short = record(0.5, first=0.6, chunks=5)
    natural = record(0.5, first=0.6, chunks=5, finish_reason="stop")
    assert "e2e_p50_ms" not in derive(CELL, [short], Window(0.5, 3)).metrics
    assert derive(CELL, [natural], Window(0.5, 3)).metrics["e2e_p50_ms"] == pytest.approx(500)


def test_failures_are_counted_by_name_and_take_no_part_in_latencies() -> None:
    good = record(1, first=1.2)
    broken = record(1, first=1.9, error="in-band", completion_tokens=None)
    refused = record(1.5, first=1.6, chunks=1, error="connection", completion_tokens=None)
    early = record(0, first=0.1, error="http-500")
    result = derive(CELL, [good, broken, refused, early], Window(1.05, 4))
    assert (result.requests, result.failed) == (1, 2)
    assert result.errors == {"in-band": 1, "connection": 1}
    assert result.metrics["tpot_p50_ms"] == pytest.approx(50)
    assert any("2 of 3 requests failed" in warning for warning in result.warnings)


def test_when_everything_that_ended_failed_nothing_was_measured() -> None:
    failed = [record(1, first=1.2, error="in-band", index=i, completion_tokens=None) for i in range(3)]
    flying = record(3.5, first=3.6, ended=False)
    assert derive(CELL, [*failed, flying], Window(1, 4)).requests == 0
    assert derive(CELL, [flying], Window(1, 4)).requests == 1
    nothing = derive(CELL, [], Window(1, 4))
    assert (nothing.requests, nothing.metrics) == (0, {})


def test_acceptance_is_what_answers_say_of_themselves_before_it_is_a_ratio_of_changes() -> None:
    told = [record(1, first=1.2, verify_steps=8), record(1, first=1.2, verify_steps=2)]
    both = derive(CELL, told, Window(1, 4), before=Count(1000, 400), after=Count(1600, 600))
    assert both.acceptance_length == 4
    assert both.server is not None
    assert both.server.acceptance_source == "requests"
    counted = derive(CELL, [record(1, first=1.2)], Window(1, 4), before=Count(1000, 400), after=Count(1600, 600))
    assert counted.acceptance_length == 3
    assert counted.server is not None
    assert counted.server.acceptance_source == "counters"
    still = derive(CELL, [record(1, first=1.2)], Window(1, 4), before=Count(0, 0), after=Count(60, 0))
    assert (still.acceptance_length, still.server) == (None, None)
    impossible = derive(CELL, [], Window(1, 4), before=Count(0, 0), after=Count(10, 30))
    assert impossible.acceptance_length is None
    assert any("cannot be" in warning for warning in impossible.warnings)


def test_doubts_are_said() -> None:
    odd = record(1, first=1.2, prompt_tokens=67, cached_tokens=60)
    hungry = RequestRecord(index=1, lane=1, domain="code", start_s=0.5)
    result = derive(CELL, [odd, hungry], Window(1, 4), before=Count(retractions=1), after=Count(retractions=3), warnings=["of its own"])
    text = "\n".join(result.warnings)
    assert "of its own" in text
    assert "1 of 1 prompts have not the 60 tokens of their context, but 67" in text
    assert "prefix cache" in text
    assert "retracted 2" in text
    assert "1 requests waited through the whole window" in text
    near = derive(CELL, [record(1, first=1.2, prompt_tokens=62)], Window(1, 4))
    assert not any("of their context" in warning for warning in near.warnings)


def stream(rate: float, drift: float, rng: random.Random) -> RequestRecord:
    """Eight seconds of chunks whose size drifts and wobbles."""
    total, chunks = 0.0, []
    for number in range(800):
        total += rate / 100 * (1 + drift * number / 800) * rng.uniform(0.8, 1.2)
        chunks.append((number / 100, round(total)))
    return RequestRecord(index=0, lane=0, domain="code", start_s=-1, chunks=tuple(chunks))


def test_a_trend_is_not_steady_and_noise_is() -> None:
    rng = random.Random(5)
    assert not derive(CELL, [stream(1000, 0.5, rng)], Window(0, 7.9)).steady
    assert all(derive(CELL, [stream(1000, 0.0, rng)], Window(0, 7.9)).steady for _ in range(20))


def test_a_window_with_a_stall_is_not_steady() -> None:
    steady = RequestRecord(index=0, lane=0, domain="code", start_s=-1, chunks=tuple((n / 100, n * 10) for n in range(800)))
    assert derive(CELL, [steady], Window(0, 7.9)).steady
    halted = RequestRecord(
        index=0, lane=0, domain="code", start_s=-1, chunks=tuple((n / 100 + (1.0 if n > 300 else 0.0), n * 10) for n in range(800))
    )
    assert not derive(CELL, [halted], Window(0, 7.9)).steady


@given(st.lists(st.floats(0.001, 1), min_size=2, max_size=30), st.floats(0, 20), st.floats(0.1, 10))
def test_tokens_of_adjacent_windows_add_up(gaps: list[float], begin: float, length: float) -> None:
    times, at = [], 0.0
    for number, gap in enumerate(gaps):
        at += gap
        times.append((at, 3 * (number + 1)))
    one = RequestRecord(index=0, lane=0, domain="code", start_s=0, chunks=tuple(times))
    whole = Window(begin, begin + length)
    parts = [tokens_until(one, part.end_s) - tokens_until(one, part.begin_s) for part in whole.slices()]
    assert sum(parts) == pytest.approx(tokens_until(one, whole.end_s) - tokens_until(one, whole.begin_s), abs=1e-6)
    assert all(part >= 0 for part in parts)


def test_percentile_is_linear_between_neighbours() -> None:
    assert [percentile([1, 2, 3, 4], percent) for percent in (0, 50, 95, 100)] == pytest.approx([1, 2.5, 3.85, 4])
    assert percentile([7], 95) == 7
