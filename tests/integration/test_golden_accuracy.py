"""What a scripted server sent, and what the measuring path says about it: counts exactly, times within one per cent and a millisecond."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

import pytest

from autotuner.engines.sglang.metrics import counters
from autotuner.loadgen.plan import CellPlan
from autotuner.model.measurement import RequestRecord
from benchmarks.loadgen.handle import MockServer, Truth, mock_server
from benchmarks.loadgen.ours import Client, Measured
from benchmarks.loadgen.scenarios import SCENARIOS
from benchmarks.loadgen.scripts import WATERMARK_TOKENS

SCALE = 0.3
"""The scenarios run at this share of their times."""
RELATIVE, ABSOLUTE_S = 0.01, 0.001
PLAN = CellPlan(window_s=0.2, warmup_s=0.0, max_window_s=4, settle_s=0.0, request_timeout_s=10, min_answers=2)
LOAD = CellPlan(window_s=1.0, warmup_s=0.6, max_window_s=4, settle_s=0.3, request_timeout_s=10, min_answers=2)


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
    alone = found.measurement.result.concurrency == 1
    assert len(pairs) == sum(alone or bool(record.chunks) for record in found.measurement.records)
    serials = [truth.serial for _, truth in pairs]
    assert len(set(serials)) == len(serials)
    first = min(truth.serial for _, truth in pairs)
    assert {truth.serial for truth in found.truths if truth.serial >= first and truth.outcome == "sent"} <= set(serials)


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
        assert record.finish_reason == (truth.finish_reason or "length")


def assert_times(found: Measured, pairs: Sequence[tuple[RequestRecord, Truth]]) -> None:
    """Compare with when the server sent. Medians: a machine that takes the processor away for some milliseconds is no error of ours."""
    report = found.measurement.result.client
    if report is not None and report.invalid:
        pytest.skip(f"times not compared, counts were: the client says that it was held up: {'; '.join(report.invalid)}")
    assert report is None or report.clock == "kernel"
    errors_us = sorted(abs(error) for error in found.chunk_errors_us())
    assert statistics.median(errors_us) < ABSOLUTE_S * 1e6
    ended = [(record, truth) for record, truth in pairs if record.end_s is not None and truth.chunks]
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        both = [(getattr(record, name), getattr(truth, name)) for record, truth in ended]
        measured, true = statistics.median(mine for mine, _ in both), statistics.median(theirs for _, theirs in both)
        assert measured == pytest.approx(true, rel=RELATIVE, abs=ABSOLUTE_S), name


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


def test_tokens_per_step_are_the_scripted_ones_from_counters_over_a_window_of_few_steps(server: MockServer, client: Client) -> None:
    plan = CellPlan(window_s=0.2, warmup_s=0.0, max_window_s=2, settle_s=0.0, min_answers=2)
    found = client.measure(f"sglang-spec@{SCALE}", plan, counters=lambda: counters(server.metrics()))
    whole = [truth for truth in found.truths if truth.outcome == "sent"]
    assert sum(truth.verify_steps or 0 for truth in whole) < 200
    assert found.measurement.result.metrics["acceptance_length"] == pytest.approx(whole[0].tokens / (whole[0].verify_steps or 1), rel=1e-9)
