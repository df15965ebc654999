"""Values that follow one another in time: do they drift, and how sure is their mean although neighbours are alike?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev

from scipy.special import stdtr, stdtrit

from autotuner.decide.statistics.intervals import t_interval
from autotuner.decide.statistics.samples import Interval, finite

DRIFT_TOLERANCE = 0.05
"""A significant trend that moves a rate by less than this over its window does no harm."""
TREND_LEVEL = 0.01
"""Share of series without a trend that may be said to have one."""
MIN_TREND = 4
"""Fewer values say nothing about a trend: any two lie on a line, and three often enough."""
MIN_BATCHES = 8
"""Neighbours are not merged into fewer batches than this."""
FEWEST_MEANS = 5
"""Autocorrelation cannot be told from fewer: its bias alone is then as large as what is looked for."""
MOST_CORRELATED = 0.8
"""Beyond this an estimate from so few values is noise; the values then come from too short a window for any interval."""


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
    """Whether values that follow one another show no drift that matters, and began as they went on.

    Not steady is a drift beyond ``tolerance`` whose slope is significant at ``level``; and a first value that lies outside what the others
    predict for one more of them, at the same level, and that moves the mean by more than half of ``tolerance``, as such a drift does:
    a warm-up that was over soon is no line. Source of the prediction: Hahn and Meeker, *Statistical Intervals*, chapter 4.
    Fewer than ``MIN_TREND`` values are taken as steady, since nothing speaks against it. Raises ``ValueError`` for one that is not finite.
    """
    found = finite(values, least=0)
    if len(found) < MIN_TREND:
        return True
    line = trend(found)
    drifts = abs(line.drift) > tolerance and line.p <= level
    return not drifts and not _began_apart(found, tolerance / 2, level)


def _began_apart(values: tuple[float, ...], tolerance: float, level: float) -> bool:
    first, rest = values[0], values[1:]
    apart = abs(first - fmean(rest))
    if apart <= tolerance * abs(fmean(rest)) * len(values):
        return False
    limit = float(stdtrit(len(rest) - 1, 1 - level / 2)) * stdev(rest) * math.sqrt(1 + 1 / len(rest))
    return apart > limit


def batch_means_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Where the mean of a steady process lies, given means of equal slices of time, one after another.

    While neighbours are alike (lag-1 autocorrelation above 0), pairs of them are merged, as long as ``MIN_BATCHES`` remain; of an odd
    number the first is left out, which is nearest to the warm-up. Student's t of what remains is widened by the square root of
    (1 + r) / (1 - r), where r is the lag-1 autocorrelation that remains, corrected for its bias in short series. The mean is that of all
    values. Sources: Law and Carson, "A sequential procedure for determining the length of a steady-state simulation", Operations Research
    27 (1979) 1011-1025; the correction of Skart, Tafazzoli, Wilson, Lada and Steiger, INFORMS Journal on Computing 23 (2011) 297-314; the
    bias of r, Marriott and Pope, Biometrika 41 (1954) 390-402.
    Raises ``ValueError`` for fewer than ``FEWEST_MEANS`` values or one that is not finite.
    """
    found = finite(values, least=FEWEST_MEANS)
    batches = _merged(found)
    count = len(batches)
    alike = min(MOST_CORRELATED, max(0.0, (count * autocorrelation(batches) + 1) / (count - 4)))
    half = t_interval(batches, level).half_width * math.sqrt((1 + alike) / (1 - alike))
    mean = fmean(found)
    return Interval(mean - half, mean + half, level)


def autocorrelation(values: Sequence[float]) -> float:
    """Lag-1 autocorrelation; 0 for values that are all alike, or fewer than two of them.

    Source: Box and Jenkins, *Time Series Analysis*, section 2.1. Raises ``ValueError`` for one that is not finite.
    """
    found = finite(values, least=0)
    if len(found) < 2 or min(found) == max(found):
        return 0.0
    mean = fmean(found)
    around = [value - mean for value in found]
    return sum(one * other for one, other in pairwise(around)) / sum(value * value for value in around)


def _merged(values: tuple[float, ...]) -> tuple[float, ...]:
    while len(values) >= 2 * MIN_BATCHES and autocorrelation(values) > 0:
        paired = values[len(values) % 2 :]
        values = tuple((one + other) / 2 for one, other in zip(paired[::2], paired[1::2], strict=True))
    return values
