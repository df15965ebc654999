"""How much to measure: until an interval is narrow enough, and how many launches a difference needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from scipy.special import nctdtr, ndtri, stdtrit

from autotuner.decide.statistics.comparison import MIN_PAIRS
from autotuner.decide.statistics.intervals import t_interval
from autotuner.decide.statistics.samples import finite, share
from autotuner.decide.statistics.series import MIN_BATCHES, batch_means_interval

MIN_ANSWERS = 5
"""Answers that a stop rests on at least."""
LARGE = 1000
"""Pairs beyond which Student's t is the normal distribution for this purpose."""


def enough(values: Sequence[float], half_width_percent: float, *, batches: bool = False, level: float = 0.95) -> bool:
    """Whether a measurement may stop: its mean is known to within ``half_width_percent`` either way.

    ``values`` are positive and independent of each other (a time or rate of each answer of one stream): the t interval of their
    logarithms, from ``MIN_ANSWERS`` on. With ``batches`` they are means of equal slices of time, one after another, whose neighbours are
    alike: the batch means interval, from ``MIN_BATCHES`` on. Ask after every new value; looking again and again costs a little coverage.
    Source: Chow and Robbins, "On the asymptotic theory of fixed-width sequential confidence intervals for the mean", Annals of
    Mathematical Statistics 36 (1965) 457-462; Law and Carson, Operations Research 27 (1979) 1011-1025.
    Raises ``ValueError`` for values that are not finite and positive, or a half width that is not positive.
    """
    found = finite(values, least=0)
    if not half_width_percent > 0:
        msg = f"the half width must be above 0 %, not {half_width_percent}"
        raise ValueError(msg)
    if len(found) < (MIN_BATCHES if batches else MIN_ANSWERS):
        return False
    if batches:
        mean = fmean(found)
        return mean > 0 and batch_means_interval(found, level).half_width <= half_width_percent / 100 * mean
    if min(found) <= 0:
        msg = f"times and rates are above 0, not {min(found)}"
        raise ValueError(msg)
    return t_interval([math.log(value) for value in found], level).half_width <= math.log1p(half_width_percent / 100)


def repeats_needed(sd_log: float, percent: float, *, power: float = 0.8, level: float = 0.95) -> int:
    """Interleaved pairs of launches after which ``compare`` tells a change of ``percent`` from none, with a chance of ``power``.

    ``sd_log`` is the launch-to-launch standard deviation of the logarithm of the metric (``PooledVariance.sd``); a difference of two
    launches has the square root of two of it. At least ``MIN_PAIRS``. Source: the power of the paired t test by the noncentral t
    distribution, Cohen, *Statistical Power Analysis for the Behavioral Sciences*, 2nd edition, chapter 2.
    Raises ``ValueError`` for a negative or infinite ``sd_log`` and for ``percent`` that is not above 0.
    """
    share("the power", power), share("the level", level)
    (sd,) = finite([sd_log])
    if sd < 0 or not 0 < percent < math.inf:
        msg = f"a change of {percent} % at a standard deviation of {sd_log} cannot be planned for"
        raise ValueError(msg)
    effect = math.log1p(percent / 100)
    if sd == 0:
        return MIN_PAIRS
    size = effect / (sd * math.sqrt(2))
    pairs = max(MIN_PAIRS, math.ceil((float(ndtri(0.5 + level / 2) + ndtri(power)) / size) ** 2))
    while pairs < LARGE and _power(pairs, size, level) < power:
        pairs += 1
    return pairs


def _power(pairs: int, size: float, level: float) -> float:
    """Chance that the two-sided t interval of ``pairs`` differences of mean ``size`` (in standard deviations) leaves 0 out on its side."""
    df = pairs - 1
    return 1 - float(nctdtr(df, size * math.sqrt(pairs), stdtrit(df, 0.5 + level / 2)))
