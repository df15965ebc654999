from __future__ import annotations

import dataclasses
import random
from statistics import fmean

import pytest

from autotuner.decide.finalists import best_measured
from autotuner.decide.repeats import leading_cells, noisy, repeated, variation
from autotuner.model.events import Phase
from autotuner.model.workload import Slo
from tests import builders as b

CELL = b.LATENCY.cells[0]
OTHER = b.config(mem_fraction=0.4)


def test_a_launch_that_would_lead_has_the_deciding_cells_measured_again() -> None:
    trials = [b.measured(0, b.config(), (100.0, 50.0, 900.0), Phase.BASELINE)]
    assert leading_cells(b.WORKLOADS, trials, b.cells(101.0, 49.0, 900.0)) == {CELL.key: "user_tok_s"}
    both = leading_cells(b.WORKLOADS, trials, b.cells(101.0, 51.0, 900.0))
    assert set(both) == {CELL.key, b.LONG.cells[0].key}
    assert leading_cells(b.WORKLOADS, trials, b.cells(99.0, 49.0, 900.0)) == {}


def test_what_has_no_rival_was_not_chosen() -> None:
    assert leading_cells(b.WORKLOADS, [], b.cells(100.0, 50.0, 900.0)) == {}
    assert leading_cells(b.WORKLOADS, [b.failed(0, b.config())], b.cells(100.0, 50.0, 900.0)) == {}


def test_confirmations_are_no_rivals_and_what_breaks_a_limit_does_not_lead() -> None:
    trials = [
        b.measured(0, b.config(), (100.0, 50.0, 900.0), Phase.BASELINE),
        b.measured(1, OTHER, (500.0, 500.0, 900.0), Phase.CONFIRM),
    ]
    assert CELL.key in leading_cells(b.WORKLOADS, trials, b.cells(101.0, 50.0, 900.0))
    limited = b.LATENCY.model_copy(update={"slos": (Slo(metric="output_tok_s", limit=200.0),)})
    assert leading_cells([limited], trials, b.cells(101.0, 50.0, 900.0)) == {}


def test_a_metric_where_less_is_better_is_led_by_less() -> None:
    quick = b.LATENCY.model_copy(update={"objective": "ttft_p50_ms"})

    def cells(ttft: float) -> list:
        return [b.cell_result(CELL, ttft_p50_ms=ttft)]

    trials = [dataclasses.replace(b.measured(0, b.config(), (1.0, 1.0, 1.0)), cells=tuple(cells(80.0)))]
    assert leading_cells([quick], trials, cells(79.0)) == {CELL.key: "ttft_p50_ms"}
    assert leading_cells([quick], trials, cells(81.0)) == {}


def test_the_mean_of_all_measurements_counts_and_each_is_kept() -> None:
    first, second = b.cell_result(CELL, user_tok_s=150.0, output_tok_s=150.0), b.cell_result(CELL, user_tok_s=148.0, output_tok_s=149.0)
    found = repeated(first, [second], "user_tok_s")
    assert dict(found.metrics) == {"user_tok_s": 149.0, "output_tok_s": 149.5}
    assert found.measurements == (first.metrics, second.metrics)
    assert found.warnings == ()
    assert repeated(first, [], "user_tok_s") is first


def test_measurements_that_disagree_are_said_to() -> None:
    first = dataclasses.replace(b.cell_result(CELL, user_tok_s=180.0), warnings=("a",), batch_means=(1.0,))
    second, third = b.cell_result(CELL, user_tok_s=140.0, ttft_p50_ms=9.0), b.cell_result(CELL, user_tok_s=160.0)
    second = dataclasses.replace(second, warnings=("a",), batch_means=(2.0,), errors={"http-500": 1}, failed=1)
    third = dataclasses.replace(third, warnings=("c",), errors={"http-500": 2}, failed=2, steady=False)
    found = repeated(first, [second, third], "user_tok_s")
    assert dict(found.metrics) == {"user_tok_s": 160.0}, "what one of them does not have has no mean"
    assert (found.requests, found.window_s, found.batch_means, found.steady) == (15, 12.0, (1.0, 2.0), False)
    assert (found.failed, found.errors) == (3, {"http-500": 3})
    assert found.warnings == ("a", "c", "user_tok_s varied by 12% over 3 measurements of the same launch")


def test_variation_is_the_standard_deviation_over_the_mean() -> None:
    assert variation([90.0, 110.0]) == pytest.approx(0.1414, abs=1e-4)
    assert variation([5.0]) is None
    assert variation([0.0, 0.0]) is None
    assert not noisy([98.0, 102.0])
    assert noisy([90.0, 110.0])
    assert not noisy([100.0])


def test_the_truly_best_of_many_leads_more_often_and_is_less_overrated() -> None:
    """Thirty launches that vary by 3 %, one of them truly 5 % better."""
    right, overrated = {}, {}
    for repeat in (False, True):
        led, excess = [], []
        for seed in range(100):
            rng = random.Random(seed)
            good = rng.randrange(1, 30)
            trials = []
            for number in range(30):
                speed = 105 if number == good else 100
                cells = list(b.cells(rng.gauss(speed, 3), 1.0, 1.0))
                for metric in leading_cells([b.LATENCY], trials, cells).values() if repeat else ():
                    cells[0] = repeated(cells[0], [b.cell_result(CELL, user_tok_s=rng.gauss(speed, 3))], metric)
                trials.append(dataclasses.replace(b.measured(number, OTHER, (1.0, 1.0, 1.0)), cells=tuple(cells)))
            leader = best_measured(b.LATENCY, trials)
            led.append(leader.number == good)
            excess.append(leader.cells[0]["user_tok_s"] - (105 if leader.number == good else 100))
        right[repeat], overrated[repeat] = fmean(led), fmean(excess)
    assert right[True] > right[False] + 0.1
    assert overrated[True] < overrated[False] - 1.5
