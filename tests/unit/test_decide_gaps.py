from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner.decide.cells import coalesced_share
from autotuner.decide.gaps import gap_metrics, gaps_of
from autotuner.decide.goodput import goodput
from autotuner.decide.window import Window
from autotuner.model.measurement import METRICS, RequestRecord
from autotuner.model.workload import Slo

ALL = Window(0, 1000)


def record(*chunks: tuple[float, int], **more: object) -> RequestRecord:
    values: dict[str, object] = {"index": 0, "lane": 0, "domain": "code", "start_s": 0.0, "chunks": chunks}
    return RequestRecord(**{**values, **more})  # type: ignore[arg-type]


def test_a_gap_counts_once_between_chunks_and_once_for_every_token_that_it_took() -> None:
    # 100 ms for one token, then 300 ms for three: the token's own time is 100 ms throughout.
    gaps = gaps_of([record((1.0, 2), (1.1, 3), (1.4, 6))], ALL)
    assert gaps.chunk_ms == pytest.approx([100, 300])
    metrics = gap_metrics(gaps)
    assert metrics["itl_p50_ms"] == pytest.approx(100)
    assert metrics["icl_p50_ms"] == pytest.approx(200)
    assert metrics["tokens_per_chunk"] == 2
    assert set(metrics) <= set(METRICS)


def test_itl_weighs_by_tokens() -> None:
    # One slow gap of a single token among quick ones of nine tokens each.
    gaps = gaps_of([record((1.0, 1), (1.5, 2), (1.59, 11))], ALL)
    assert gap_metrics(gaps)["itl_p50_ms"] == pytest.approx(10)


def test_chunks_that_were_read_together_give_no_gap_between_chunks_and_all_of_their_tokens() -> None:
    one = record((1.0, 1), (1.1, 2), (1.3, 3), (1.3, 4), (1.4, 5))
    gaps = gaps_of([one], ALL)
    assert gaps.chunk_ms == pytest.approx([100, 100])  # neither the 200 ms into the pair nor the 0 ms within it
    assert sum(tokens for _, tokens in gaps.token_ms) == 4
    assert sum(ms * tokens for ms, tokens in gaps.token_ms) == pytest.approx(400)
    assert coalesced_share([one], ALL) == pytest.approx(1 / 5)


def test_only_gaps_that_end_in_the_window_count() -> None:
    assert gaps_of([record((1.0, 1), (2.0, 2), (3.0, 3))], Window(2.5, 9)).chunk_ms == pytest.approx([1000])


def test_a_chunk_without_a_new_token_ends_a_gap_and_takes_no_time_from_the_next_token() -> None:
    gaps = gaps_of([record((1.0, 1), (1.1, 1), (1.3, 2))], ALL)
    assert gaps.chunk_ms == pytest.approx([100, 200])
    assert gaps.token_ms == [(pytest.approx(300), 1)]


def test_a_99th_percentile_of_gaps_needs_662_of_them_and_brings_its_bound() -> None:
    def metrics(count: int) -> dict[str, float]:
        return gap_metrics(gaps_of([record(*((number / 100, number + 1) for number in range(count + 1)))], ALL))

    assert {"icl_p99_ms", "itl_p99_ms"}.isdisjoint(metrics(661))
    enough = metrics(662)
    assert enough["icl_p99_ms"] <= enough["icl_p99_bound_ms"]
    assert enough["itl_p99_ms"] <= enough["itl_p99_bound_ms"]


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(0, 5)), min_size=1, max_size=40))
def test_the_tokens_own_times_add_up_to_the_time_between_first_and_last_token(steps: list[tuple[float, int]]) -> None:
    at, tokens, chunks = 1.0, 1, [(1.0, 1)]
    for gap, grown in steps:
        at, tokens = at + gap, tokens + grown
        chunks.append((at, tokens))
    last = max((chunk for chunk in chunks), key=lambda chunk: (chunk[1], -chunk[0]))
    gaps = gaps_of([record(*chunks)], ALL)
    total = sum(ms * count for ms, count in gaps.token_ms)
    # Tokens that came with the first chunk, or at its very time, are told by no gap.
    assert total <= (at - 1.0) * 1000 + 1e-6
    if last[1] > 1 and last[0] > 1.0:
        assert total == pytest.approx((last[0] - 1.0) * 1000, abs=1e-6)


def answered(start: float, *, ttft: float, error: str | None = None) -> RequestRecord:
    end = start + ttft + 0.5
    return record((start + ttft, 1), (end, 11), start_s=start, end_s=end, completion_tokens=11, error=error)


def test_goodput_is_what_kept_every_limit_and_failures_kept_none() -> None:
    limits = [Slo(metric="ttft_p95_ms", limit=200), Slo(metric="tpot_p50_ms", limit=60)]
    records = [answered(1, ttft=0.1), answered(2, ttft=0.15), answered(3, ttft=0.4), answered(4, ttft=0.1, error="in-band")]
    found = goodput(records, Window(0, 8), limits)
    assert found["goodput"] == pytest.approx(2 / 8)
    assert found["slo_share"] == pytest.approx(0.5)
    assert 0 < found["slo_share_low"] < 0.5 < found["slo_share_high"] < 1
    slower = goodput(records, Window(0, 8), [*limits, Slo(metric="user_tok_s", limit=21)])
    assert slower["goodput"] == 0
    assert goodput(records, Window(0, 8), [Slo(metric="user_tok_s", limit=19)])["slo_share"] == pytest.approx(0.75)
    assert set(found) <= set(METRICS)


def test_goodput_says_nothing_without_a_limit_that_one_request_can_keep() -> None:
    assert goodput([answered(1, ttft=0.1)], Window(0, 8), []) == {}
    assert goodput([answered(1, ttft=0.1)], Window(0, 8), [Slo(metric="output_tok_s", limit=1)]) == {}
    assert goodput([], Window(0, 8), [Slo(metric="e2e_p50_ms", limit=1)]) == {}
