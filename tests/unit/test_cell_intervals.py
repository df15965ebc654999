from __future__ import annotations

import random
from statistics import median

import pytest

from autotuner.decide.cells import derive
from autotuner.decide.intervals import intervals
from autotuner.decide.lengths import length_report
from autotuner.decide.window import Window
from autotuner.loadgen.precision import Precision
from autotuner.model.measurement import RequestRecord
from autotuner.model.workload import OWN_PROMPTS, Cell


def answer(index: int, start: float, tpot: float, tokens: int = 20, prompt_tokens: int = 60) -> RequestRecord:
    chunks = tuple((start + 0.1 + tpot * number, number + 1) for number in range(tokens))
    return RequestRecord(
        index=index,
        lane=0,
        domain="code",
        start_s=start,
        chunks=chunks,
        end_s=chunks[-1][0],
        prompt_tokens=prompt_tokens,
        completion_tokens=tokens,
        finish_reason="length",
        verify_steps=tokens // 2,
    )


def test_every_interval_holds_the_value_that_it_belongs_to() -> None:
    rng = random.Random(7)
    records, at = [], 0.0
    for index in range(40):
        records.append(answer(index, at, rng.uniform(0.01, 0.02)))
        at = records[-1].end_s or 0.0
    window = Window(0.0, at)
    result = derive(Cell(context=60, concurrency=1, output_tokens=20), records, window)
    found = intervals(result, records, window)
    assert {"output_tok_s", "user_tok_s", "ttft_p50_ms", "tpot_p50_ms", "e2e_p50_ms", "acceptance_length"} <= set(found)
    assert all(span.low <= result.metrics[name] <= span.high for name, span in found.items())
    assert median(record.tpot_s or 0 for record in records) * 1000 in found["tpot_p50_ms"]


def test_every_prompt_that_misses_its_context_is_counted() -> None:
    counts = [1000, 1020, 1021, 979, 980, None]
    records = [RequestRecord(index=0, lane=0, domain="code", start_s=0, prompt_tokens=count) for count in counts]
    report = length_report(1000, records)
    assert (report.counted, report.missed, report.shortest, report.longest) == (5, 2, 979, 1021)
    assert report.sentence == "2 of 5 prompts have not the 1000 tokens of their context, but 979 to 1021"
    assert length_report(1000, records[:2]).sentence is None
    assert length_report(60, [RequestRecord(index=0, lane=0, domain="x", start_s=0, prompt_tokens=62)]).missed == 0
    assert length_report(60, [RequestRecord(index=0, lane=0, domain=OWN_PROMPTS, start_s=0, prompt_tokens=900)]).counted == 0


@pytest.mark.parametrize("one_lane", [True, False])
def test_a_window_goes_on_until_its_rate_is_known(one_lane: bool) -> None:  # noqa: FBT001 - a parameter of the test
    rng = random.Random(8)

    def samples_needed(spread: float) -> int:
        follow, reads, track = Precision(0.02, one_lane=one_lane), 0, [(0, 0, 0)]
        for number in range(1, 4000):
            reads += round(1000 * rng.uniform(1 - spread, 1 + spread))
            track.append((number * 1_000_000_000, reads, number))
            if follow.reached(track):
                return number
        return 4000

    quiet, noisy = samples_needed(0.01), samples_needed(0.4)
    assert quiet < 20
    assert quiet < noisy < 4000
