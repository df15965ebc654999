"""How often the statistics are wrong, on simulated measurements with fixed seeds: the rates that docs/statistics.md promises.

Bounds leave room for the chance of 2000 runs (three standard errors), none for a rule that is wrong; the tests at the end show that the
simulation tells one from the other.
"""

from __future__ import annotations

import math
import statistics

import pytest

from autotuner.decide.statistics import batch_means_interval, bootstrap_interval, percentile_interval, repeats_needed, t_interval
from benchmarks.error_rates import (
    called_different,
    covered,
    exceeded,
    late,
    lognormal,
    normal,
    ramp,
    ratios,
    settling,
    slices,
    stopped,
    succeeded,
    undercurrent,
    uniform,
    unsteady,
)
from benchmarks.simulated_nights import LAUNCH_SD, Night, improved_rate

RUNS, SEED = 2000, 11
HIGH = 0.95 + 3 * math.sqrt(0.95 * 0.05 / RUNS)
LOW = 0.95 - 3 * math.sqrt(0.95 * 0.05 / RUNS)


@pytest.mark.parametrize("n", [2, 5, 20])
def test_t_intervals_hold_the_mean_as_often_as_they_say(n):
    assert LOW <= covered(t_interval, normal(n), 1.0, runs=RUNS, seed=SEED) <= HIGH
    ninety = covered(lambda values: t_interval(values, 0.9), normal(n), 1.0, runs=RUNS, seed=SEED)
    assert ninety == pytest.approx(0.9, abs=0.021)


@pytest.mark.parametrize(
    ("n", "correlation", "least"), [(8, 0.0, LOW), (64, 0.0, LOW), (8, 0.3, 0.91), (32, 0.3, 0.92), (16, 0.5, 0.89), (64, 0.5, 0.93)]
)
def test_batch_means_hold_the_mean_although_neighbours_are_alike(n, correlation, least):
    assert least <= covered(batch_means_interval, slices(n, correlation), 1.0, runs=RUNS, seed=SEED) <= 0.99


def test_batch_means_see_a_slow_wave_under_the_noise_by_merging():
    assert covered(batch_means_interval, undercurrent(64), 1.0, runs=RUNS, seed=SEED) >= 0.85


def test_a_bootstrap_holds_the_median_of_skewed_times():
    def interval(values):
        return bootstrap_interval(values, statistics.median, resamples=300)

    found = covered(interval, lognormal(30), 1.0, runs=300, seed=SEED)
    assert 0.90 <= found <= 0.98


@pytest.mark.parametrize(("n", "percent"), [(10, 50), (100, 95)])
def test_intervals_of_percentiles_hold_them(n, percent):
    assert LOW <= covered(lambda values: percentile_interval(values, percent), uniform(n), percent / 100, runs=RUNS, seed=SEED) <= 0.99


def test_intervals_of_ratios_hold_them():
    assert 0.92 <= ratios(20, runs=RUNS, seed=SEED) <= HIGH


@pytest.mark.parametrize(("n", "share"), [(20, 0.9), (200, 0.99), (1000, 0.5)])
def test_wilsons_intervals_hold_the_share(n, share):
    assert 0.92 <= succeeded(n, share, runs=RUNS, seed=SEED) <= 0.99


@pytest.mark.parametrize(("percent", "n"), [(90, 64), (90, 500), (95, 130), (99, 662)])
def test_a_percentile_lies_above_its_bound_once_in_a_hundred_at_most(percent, n):
    assert exceeded(n, percent, runs=RUNS, seed=SEED) <= 0.01


@pytest.mark.parametrize(
    ("rounds", "groups", "changes"),
    [
        (4, 0, {}),
        (4, 0, {"correlation": 0.9}),
        (4, 0, {"round_sd": 0.1}),
        (4, 0, {"outliers": 0.1}),
        (4, 0, {"creep": 0.01, "alternate": True}),
        (2, 2, {}),
        (2, 2, {"round_sd": 0.1}),
    ],
    ids=str,
)
def test_a_configuration_beside_itself_is_called_better_once_in_twenty_at_most(rounds, groups, changes):
    assert called_different(rounds, pooled_groups=groups, runs=RUNS, seed=SEED, **changes) <= 0.05


@pytest.mark.parametrize(
    "night",
    [
        Night(),
        Night(correlation=0.9, slice_sd=0.1),
        Night(round_sd=0.05),
        Night(creep=0.01, alternate=True),
        Night(rounds=2),
    ],
    ids=["plain", "autocorrelated", "drifting", "speeding-up", "pooled"],
)
def test_a_night_in_which_nothing_differs_improves_a_workload_once_in_twenty_at_most(night):
    """Search, finalists, confirmation and verdict, 700 nights of three workloads: 2100 verdicts."""
    assert improved_rate(night, nights=700, seed=SEED) <= 0.05


@pytest.mark.parametrize("percent", [2.0, 5.0])
def test_the_planned_repeats_find_the_difference_as_often_as_planned(percent):
    pairs = repeats_needed(LAUNCH_SD, percent)
    found = called_different(pairs, gain=1 + percent / 100, slice_sd=0.0, runs=RUNS, seed=SEED)
    assert found >= 0.8 - 0.027
    if pairs > 4:
        one_less = called_different(pairs - 1, gain=1 + percent / 100, slice_sd=0.0, runs=RUNS, seed=SEED)
        assert one_less < found


def test_a_difference_is_found_in_a_night_as_the_verdict_judges_it():
    assert improved_rate(Night(gain=1.10), nights=100, seed=SEED) >= 0.9


@pytest.mark.parametrize("sd", [0.01, 0.02])
def test_stopping_when_the_interval_is_narrow_costs_little_coverage(sd):
    held, count = stopped(lognormal(100, sd), 0.0, half=1.5, batches=False, cap=100, runs=500, seed=SEED)
    assert held >= 0.90
    assert count < 20


def test_what_is_steady_is_rarely_called_unsteady_and_a_ramp_is_seen():
    assert unsteady(slices(8, 0.0, 0.05), runs=RUNS, seed=SEED) <= 0.01 + 0.007
    assert unsteady(ramp(8, 0.02, 0.2), runs=500, seed=SEED) >= 0.98
    assert unsteady(late(5, 0.02, 0.3), runs=500, seed=SEED) >= 0.98
    assert unsteady(settling(8, 0.02, 0.3), runs=500, seed=SEED) >= 0.95


# --- the simulation can tell ---------------------------------------------------------------------------------------------------


def test_plain_intervals_of_values_that_are_alike_are_seen_to_be_too_narrow():
    assert covered(t_interval, slices(32, 0.5), 1.0, runs=RUNS, seed=SEED) < 0.8


def test_an_order_that_favours_one_side_is_seen():
    assert called_different(4, creep=0.01, runs=RUNS, seed=SEED) > 0.05
    assert improved_rate(Night(creep=0.01), nights=700, seed=SEED) > 0.05


def test_a_bound_that_promises_less_is_seen_to_keep_less():
    assert 0.01 < exceeded(662, 99, level=0.8, runs=RUNS, seed=SEED) <= 0.2
