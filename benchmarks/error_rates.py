"""How often the statistics are wrong: their rules on simulated measurements whose truth is known.

`python -m benchmarks.error_rates [--runs 4000] [--seed 1] [--json]` prints, for every rule, the rate that it promises and the rate that it
has. Nothing is launched and no clock is read: the same seed gives the same numbers.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from autotuner.decide.statistics import (
    Interval,
    batch_means_interval,
    bootstrap_interval,
    compare,
    enough,
    mann_whitney,
    percentile_bound,
    percentile_interval,
    pooled_variance,
    ratio_interval,
    repeats_needed,
    steady,
    t_interval,
    wilson,
)
from benchmarks.simulated_nights import LAUNCH_SD, Night, autocorrelated, improved_rate, launches

NOWHERE = Interval(math.inf, -math.inf, 0.95)
"""What holds nothing, in place of an interval that could not be had."""
Draw = Callable[[np.random.Generator], Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One rule in one situation."""

    rule: str
    situation: str
    what: str
    promised: str
    found: float
    runs: int


def covered(interval: Callable[[Sequence[float]], Interval], draw: Draw, truth: float, *, runs: int, seed: int) -> float:
    """Share of runs whose interval holds the truth."""
    rng = np.random.default_rng(seed)
    return sum(truth in interval(draw(rng)) for _ in range(runs)) / runs


def normal(n: int, sd: float = 0.03) -> Draw:
    """Independent values around 1."""
    return lambda rng: rng.normal(1, sd, n).tolist()


def lognormal(n: int, sd: float = 0.5) -> Draw:
    """Independent skewed times with median 1."""
    return lambda rng: np.exp(rng.normal(0, sd, n)).tolist()


def uniform(n: int) -> Draw:
    """Independent values between 0 and 1, whose percentiles are known."""
    return lambda rng: rng.random(n).tolist()


def slices(n: int, correlation: float, sd: float = 0.03) -> Draw:
    """Rates of slices around 1, each like its neighbour."""
    return lambda rng: (1 + sd * autocorrelated(rng, n, correlation)).tolist()


def undercurrent(n: int) -> Draw:
    """Slices with little likeness of neighbours, yet a slow wave under the noise: what looking at neighbours alone does not see."""
    slow, fast = math.sqrt(0.4), math.sqrt(0.6)
    return lambda rng: (1 + 0.03 * (slow * autocorrelated(rng, n, 0.9) + fast * rng.normal(size=n))).tolist()


def ratios(n: int, *, runs: int, seed: int) -> float:
    """Coverage of a ratio of totals: requests of 1 to 10 steps, 1 to 4 tokens a step."""
    rng = np.random.default_rng(seed)
    held = 0
    for _ in range(runs):
        steps = rng.integers(1, 11, n)
        tokens = [int(rng.integers(1, 5, count).sum()) for count in steps]
        held += 2.5 in ratio_interval([(float(above), float(below)) for above, below in zip(tokens, steps, strict=True)])
    return held / runs


def succeeded(n: int, share: float, *, runs: int, seed: int) -> float:
    """Coverage of Wilson's interval."""
    rng = np.random.default_rng(seed)
    return sum(share in wilson(int(rng.binomial(n, share)), n) for _ in range(runs)) / runs


def exceeded(n: int, percent: float, *, level: float = 0.99, runs: int, seed: int) -> float:
    """Share of runs in which the true percentile lies above its bound."""
    rng = np.random.default_rng(seed)
    # Only ranks matter: for uniform values the percentile is known.
    bounds = (percentile_bound(uniform(n)(rng), percent, level).upper for _ in range(runs))
    return sum(bound is None or bound < percent / 100 for bound in bounds) / runs


def called_different(rounds: int, *, runs: int, seed: int, gain: float = 1.0, pooled_groups: int = 0, **changes: object) -> float:
    """Share of comparisons whose interval lies above 1 (beside ``gain`` nothing differs); of A/A comparisons half of the false ones."""
    rng = np.random.default_rng(seed)
    above = 0
    for _ in range(runs):
        rows = launches(rng, Night(**changes), configs=2 + pooled_groups, rounds=rounds)  # type: ignore[arg-type]
        pooled = pooled_variance(rows) if pooled_groups else None
        low = compare(rows[0], [value * gain for value in rows[1]], pooled=pooled).low
        above += low is not None and low > 1
    return above / runs


def stopped(draw: Draw, truth: float, *, half: float, batches: bool, cap: int, runs: int, seed: int) -> tuple[float, float]:
    """Coverage of the interval that a precision target stopped at, and the mean number of values by then."""
    rng = np.random.default_rng(seed)
    held, counts = 0, []
    for _ in range(runs):
        values = draw(rng)
        count = next((n for n in range(1, cap + 1) if enough(values[:n], half, batches=batches)), cap)
        found = batch_means_interval(values[:count]) if batches else t_interval([math.log(value) for value in values[:count]])
        held += truth in found
        counts.append(count)
    return held / runs, statistics.fmean(counts)


