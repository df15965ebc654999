"""Is one configuration better than another, given launches of both?

Launches are the unit of repetition: windows within one launch share its memory layout, clocks and caches, and are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.special import stdtrit

MIN_PAIRS = 4
"""Interleaved pairs of launches that carry a verdict of their own."""
MIN_POOLED_DF = 3
"""Degrees of freedom that a pooled launch-to-launch variance needs to stand in for missing pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledVariance:
    """Launch-to-launch standard deviation of the logarithm of a metric, pooled over configurations launched more than once."""

    sd: float
    df: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Candidate against baseline: ratio of their values, and the interval that holds it with the stated confidence."""

    ratio: float
    """Geometric mean of candidate / baseline."""
    low: float | None
    high: float | None
    pairs: int
    method: str
    """``paired``, ``pooled`` or ``none`` (no interval can be had)."""

    @property
    def conclusive(self) -> bool:
        """Whether an interval could be had."""
        return self.low is not None


def pooled_variance(groups: Iterable[Sequence[float]]) -> PooledVariance | None:
    """Pool the variance of log values over groups of launches of one configuration each; ``None`` without a group of two.

    Values that are not positive and finite are left out. Source: the within-groups mean square of one-way analysis of variance, Snedecor
    and Cochran, *Statistical Methods*, chapter 12.
    """
    squares, df = 0.0, 0
    for group in groups:
        logs = [math.log(value) for value in group if 0 < value < math.inf]
        if len(logs) >= 2:
            mean = fmean(logs)
            squares += sum((value - mean) ** 2 for value in logs)
            df += len(logs) - 1
    return PooledVariance(sd=math.sqrt(squares / df), df=df) if df else None


def compare(
    baseline: Sequence[float], candidate: Sequence[float], *, pooled: PooledVariance | None = None, confidence: float = 0.95
) -> Comparison:
    """Compare launches that were interleaved: ``baseline[i]`` and ``candidate[i]`` are of one round.

    With ``MIN_PAIRS`` pairs, a t interval of the paired log ratios, which cancels drift between rounds. With fewer, but two at least, a t
    interval from the pooled launch-to-launch variance, if that has enough degrees of freedom. Otherwise no interval: such a result is
    inconclusive. Source: the paired t test, Student, Biometrika 6 (1908) 1-25, on logarithms, so that it speaks of ratios.
    Raises ``ValueError`` when either side is empty, not positive or not finite.
    """
    if not baseline or not candidate or not all(0 < value < math.inf for value in (*baseline, *candidate)):
        msg = "both sides need at least one value, and finite positive ones only"
        raise ValueError(msg)
    pairs = min(len(baseline), len(candidate))
    logs = [math.log(mine / theirs) for theirs, mine in zip(baseline, candidate, strict=False)]
    if pairs >= MIN_PAIRS:
        centre, spread, df, method = fmean(logs), stdev(logs) / math.sqrt(pairs), pairs - 1, "paired"
    else:
        centre = fmean(math.log(value) for value in candidate) - fmean(math.log(value) for value in baseline)
        if pairs < 2 or pooled is None or pooled.df < MIN_POOLED_DF:
            return Comparison(ratio=math.exp(centre), low=None, high=None, pairs=pairs, method="none")
        spread, df, method = pooled.sd * math.sqrt(1 / len(baseline) + 1 / len(candidate)), pooled.df, "pooled"
    half = float(stdtrit(df, 0.5 + confidence / 2)) * spread
    return Comparison(ratio=math.exp(centre), low=math.exp(centre - half), high=math.exp(centre + half), pairs=pairs, method=method)


def percent(ratio: float) -> float:
    """A ratio as a change in percent."""
    return 100 * (ratio - 1)
