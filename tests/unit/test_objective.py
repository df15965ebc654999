from __future__ import annotations

import math

import pytest

from autotuner.decide.objective import best, meets_slos, ratio, slo_excess, workload_value
from autotuner.model.document import Metadata
from autotuner.model.workload import Cell, Slo, Workload
from tests.builders import cell_result

SHORT = Cell(context=60, concurrency=1)


def workload(objective="output_tok_s", cells=(SHORT,), slos=()):
    return Workload(
        apiVersion="autotuner/v1", kind="Workload", metadata=Metadata(name="w"), objective=objective, cells=tuple(cells), slos=tuple(slos)
    )


A, B = Cell(context=60, concurrency=1, weight=3.0), Cell(context=4096, concurrency=1)


def test_value_is_the_weighted_geometric_mean():
    value = workload_value(workload(cells=(A, B)), [cell_result(A, output_tok_s=100.0), cell_result(B, output_tok_s=10.0)])
    assert value == pytest.approx(math.exp((3 * math.log(100) + math.log(10)) / 4))


def test_order_does_not_depend_on_the_baseline():
    """Dividing every cell by a baseline's must not change which of two configurations is better."""
    w = workload(cells=(A, B))
    one = [cell_result(A, output_tok_s=100.0), cell_result(B, output_tok_s=10.0)]
    two = [cell_result(A, output_tok_s=90.0), cell_result(B, output_tok_s=20.0)]
    base = {A.key: 50.0, B.key: 40.0}
    scaled = [
        [cell_result(c, output_tok_s=r["output_tok_s"] / base[r.key]) for c, r in zip((A, B), rows, strict=True)] for rows in (one, two)
    ]
    assert (workload_value(w, one) > workload_value(w, two)) == (workload_value(w, scaled[0]) > workload_value(w, scaled[1]))


@pytest.mark.parametrize("cells", [[], [cell_result(A)], [cell_result(A, output_tok_s=0.0)], [cell_result(A, output_tok_s=5.0)]])
def test_a_missing_or_empty_cell_gives_no_value(cells):
    assert workload_value(workload(cells=(A, B)), cells) is None


def test_ratio_above_one_is_better_whichever_way_the_metric_points():
    assert ratio(workload("output_tok_s"), 20.0, 10.0) == 2.0
    assert ratio(workload("ttft_p50_ms"), 10.0, 20.0) == 2.0


def test_slo_excess_is_the_worst_cell_and_respects_direction():
    w = workload(cells=(A, B), slos=(Slo(metric="ttft_p50_ms", limit=100.0), Slo(metric="user_tok_s", limit=50.0)))
    cells = [cell_result(A, ttft_p50_ms=80.0, user_tok_s=60.0), cell_result(B, ttft_p50_ms=150.0, user_tok_s=40.0)]
    assert slo_excess(w, cells) == pytest.approx({"ttft_p50_ms": 0.5, "user_tok_s": 0.2})
    assert not meets_slos(w, cells)


def test_an_unmeasured_slo_neither_passes_nor_fails():
    w = workload(slos=(Slo(metric="ttft_p95_ms", limit=100.0),))
    assert slo_excess(w, [cell_result(Cell(context=60, concurrency=1), output_tok_s=1.0)]) == {}


def test_best_follows_the_direction_and_prefers_the_earlier_of_equals():
    assert best(workload("output_tok_s"), {3: 5.0, 1: 5.0, 2: 4.0}) == 1
    assert best(workload("ttft_p50_ms"), {3: 5.0, 1: 5.0, 2: 4.0}) == 2
    assert best(workload(), {}) is None
