"""Intervals for a mean and for a share, of values that do not know each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from scipy.special import ndtri, stdtrit

from autotuner.decide.statistics.samples import Interval, finite, share


def t_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Where the mean of independent values lies, by Student's t with n - 1 degrees of freedom.

    Source: Student, "The probable error of a mean", Biometrika 6 (1908) 1-25. For times and rates pass their logarithms: those are far
    closer to normal, and the interval is then one of ratios.
    Raises ``ValueError`` for fewer than two values or one that is not finite.
    """
    share("the level", level)
    found = finite(values, least=2)
    half = float(stdtrit(len(found) - 1, 0.5 + level / 2)) * stdev(found) / math.sqrt(len(found))
    return Interval(fmean(found) - half, fmean(found) + half, level)


def ratio_interval(pairs: Sequence[tuple[float, float]], level: float = 0.95) -> Interval:
    """Where the ratio of two totals lies, given (above, below) of independent requests: tokens over seconds, tokens over steps.

    A request counts by its size, as it does in the totals. Source: the linearisation of a ratio, Cochran, *Sampling Techniques*, 3rd
    edition, section 6.4, with Student's t.
    Raises ``ValueError`` for fewer than two pairs, a value that is not finite, or a total below the line that is not above 0.
    """
    share("the level", level)
    above, below = finite([one for one, _ in pairs], least=2), finite([other for _, other in pairs])
    count, total = len(pairs), math.fsum(below)
    if total <= 0:
        msg = f"a ratio to {total} cannot be"
        raise ValueError(msg)
    ratio = math.fsum(above) / total
    spread = math.fsum((one - ratio * other) ** 2 for one, other in zip(above, below, strict=True))
    half = float(stdtrit(count - 1, 0.5 + level / 2)) * math.sqrt(spread * count / (count - 1)) / total
    return Interval(ratio - half, ratio + half, level)


def wilson(successes: int, n: int, level: float = 0.95) -> Interval:
    """Where the true share of successes lies, given ``successes`` of ``n`` independent tries. It is of use at 0 and at ``n`` too.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927) 209-212; recommended over the
    textbook interval by Brown, Cai and DasGupta, Statistical Science 16 (2001) 101-133.
    Raises ``ValueError`` unless ``0 <= successes <= n`` and ``n >= 1``.
    """
    share("the level", level)
    if n < 1 or not 0 <= successes <= n:
        msg = f"{successes} successes of {n} tries cannot be"
        raise ValueError(msg)
    z2 = float(ndtri(0.5 + level / 2)) ** 2
    centre = (successes + z2 / 2) / (n + z2)
    half = math.sqrt(z2 * (successes * (n - successes) / n + z2 / 4)) / (n + z2)
    # At the ends the formula gives 0 and 1 but for rounding.
    return Interval(0.0 if successes == 0 else centre - half, 1.0 if successes == n else centre + half, level)
