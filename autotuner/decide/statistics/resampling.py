"""The bootstrap: an interval for any statistic of independent values."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np

from autotuner.decide.statistics.samples import Interval, finite, share

FEWEST_RESAMPLES = 100


def bootstrap_interval(
    values: Sequence[float], statistic: Callable[[Sequence[float]], float], *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Where ``statistic`` of the population lies, by the bias-corrected and accelerated bootstrap; the same seed gives the same interval.

    Source: Efron, "Better bootstrap confidence intervals", JASA 82 (1987) 171-185, as scipy has it. Where that is not defined, because the
    statistic does not change when a value is left out, the percentiles of the resamples are taken. With fewer than twenty values it is
    too narrow: for a mean take ``t_interval``.
    Raises ``ValueError`` for fewer than two values, one that is not finite, or a statistic that is not.
    """
    from scipy.stats import DegenerateDataWarning, bootstrap

    share("the level", level)
    found = finite(values, least=2)
    if resamples < FEWEST_RESAMPLES:
        msg = f"a bootstrap needs {FEWEST_RESAMPLES} resamples, not {resamples}"
        raise ValueError(msg)
    point = float(statistic(found))
    if not math.isfinite(point):
        msg = f"the statistic of the values is {point}"
        raise ValueError(msg)
    if min(found) == max(found):
        return Interval(point, point, level)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", DegenerateDataWarning)
        drawn = bootstrap(
            (np.array(found),),
            lambda sample: float(statistic(sample)),
            vectorized=False,
            n_resamples=resamples,
            confidence_level=level,
            method="BCa",
            rng=np.random.default_rng(seed),
        )
    low, high = (float(end) for end in drawn.confidence_interval)
    if not (math.isfinite(low) and math.isfinite(high)):
        low, high = (float(end) for end in np.quantile(drawn.bootstrap_distribution, [(1 - level) / 2, (1 + level) / 2]))
    return Interval(low, high, level)