def unsteady(draw: Draw, *, runs: int, seed: int) -> float:
    """Share of series that are called not steady."""
    rng = np.random.default_rng(seed)
    return sum(not steady(draw(rng)) for _ in range(runs)) / runs


def _intervals(runs: int, seed: int) -> Iterator[Rate]:
    few = max(200, runs // 8)
    for n in (5, 20):
        found = covered(t_interval, normal(n), 1.0, runs=runs, seed=seed)
        yield Rate(rule="t interval", situation=f"{n} normal values", what="holds the mean", promised="95 %", found=found, runs=runs)
    for n in (10, 20, 50):
        for name, statistic, truth in (("mean", statistics.fmean, math.exp(0.125)), ("median", statistics.median, 1.0)):
            found = covered(lambda v, s=statistic: bootstrap_interval(v, s, resamples=1000), lognormal(n), truth, runs=few, seed=seed)  # type: ignore[misc]
            yield Rate(rule="bootstrap", situation=f"{n} skewed", what=f"holds the {name}", promised="95 %", found=found, runs=few)
    for correlation in (0.0, 0.3, 0.5, 0.8):
        for n in (8, 16, 32, 64):
            found = covered(batch_means_interval, slices(n, correlation), 1.0, runs=runs, seed=seed)
            where = f"{n} slices, lag-1 correlation {correlation}"
            yield Rate(rule="batch means", situation=where, what="holds the mean", promised="95 %", found=found, runs=runs)
            plain = covered(t_interval, slices(n, correlation), 1.0, runs=runs, seed=seed)
            yield Rate(rule="(t interval)", situation=where, what="holds the mean", promised="–", found=plain, runs=runs)
    for rule, interval, promised in (("batch means", batch_means_interval, "95 %"), ("(t interval)", t_interval, "–")):
        found = covered(interval, undercurrent(64), 1.0, runs=runs, seed=seed)
        yield Rate(rule=rule, situation="64 slices, a slow wave", what="holds the mean", promised=promised, found=found, runs=runs)


def _bounds(runs: int, seed: int) -> Iterator[Rate]:
    for n, percent in ((10, 50), (50, 50), (100, 95)):
        found = covered(lambda v, p=percent: percentile_interval(v, p) or NOWHERE, uniform(n), percent / 100, runs=runs, seed=seed)  # type: ignore[misc]
        yield Rate(rule="percentile interval", situation=f"p{percent} of {n}", what="holds it", promised="≥ 95 %", found=found, runs=runs)
    for n in (10, 50):
        found = ratios(n, runs=runs, seed=seed)
        yield Rate(rule="ratio", situation=f"{n} requests of 1 to 10 steps", what="holds it", promised="95 %", found=found, runs=runs)
    for n, share in ((20, 0.9), (200, 0.99), (1000, 0.5)):
        found = succeeded(n, share, runs=runs, seed=seed)
        yield Rate(rule="Wilson", situation=f"{n} tries at {share}", what="holds the share", promised="95 %", found=found, runs=runs)
    for percent, n in ((90, 64), (95, 130), (95, 400), (99, 662), (99, 2000)):
        found = exceeded(n, percent, runs=runs, seed=seed)
        yield Rate(rule="percentile bound", situation=f"p{percent} of {n}", what="is too low", promised="≤ 1 %", found=found, runs=runs)


def _false_alarms(runs: int, seed: int) -> Iterator[Rate]:
    situations: tuple[tuple[str, int, int, dict[str, object]], ...] = (
        ("4 pairs", 4, 0, {}),
        ("4 pairs, drift of 10 % between rounds", 4, 0, {"round_sd": 0.1}),
        ("4 pairs, every 10th launch up to 20 % slow", 4, 0, {"outliers": 0.1}),
        ("8 pairs", 8, 0, {}),
        ("2 pairs, variance pooled over 4", 2, 2, {}),
        ("2 pairs, pooled, drift of 10 % between rounds", 2, 2, {"round_sd": 0.1}),
        ("4 pairs, host warms by 1 % a launch, ABAB", 4, 0, {"creep": -0.01}),
        ("4 pairs, host warms by 1 % a launch, ABBA", 4, 0, {"creep": -0.01, "alternate": True}),
        ("4 pairs, host speeds up by 1 % a launch, ABAB", 4, 0, {"creep": 0.01}),
        ("4 pairs, host speeds up by 1 % a launch, ABBA", 4, 0, {"creep": 0.01, "alternate": True}),
    )
    for where, rounds, groups, changes in situations:
        found = called_different(rounds, runs=runs, seed=seed, pooled_groups=groups, **changes)
        yield Rate(rule="compare, A/A", situation=where, what="says better", promised="2.5 %", found=found, runs=runs)
    nights = max(700, runs // 3)
    for where, night in (
        ("4 rounds", Night()),
        ("4 rounds, drift of 5 % between rounds", Night(round_sd=0.05)),
        ("4 rounds, windows of correlation 0.8", Night(correlation=0.8)),
        ("4 rounds, every 10th launch up to 20 % slow", Night(outliers=0.1)),
        ("2 rounds, variance pooled", Night(rounds=2)),
        ("4 rounds, host speeds up by 1 % a launch, ABAB", Night(creep=0.01)),
        ("4 rounds, host speeds up by 1 % a launch, ABBA", Night(creep=0.01, alternate=True)),
    ):
        found = improved_rate(night, nights=nights, seed=seed)
        yield Rate(rule="verdict, A/A", situation=where, what="is improved", promised="≤ 5 %", found=found, runs=3 * nights)
    rng = np.random.default_rng(seed)
    found = sum(mann_whitney(lognormal(20)(rng), lognormal(25)(rng)) <= 0.05 for _ in range(runs)) / runs
    yield Rate(rule="Mann-Whitney, A/A", situation="20 against 25 skewed", what="says different", promised="5 %", found=found, runs=runs)
    for n in (5, 8, 16, 40):
        for correlation, sd in ((0.0, 0.02), (0.0, 0.05), (0.5, 0.02), (0.5, 0.05)):
            where = f"{n} slices, noise {sd:.0%}, correlation {correlation}"
            found = unsteady(slices(n, correlation, sd), runs=runs, seed=seed)
            yield Rate(rule="steady", situation=where, what="says not steady", promised="≤ 1 %", found=found, runs=runs)


def ramp(n: int, sd: float, rise: float) -> Draw:
    """Slices of a rate that rises evenly by ``rise``."""
    return lambda rng: [(1 + rise * at / (n - 1)) * (1 + sd * float(rng.normal())) for at in range(n)]


def late(n: int, sd: float, short: float) -> Draw:
    """Slices of a rate that is steady but for the first of them."""
    return lambda rng: [(1 - short * (at == 0)) * (1 + sd * float(rng.normal())) for at in range(n)]


def settling(n: int, sd: float, short: float) -> Draw:
    """Slices of a rate that comes close to its final value, five time constants within the window."""
    return lambda rng: [(1 - short * math.exp(-5 * at / (n - 1))) * (1 + sd * float(rng.normal())) for at in range(n)]


def _power(runs: int, seed: int) -> Iterator[Rate]:
    for percent in (2.0, 5.0, 10.0):
        pairs = repeats_needed(LAUNCH_SD, percent)
        found = called_different(pairs, runs=runs, seed=seed, gain=1 + percent / 100, slice_sd=0.0)
        where = f"{percent:.0f} % better, {pairs} pairs at {LAUNCH_SD:.0%} launch to launch"
        yield Rate(rule="compare", situation=where, what="finds it", promised="≥ 80 %", found=found, runs=runs)
    for n in (5, 8, 16):
        found = unsteady(ramp(n, 0.02, 0.2), runs=runs, seed=seed)
        yield Rate(rule="steady", situation=f"{n} slices that rise by 20 %", what="says not steady", promised="–", found=found, runs=runs)
    for n in (5, 8, 16):
        for where, draw in (("the first 30 % low", late), ("settling from 30 % below", settling)):
            found = unsteady(draw(n, 0.02, 0.3), runs=runs, seed=seed)
            yield Rate(rule="steady", situation=f"{n} slices, {where}", what="says not steady", promised="–", found=found, runs=runs)
    for gain in (1.05, 1.1):
        nights = max(200, runs // 10)
        found = improved_rate(Night(gain=gain), nights=nights, seed=seed)
        where = f"{gain - 1:.0%} better, 4 rounds at {LAUNCH_SD:.0%} launch to launch"
        yield Rate(rule="verdict", situation=where, what="is improved", promised="–", found=found, runs=3 * nights)
    few = max(200, runs // 4)
    for sd in (0.01, 0.02, 0.05):
        draw, cap = lognormal(200, sd), 200
        held, count = stopped(draw, 0.0, half=1.5, batches=False, cap=cap, runs=few, seed=seed)
        where = f"answers of {sd:.0%}, to ±1.5 %: after {count:.0f}"
        yield Rate(rule="enough", situation=where, what="holds the median", promised="95 %", found=held, runs=few)
    for correlation in (0.0, 0.5):
        held, count = stopped(slices(100, correlation, 0.03), 1.0, half=2.0, batches=True, cap=100, runs=few, seed=seed)
        where = f"slices of 3 %, correlation {correlation}, to ±2 %: after {count:.0f}"
        yield Rate(rule="enough", situation=where, what="holds the mean", promised="95 %", found=held, runs=few)


def rates(runs: int, seed: int) -> Iterator[Rate]:
    """Every rule in every situation."""
    yield from _intervals(runs, seed)
    yield from _bounds(runs, seed)
    yield from _false_alarms(runs, seed)
    yield from _power(runs, seed)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if not given.json:
        print("| rule | situation | what | promised | found | runs |\n|---|---|---|---|---|---|")
    for rate in rates(given.runs, given.seed):
        row = f"| {rate.rule} | {rate.situation} | {rate.what} | {rate.promised} | {100 * rate.found:.1f} % | {rate.runs} |"
        print(json.dumps(asdict(rate)) if given.json else row, flush=True)


if __name__ == "__main__":
    main()
