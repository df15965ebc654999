"""What a scripted server sent, and what the measuring path says about it: counts exactly, times within one per cent and a millisecond."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from autotuner.engines.base import Counters
from autotuner.loadgen.plan import CellPlan
from autotuner.model.measurement import RequestRecord
from benchmarks.loadgen.figures import ACCEPTANCE, true_acceptance
from benchmarks.loadgen.handle import MockServer, Truth, mock_server
from benchmarks.loadgen.ours import Client, Measured
from benchmarks.loadgen.scenarios import SCENARIOS
from benchmarks.loadgen.scripts import WATERMARK_TOKENS

SCALE = 0.3
"""The scenarios run at this share of their times."""
RELATIVE, ABSOLUTE_S = 0.01, 0.001
HELD_UP = {"lag_p99_ms": 50.0, "coalesced_share": 0.25, "cpu_share": 2.0, "steal_share": 0.5, "gc_pause_ms": 50.0, "repeats": 1}
"""Medians of kernel stamps stand for more than this; a client that says that it was held up longer is not compared by its times."""
PLAN = CellPlan(window_s=0.2, warmup_s=0.0, max_window_s=4, settle_s=0.0, request_timeout_s=10, min_answers=2, details=True, **HELD_UP)
LOAD = CellPlan(window_s=1.0, warmup_s=0.6, max_window_s=4, settle_s=0.3, request_timeout_s=10, min_answers=2, **HELD_UP)


@pytest.fixture(scope="module")
def server() -> Iterator[MockServer]:
    with mock_server() as running:
        yield running


@pytest.fixture(scope="module")
def client(server: MockServer) -> Iterator[Client]:
    made = Client(server)
    yield made
    made.close()


def assert_all_are_there(found: Measured) -> None:
    """Every request since the first record is one record, and no record is invented."""
    pairs = found.pairs()
    assert len(pairs) == len(found.measurement.records)
    serials = [truth.serial for _, truth in pairs]
    assert len(set(serials)) == len(serials)
    first = min(truth.serial for _, truth in pairs)
    assert {truth.serial for truth in found.truths if truth.serial >= first and truth.outcome == "sent"} <= set(serials)


def counted_by_answers(truth: Truth) -> bool:
    return not truth.model.startswith("vllm-silent")


def assert_counts(record: RequestRecord, truth: Truth, *, error: str | None, counted: bool) -> None:
    sent = [n for _, _, n in truth.chunks]
    got = [n for _, n in record.chunks]
    if record.end_s is None:
        assert record.error is None
        assert got == sent[: len(got)] if counted else len(got) <= len(sent)
        return
    assert record.error == error, record.detail
    assert record.valid == (error is None)
    assert len(got) == len(sent)
    if counted:
        assert got == sent
    if error is None:
        assert record.completion_tokens == truth.tokens
        assert got[-1] == truth.tokens
        assert record.prompt_tokens == truth.prompt_tokens
        assert (record.cached_tokens or 0) == truth.cached_tokens
        if truth.verify_steps and counted_by_answers(truth):
            assert record.verify_steps == truth.verify_steps
        assert record.finish_reason == (truth.finish_reason or "length")


def assert_times(found: Measured, pairs: Sequence[tuple[RequestRecord, Truth]]) -> None:
    """Compare with when the server sent. Medians: a machine that takes the processor away for some milliseconds is no error of ours."""
    report = found.measurement.result.client
    if report is not None and report.invalid:
        pytest.skip(f"times not compared, counts were: the client says that it was held up: {'; '.join(report.invalid)}")
    assert report is None or report.clock == "kernel"
    assert abs(statistics.median(found.chunk_errors_us())) < ABSOLUTE_S * 1e6
    ended = [(record, truth) for record, truth in pairs if record.end_s is not None and truth.chunks]
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        both = [(getattr(record, name), getattr(truth, name)) for record, truth in ended]
        measured, true = statistics.median(mine for mine, _ in both), statistics.median(theirs for _, theirs in both)
        # A millisecond in all is little of it for each token.
        tolerance_s = ABSOLUTE_S / max(truth.tokens for _, truth in ended) if name == "tpot_s" else ABSOLUTE_S
        assert measured == pytest.approx(true, rel=RELATIVE, abs=tolerance_s), name


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_is_seen_as_it_was_sent(client: Client, name: str) -> None:
    scenario = SCENARIOS[name]
    found = client.measure(f"{name}@{SCALE}", PLAN)
    pairs = found.pairs()
    assert_all_are_there(found)
    for record, truth in pairs:
        assert_counts(record, truth, error=scenario.error, counted=scenario.counted)
    ended = [record for record, _ in pairs if record.end_s is not None]
    result = found.measurement.result
    assert len(ended) >= 2
    if scenario.error is None:
        assert result.failed == 0
        assert result.errors == {}
        assert result.requests >= 2
    else:
        assert result.requests == 0
        assert set(result.errors) == {scenario.error}
        assert result.failed == result.errors[scenario.error]
    if any(truth.chunks for _, truth in pairs):
        assert_times(found, pairs)


@pytest.mark.parametrize("mode", ["lockstep", "staggered"])
def test_many_streams_are_seen_chunk_by_chunk(client: Client, mode: str) -> None:
    found = client.measure(f"{mode}:20", LOAD, concurrency=64, output_tokens=WATERMARK_TOKENS + 12)
    pairs = found.pairs()
    assert_all_are_there(found)
    assert {record.lane for record, _ in pairs} == set(range(64))
    for record, truth in pairs:
        assert_counts(record, truth, error=None, counted=True)
    assert found.measurement.result.failed == 0
    assert_times(found, pairs)


@pytest.mark.parametrize(("name", "source", "counters"), ACCEPTANCE, ids=lambda value: value if isinstance(value, str) else "")
def test_tokens_per_step_are_the_scripted_ones_over_a_window_of_few_steps(
    server: MockServer, client: Client, name: str, source: str, counters: Callable[[str], Counters] | None
) -> None:
    told_by = None if counters is None else lambda: counters(server.metrics())
    found = client.measure(f"{name}@{SCALE}", replace(PLAN, details=counters is None), counters=told_by)
    whole = next(truth for truth in found.truths if truth.outcome == "sent")
    assert (whole.verify_steps or 0) < 40, "engines bring their averages up to date every 40 steps"
    result = found.measurement.result
    assert result.metrics["acceptance_length"] == pytest.approx(true_acceptance(name, whole), rel=1e-9)
    assert result.server is not None
    assert result.server.acceptance_source == {"answers": "requests"}.get(source, source)
