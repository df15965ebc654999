"""Objective: the cells of a launch → one value per workload."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from autotuner.model.measurement import METRICS, CellResult, Direction
from autotuner.model.workload import Workload


def by_key(cells: Iterable[CellResult]) -> dict[str, CellResult]:
    """Cells by their identity."""
    return {cell.key: cell for cell in cells}


def workload_value(workload: Workload, cells: Iterable[CellResult]) -> float | None:
    """The workload's objective over its cells: their weighted geometric mean, in the metric's unit.

    For one configuration against another this orders as the weighted geometric mean of ratios to any baseline does, and needs no
    baseline. ``None`` when a cell is missing, failed entirely, or has no value above zero.
    """
    measured = by_key(cells)
    total = weight = 0.0
    for cell in workload.cells:
        result = measured.get(cell.key)
        value = result.get(workload.objective) if result is not None else None
        if value is None or value <= 0:
            return None
        total += cell.weight * math.log(value)
        weight += cell.weight
    return math.exp(total / weight)


def ratio(workload: Workload, value: float, baseline: float) -> float:
    """How many times better ``value`` is than ``baseline``; above 1 is better, whichever way the metric points."""
    return value / baseline if workload.maximize else baseline / value


def slo_excess(workload: Workload, cells: Iterable[CellResult]) -> dict[str, float]:
    """Metric → relative distance beyond its limit over the workload's cells, the worst of them; at most 0 when the limit is met.

    A metric that was not measured (too few requests for a percentile) is left out: it can neither pass nor fail.
    """
    measured = by_key(cells)
    worst: dict[str, float] = {}
    for slo in workload.slos:
        upper = METRICS[slo.metric].direction is Direction.LOWER
        for cell in workload.cells:
            result = measured.get(cell.key)
            value = result.get(slo.metric) if result is not None else None
            if value is not None:
                excess = value / slo.limit - 1 if upper else 1 - value / slo.limit
                worst[slo.metric] = max(worst.get(slo.metric, -math.inf), excess)
    return worst


def meets_slos(workload: Workload, cells: Iterable[CellResult]) -> bool:
    """Whether no limit is known to be broken."""
    return all(excess <= 0 for excess in slo_excess(workload, cells).values())


def unmeasured_slos(workload: Workload, cells: Iterable[CellResult]) -> tuple[str, ...]:
    """Metrics of limits that nothing can be said about, since a cell of the workload does not have them."""
    measured = by_key(cells)
    return tuple(
        slo.metric
        for slo in workload.slos
        if any(cell.key not in measured or measured[cell.key].get(slo.metric) is None for cell in workload.cells)
    )


def best(workload: Workload, values: Mapping[int, float]) -> int | None:
    """The key of the best value; the lowest key among equals, ``None`` when there is none."""
    if not values:
        return None
    sign = -1 if workload.maximize else 1
    return min(values, key=lambda number: (sign * values[number], number))
