"""Statistics: how sure a number is, and whether one configuration is better than another. Pure functions on plain sequences of floats.

Every rule refuses what it cannot stand on with ``ValueError``: too few values, or one that is not a finite number. Which rule is used
where, and how often each is wrong, stands in docs/statistics.md.
"""

from __future__ import annotations

from autotuner.decide.statistics.comparison import MIN_PAIRS, MIN_POOLED_DF, Comparison, PooledVariance, compare, percent, pooled_variance
from autotuner.decide.statistics.intervals import ratio_interval, t_interval, wilson
from autotuner.decide.statistics.percentiles import PercentileEstimate, percentile, percentile_bound, percentile_interval, values_needed
from autotuner.decide.statistics.planning import MIN_ANSWERS, enough, repeats_needed
from autotuner.decide.statistics.ranks import mann_whitney
from autotuner.decide.statistics.resampling import bootstrap_interval
from autotuner.decide.statistics.samples import Interval
from autotuner.decide.statistics.series import DRIFT_TOLERANCE, MIN_BATCHES, Trend, autocorrelation, batch_means_interval, steady, trend

__all__ = [
    "DRIFT_TOLERANCE",
    "MIN_ANSWERS",
    "MIN_BATCHES",
    "MIN_PAIRS",
    "MIN_POOLED_DF",
    "Comparison",
    "Interval",
    "PercentileEstimate",
    "PooledVariance",
    "Trend",
    "autocorrelation",
    "batch_means_interval",
    "bootstrap_interval",
    "compare",
    "enough",
    "mann_whitney",
    "percent",
    "percentile",
    "percentile_bound",
    "percentile_interval",
    "pooled_variance",
    "ratio_interval",
    "repeats_needed",
    "steady",
    "t_interval",
    "trend",
    "values_needed",
    "wilson",
]
