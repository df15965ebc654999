"""Percentiles, and how far the true one may lie above what was seen."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import bdtr

from autotuner.decide.statistics.samples import Interval, finite, share

MOST_NEEDED = 10**9
"""Beyond so many samples a percentile is out of reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PercentileEstimate:
    """A percentile as it was seen, and the bound that it comes with where there are enough values for one."""

    value: float
    """Linear between neighbours; with few values a guess."""
    upper: float | None
    """The true percentile is no higher, with the stated confidence; ``None`` where ``n`` is below ``needed``."""
    n: int
    needed: int
    """Fewest values for which there is a bound."""


def percentile(values: Sequence[float], percent: float) -> float:
    """A percentile of values in any order, linear between neighbours.

    Source: type 7 of Hyndman and Fan, The American Statistician 50 (1996) 361-365, as numpy has it.
    Raises ``ValueError`` for no values, one that is not finite, or ``percent`` outside 0 to 100.
    """
    found = finite(values)
    if not 0 <= percent <= 100:
        msg = f"a percentile lies between 0 and 100, not at {percent}"
        raise ValueError(msg)
    return float(np.percentile(found, percent))


def percentile_bound(values: Sequence[float], percent: float, level: float = 0.99) -> PercentileEstimate:
    """A percentile of independent values with its upper bound, which assumes nothing about their distribution.

    The bound is the ``t``-th highest value, for the largest ``t >= 1`` such that a binomial count of n tries at ``1 - percent / 100`` is at
    most ``t`` with a probability of at most ``1 - level``. Source: MLPerf's rule for early stopping (mlcommons/inference,
    loadgen/early_stopping.cc), one rank above the textbook bound of David and Nagaraja, *Order Statistics*, section 7.1. At 99 % it needs
    64 values for the 90th percentile, 130 for the 95th and 662 for the 99th.
    Raises ``ValueError`` for no values, one that is not finite, or ``percent`` that is not strictly between 0 and 100.
    """
    found, tail = sorted(finite(values)), 1 - share("percent / 100", percent / 100)
    risk = 1 - share("the level", level)
    n = len(found)
    over = bisect_right(range(n + 1), risk, key=lambda count: float(bdtr(count, n, tail))) - 1
    return PercentileEstimate(
        value=percentile(found, percent), upper=found[n - over] if over >= 1 else None, n=n, needed=values_needed(percent, level)
    )


def percentile_interval(values: Sequence[float], percent: float, level: float = 0.95) -> Interval | None:
    """Two of the values, between which the true percentile lies; ``None`` where there are too few for both ends.

    The number of values below the percentile is binomial, whatever their distribution. Source: David and Nagaraja, *Order Statistics*,
    section 7.1. The median needs 6 values at 95 %, the 95th percentile 72.
    Raises ``ValueError`` for no values, one that is not finite, or ``percent`` that is not strictly between 0 and 100.
    """
    found, below = sorted(finite(values)), share("percent / 100", percent / 100)
    n, spare = len(found), (1 - share("the level", level)) / 2
    low, high = (bisect_left(range(n + 1), chance, key=lambda count: float(bdtr(count, n, below))) for chance in (spare, 1 - spare))
    return Interval(found[low - 1], found[high], level) if low >= 1 and high < n else None


@lru_cache(maxsize=64)
def values_needed(percent: float, level: float = 0.99) -> int:
    """Fewest values that give a percentile an upper bound, by the rule of ``percentile_bound``.

    Raises ``ValueError`` for ``percent`` that is not strictly between 0 and 100, or so near to 100 that no measurement is long enough.
    """
    tail, risk = 1 - share("percent / 100", percent / 100), 1 - share("the level", level)
    if float(bdtr(1, MOST_NEEDED, tail)) > risk:
        msg = f"the percentile {percent} needs more than {MOST_NEEDED} values"
        raise ValueError(msg)
    return 2 + bisect_left(range(2, MOST_NEEDED), -risk, key=lambda n: -float(bdtr(1, n, tail)))
