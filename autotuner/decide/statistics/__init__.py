"""Statistics: how sure a number is, and whether one configuration is better than another. Pure functions on plain sequences of floats.

Every rule refuses what it cannot stand on with ``ValueError``: too few values, or one that is not a finite number.
"""

from __future__ import annotations

from autotuner.decide.statistics.comparison import MIN_PAIRS, MIN_POOLED_DF, Comparison, PooledVariance, compare, percent, pooled_variance
from autotuner.decide.statistics.samples import Interval
from autotuner.decide.statistics.series import DRIFT_TOLERANCE, Trend, steady, trend

__all__ = [
    "DRIFT_TOLERANCE",
    "MIN_PAIRS",
    "MIN_POOLED_DF",
    "Comparison",
    "Interval",
    "PooledVariance",
    "Trend",
    "compare",
    "percent",
    "pooled_variance",
    "steady",
    "trend",
]
