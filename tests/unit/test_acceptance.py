from __future__ import annotations

import dataclasses

import pytest

from autotuner.decide.acceptance import Acceptance, acceptance
from autotuner.decide.serverside import with_server
from autotuner.engines.base import Counters
from autotuner.model.measurement import METRICS, CellResult, GpuReport, RequestRecord, ServerReport


def told(**values: int | None) -> RequestRecord:
    return RequestRecord(index=0, lane=0, domain="code", start_s=0.0, **values)  # type: ignore[arg-type]


def test_answers_are_weighted_by_their_tokens() -> None:
    ended = [told(completion_tokens=400, verify_steps=100), told(completion_tokens=10, verify_steps=10)]
    assert acceptance(ended, None, None) == Acceptance(length=410 / 110, source="requests")


def test_steps_whose_tokens_are_counted_apart_are_taken_by_that_count() -> None:
    ended = [told(completion_tokens=105, verify_steps=40, step_tokens=60, drafted_tokens=120, accepted_tokens=20)]
    assert acceptance(ended, None, None) == Acceptance(length=1.5, rate=20 / 120, source="requests")


def test_an_answer_that_says_nothing_of_its_drafts_leaves_the_rate_to_the_others() -> None:
    ended = [
        told(completion_tokens=100, verify_steps=50),
        told(completion_tokens=100, verify_steps=50, drafted_tokens=150, accepted_tokens=50),
    ]
    assert acceptance(ended, None, None) == Acceptance(length=2.0, rate=1 / 3, source="requests")


def test_accepted_tokens_of_the_counters_come_on_top_of_a_token_for_each_step() -> None:
    before = Counters(generation_tokens=100, verify_steps=10, drafted_tokens=40, accepted_tokens=5)
    after = Counters(generation_tokens=900, verify_steps=310, drafted_tokens=1174, accepted_tokens=449)
    assert acceptance([], before, after) == Acceptance(length=1 + 444 / 300, rate=444 / 1134, source="counters")


def test_without_them_all_tokens_are_those_of_the_steps() -> None:
    before, after = Counters(generation_tokens=100, verify_steps=10), Counters(generation_tokens=520, verify_steps=150)
    assert acceptance([], before, after) == Acceptance(length=3.0, source="counters")


def test_counters_are_for_answers_that_say_nothing() -> None:
    before, after = Counters(generation_tokens=0, verify_steps=0), Counters(generation_tokens=20, verify_steps=10)
    assert acceptance([told(completion_tokens=30, verify_steps=10)], before, after).length == 3
    assert acceptance([told(completion_tokens=30, verify_steps=0)], before, after).length == 2


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, Counters(generation_tokens=9, verify_steps=3)),
        (Counters(), Counters()),
        (Counters(generation_tokens=9, verify_steps=3), Counters(generation_tokens=9, verify_steps=3)),
        (Counters(generation_tokens=9), Counters(generation_tokens=90)),
    ],
)
def test_without_speculation_there_is_none(before: Counters | None, after: Counters) -> None:
    assert acceptance([], before, after) == Acceptance()


def test_what_cannot_be_is_left_out_and_said() -> None:
    assert "cannot be" in acceptance([told(completion_tokens=5, verify_steps=9)], None, None).notes[0]
    odd = acceptance([told(completion_tokens=50, verify_steps=9, drafted_tokens=3, accepted_tokens=4)], None, None)
    assert (odd.rate, odd.length) == (None, 50 / 9)
    assert "cannot be" in odd.notes[0]


def cell(**metrics: float) -> CellResult:
    shape = {"key": "60/1/20", "context": 60, "concurrency": 1, "output_tokens": 20}
    return CellResult(**shape, metrics=metrics, window_s=4.0, requests=9, warnings=("a",))  # type: ignore[arg-type]


def test_energy_is_that_of_all_gpus_for_each_token() -> None:
    report = ServerReport(gpus=(GpuReport(index=0, power_w=400.0), GpuReport(index=1, power_w=200.0)), warnings=("b",))
    found = with_server(cell(output_tok_s=1200.0), report)
    assert (found.metrics["power_w"], found.metrics["joules_per_token"]) == (600.0, 0.5)
    assert found.warnings == ("a", "b")
    assert set(found.metrics) <= set(METRICS)


def test_a_gpu_that_does_not_tell_its_power_leaves_the_energy_unknown() -> None:
    report = ServerReport(gpus=(GpuReport(index=0, power_w=400.0), GpuReport(index=1)))
    assert set(with_server(cell(output_tok_s=1200.0), report).metrics) == {"output_tok_s"}
    assert "power_w" not in with_server(cell(), ServerReport()).metrics


def test_where_acceptance_came_from_outlives_the_report() -> None:
    result = dataclasses.replace(cell(), server=ServerReport(acceptance_source="requests"))
    found = with_server(result, ServerReport(generation_tokens=5.0))
    assert found.server == ServerReport(generation_tokens=5.0, acceptance_source="requests")
