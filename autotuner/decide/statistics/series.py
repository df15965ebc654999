"""Values that follow one another in time: do they drift?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from scipy.special import stdtr

from autotuner.decide.statistics.samples import finite

DRIFT_TOLERANCE = 0.05
"""A significant trend that moves a rate by less than this over its window does no harm."""
TREND_LEVEL = 0.01
"""Share of series without a trend that may be said to have one."""
MIN_TREND = 4
"""Fewer values say nothing about a trend: any two lie on a line, and three often enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A straight line through values that are equally far apart in time."""

    slope: float
    """Change from one value to the next, in their unit."""
    p: float
    """How often values without a trend look like this or worse."""
    drift: float
    """Change from the first to the last value as a share of their mean; infinite where the mean is 0 and the slope is not."""


def trend(values: Sequence[float]) -> Trend:
    """Ordinary least squares against the position, its slope tested with Student's t at n - 2 degrees of freedom, two-sided.

    Source: Draper and Smith, *Applied Regression Analysis*, 3rd edition, section 1.4.
    Raises ``ValueError`` for fewer than three values or one that is not finite.
    """
    found = finite(values, least=3)
    count, mean = len(found), fmean(found)
    middle = (count - 1) / 2
    spread = sum((number - middle) ** 2 for number in range(count))
    slope = sum((number - middle) * (value - mean) for number, value in enumerate(found)) / spread
    residual = sum((value - mean - slope * (number - middle)) ** 2 for number, value in enumerate(found))
    change = slope * (count - 1)
    drift = change / abs(mean) if mean else math.copysign(math.inf, slope) if slope else 0.0
    # What is left of exact lines and constants is rounding, whose ratio would mean nothing.
    rounding = 1e-12 * max(abs(value) for value in found)
    if abs(change) <= rounding:
        return Trend(slope=slope, p=1.0, drift=drift)
    if math.sqrt(residual / count) <= rounding:
        return Trend(slope=slope, p=0.0, drift=drift)
    error = math.sqrt(residual / (count - 2) / spread)
    return Trend(slope=slope, p=2 * float(stdtr(count - 2, -abs(slope) / error)), drift=drift)


def steady(values: Sequence[float], *, tolerance: float = DRIFT_TOLERANCE, level: float = TREND_LEVEL) -> bool:
    """Whether values that follow one another show no drift that matters: one beyond ``tolerance`` with a slope significant at ``level``.

    Fewer than ``MIN_TREND`` values are taken as steady, since nothing speaks against it. Raises ``ValueError`` for one that is not finite.
    """
    if len(finite(values, least=0)) < MIN_TREND:
        return True
    found = trend(values)
    return abs(found.drift) <= tolerance or found.p > level
