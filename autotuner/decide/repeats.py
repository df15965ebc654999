"""Measuring again: what looks best is measured once more before it counts, and what varies too much is said to.

The best of many measurements is partly the luckiest. So a launch that would be the best of a workload so far, by however little, has the
cells of that workload measured again while its server still runs, and counts with the mean. That costs seconds where another launch costs
minutes; how launches differ is what the confirmation is for. Of 60 launches that vary by 3 %, one of which is truly 5 % better, that one
leads in 46 % of simulated nights instead of 29 %, for 7 launches with repeated cells; counting the repeat alone gives 39 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev

from autotuner.decide.finalists import scored
from autotuner.decide.objective import best, meets_slos, ratio, workload_value
from autotuner.model.measurement import METRICS, CellResult
from autotuner.model.trial import TrialRecord
from autotuner.model.workload import Workload

CV_LIMIT = 0.05
"""Repeats of a cell, and launches of a configuration, whose standard deviation is above this share of their mean are called noisy."""


def leading_cells(workloads: Iterable[Workload], trials: Sequence[TrialRecord], cells: Sequence[CellResult]) -> dict[str, str]:
    """The cells to measure again, and by which metric each is judged: those of every workload that this launch would be the best of.

    Empty where nothing was measured before: what has no rival was not chosen.
    """
    found: dict[str, str] = {}
    for workload in workloads:
        value = workload_value(workload, cells)
        rivals = scored(workload, trials)
        leader = best(workload, rivals)
        if value is None or leader is None or not meets_slos(workload, cells):
            continue
        if ratio(workload, value, rivals[leader]) > 1:
            for cell in workload.cells:
                found.setdefault(cell.key, workload.objective)
    return found


def variation(values: Sequence[float]) -> float | None:
    """Coefficient of variation: standard deviation over mean; ``None`` for fewer than two values or a mean of 0."""
    if len(values) < 2 or not fmean(values):
        return None
    return stdev(values) / abs(fmean(values))


def noisy(values: Sequence[float]) -> bool:
    """Whether they vary by more than ``CV_LIMIT``."""
    found = variation(values)
    return found is not None and found > CV_LIMIT


def repeated(first: CellResult, again: Sequence[CellResult], metric: str) -> CellResult:
    """The result of a cell that was measured again: the mean of all measurements, which are kept beside it.

    Where they vary too much in ``metric``, a warning says so.
    """
    if not again:
        return first
    every = (first, *again)
    values = [value for result in every if (value := result.get(metric)) is not None]
    spread = variation(values)
    warnings = [warning for result in every for warning in result.warnings]
    if spread is not None and spread > CV_LIMIT:
        warnings.append(f"{metric} varied by {spread:.0%} over {len(values)} measurements of the same launch")
    return replace(
        again[-1],
        metrics=_mean([result.metrics for result in every]),
        window_s=math.fsum(result.window_s for result in every),
        requests=sum(result.requests for result in every),
        failed=sum(result.failed for result in every),
        errors=_added([result.errors for result in every]),
        batch_means=tuple(rate for result in every for rate in result.batch_means),
        steady=all(result.steady for result in every),
        warnings=tuple(dict.fromkeys(warnings)),
        measurements=tuple(result.metrics for result in every),
    )


def _mean(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: fmean(each[name] for each in metrics) for name in METRICS if all(name in each for each in metrics)}


def _added(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in counts:
        for kind, count in each.items():
            found[kind] = found.get(kind, 0) + count
    return found
