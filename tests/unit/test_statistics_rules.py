"""Intervals, bounds, trends and stop rules: what each refuses, its ends, and what holds whatever the values are."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from autotuner.decide.statistics import (
    MIN_ANSWERS,
    MIN_BATCHES,
    MIN_PAIRS,
    Interval,
    autocorrelation,
    batch_means_interval,
    bootstrap_interval,
    compare,
    enough,
    mann_whitney,
    percentile,
    percentile_bound,
    percentile_interval,
    ratio_interval,
    repeats_needed,
    steady,
    t_interval,
    trend,
    values_needed,
    wilson,
)

TIMES = st.floats(0.01, 1e4)
ONE_NUMBER_RULES = {
    "t_interval": (t_interval, 2),
    "batch_means_interval": (batch_means_interval, 5),
    "bootstrap_interval": (lambda values: bootstrap_interval(values, statistics.fmean, resamples=100), 2),
    "percentile": (lambda values: percentile(values, 50), 1),
    "percentile_interval": (lambda values: percentile_interval(values, 50), 1),
    "ratio_interval": (lambda values: ratio_interval([(value, 1.0) for value in values]), 2),
    "percentile_bound": (lambda values: percentile_bound(values, 50), 1),
    "trend": (trend, 3),
    "mann_whitney": (lambda values: mann_whitney(values, [1.0, 2.0]), 1),
}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ONE_NUMBER_RULES)
def test_what_is_no_finite_number_is_refused_and_named_by_its_place(name, bad):
    rule, _ = ONE_NUMBER_RULES[name]
    with pytest.raises(ValueError, match=r"value 3 of 8 is -?(nan|inf), which is no finite number"):
        rule([1.0, 2.0, 3.0, bad, 4.0, 5.0, 6.0, 7.0])


@pytest.mark.parametrize("name", ONE_NUMBER_RULES)
def test_too_few_values_are_refused_and_just_enough_are_not(name):
    rule, least = ONE_NUMBER_RULES[name]
    with pytest.raises(ValueError, match=f"{least} or more values are needed, not {least - 1}"):
        rule([1.0, 2.5, 2.0, 3.0, 4.0][: least - 1])
    rule([1.0, 2.5, 2.0, 3.0, 4.0][:least])


@pytest.mark.parametrize("rule", [steady, lambda values: enough(values, 1.0), autocorrelation])
def test_rules_that_only_wait_for_more_take_no_values_but_never_nonsense(rule):
    assert rule([]) in {True, False}
    with pytest.raises(ValueError, match="no finite number"):
        rule([math.nan])


def test_a_comparison_refuses_what_is_not_finite():
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="positive"):
            compare([1.0, bad], [1.0, 2.0])
        with pytest.raises(ValueError, match="positive"):
            compare([1.0, 2.0], [2.0, bad])


@pytest.mark.parametrize("level", [0.0, 1.0, 1.5, math.nan])
def test_a_level_that_is_no_probability_is_refused(level):
    for rule in (
        lambda: t_interval([1, 2], level),
        lambda: wilson(1, 2, level),
        lambda: percentile_bound([1, 2], 50, level),
        lambda: bootstrap_interval([1, 2], statistics.fmean, level=level),
        lambda: batch_means_interval([1, 2, 3, 4, 6], level),
        lambda: repeats_needed(0.1, 5, level=level),
        lambda: repeats_needed(0.1, 5, power=level),
    ):
        with pytest.raises(ValueError, match="must lie between 0 and 1"):
            rule()


def test_constants_have_intervals_without_width():
    for rule in (t_interval, batch_means_interval, lambda values: bootstrap_interval(values, statistics.median)):
        found = rule([3.5] * 12)
        assert (found.low, found.high) == (pytest.approx(3.5), pytest.approx(3.5))
    assert (trend([3.5] * 12).p, trend([3.5] * 12).drift, trend([0.0] * 12).drift) == (1.0, 0.0, 0.0)
    assert autocorrelation([3.5] * 12) == 0
    assert mann_whitney([2.0] * 5, [2.0] * 7) == 1


# --- intervals ---------------------------------------------------------------------------------------------------------------


@given(st.lists(TIMES, min_size=2, max_size=30), st.floats(0.5, 0.999))
def test_the_t_interval_is_scipys(values, level):
    found = t_interval(values, level)
    error = stats.sem(values)
    if error > 1e-9 * max(values):
        low, high = stats.t.interval(level, len(values) - 1, loc=statistics.fmean(values), scale=error)
        assert (found.low, found.high) == (pytest.approx(low, rel=1e-6, abs=1e-6), pytest.approx(high, rel=1e-6, abs=1e-6))
    assert found.low <= statistics.fmean(values) <= found.high or found.half_width < 1e-9


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_wilsons_interval_is_scipys_and_stays_among_shares(counts, level):
    found = wilson(*counts, level)
    reference = stats.binomtest(*counts).proportion_ci(level, method="wilson")
    assert (found.low, found.high) == (pytest.approx(reference.low, abs=1e-9), pytest.approx(reference.high, abs=1e-9))
    assert 0 <= found.low <= counts[0] / counts[1] <= found.high <= 1


@given(st.lists(st.tuples(TIMES, TIMES), min_size=2, max_size=30))
def test_a_ratio_is_that_of_the_totals_and_equal_shares_have_no_width(pairs):
    found = ratio_interval(pairs)
    ratio = sum(above for above, _ in pairs) / sum(below for _, below in pairs)
    assert (found.low + found.high) / 2 == pytest.approx(ratio)
    same = ratio_interval([(2.0 * below, below) for _, below in pairs])
    assert (same.low, same.high) == (pytest.approx(2.0), pytest.approx(2.0))


def test_a_ratio_of_equal_parts_is_a_mean():
    values = [3.0, 4.0, 6.0, 5.5]
    found, mean = ratio_interval([(value, 1.0) for value in values]), t_interval(values)
    assert (found.low, found.high) == (pytest.approx(mean.low), pytest.approx(mean.high))
    with pytest.raises(ValueError, match="cannot be"):
        ratio_interval([(1.0, 0.0), (2.0, 0.0)])


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (3, 2), (-1, 2)])
def test_counts_that_cannot_be_are_refused(successes, n):
    with pytest.raises(ValueError, match="cannot be"):
        wilson(successes, n)


@settings(max_examples=25)
@given(st.lists(TIMES, min_size=2, max_size=25), st.sampled_from([statistics.fmean, statistics.median, max]))
def test_a_bootstrap_interval_is_of_values_that_samples_can_have_and_is_the_same_for_the_same_seed(values, statistic):
    found = bootstrap_interval(values, statistic, resamples=100)
    assert min(values) - 1e-6 <= found.low <= found.high <= max(values) + 1e-6
    assert found == bootstrap_interval(values, statistic, resamples=100)


def test_a_bootstrap_refuses_a_statistic_that_is_no_number_and_too_few_resamples():
    with pytest.raises(ValueError, match="the statistic of the values is nan"):
        bootstrap_interval([1, 2], lambda _: math.nan)
    with pytest.raises(ValueError, match="100 resamples, not 10"):
        bootstrap_interval([1, 2], statistics.fmean, resamples=10)


@given(st.lists(TIMES, min_size=5, max_size=60), st.floats(0.1, 1000))
def test_a_batch_means_interval_has_the_mean_in_its_middle_and_scales_with_the_unit(values, unit):
    found, other = batch_means_interval(values), batch_means_interval([value * unit for value in values])
    assert (found.low + found.high) / 2 == pytest.approx(statistics.fmean(values))
    if found.half_width > 1e-6 * max(values):  # below, rounding decides whether neighbours are alike
        assert other.half_width == pytest.approx(found.half_width * unit, rel=1e-3)


def test_neighbours_that_are_alike_widen_the_interval_and_the_same_values_shuffled_do_not():
    wave = [10 + math.sin(at / 5) for at in range(64)]
    mixed = list(wave)
    random.Random(3).shuffle(mixed)
    assert autocorrelation(wave) > 0.9
    assert batch_means_interval(wave).half_width > 2 * t_interval(wave).half_width
    assert batch_means_interval(mixed).half_width < 1.5 * t_interval(mixed).half_width


def test_autocorrelation_by_hand():
    assert autocorrelation([1, 2, 3, 4]) == pytest.approx((-1.5 * -0.5 + -0.5 * 0.5 + 0.5 * 1.5) / 5)
    assert autocorrelation([1, -1, 1, -1]) == pytest.approx(-0.75)


def test_an_interval_knows_what_it_holds():
    found = Interval(1.0, 3.0, 0.95)
    assert 1.0 in found
    assert 3.1 not in found
    assert found.half_width == 1.0


# --- percentiles -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("percent", "needed"), [(90, 64), (95, 130), (99, 662)])
def test_a_percentile_has_a_bound_from_the_number_of_values_on_that_mlperf_asks_for(percent, needed):
    assert values_needed(percent) == needed
    assert percentile_bound(range(needed - 1), percent).upper is None
    found = percentile_bound(range(needed), percent)
    assert (found.upper, found.n, found.needed) == (needed - 1, needed, needed)


def test_more_values_bring_the_bound_down_to_the_percentile():
    bounds = [percentile_bound([at / n for at in range(n)], 90).upper for n in (64, 200, 1000, 20_000)]
    assert bounds == sorted(bounds, reverse=True)
    assert 0.9 < bounds[-1] < 0.91


@given(st.lists(TIMES, min_size=1, max_size=200, unique=True), st.sampled_from([10.0, 50.0, 90.0, 95.0]))
def test_a_bound_is_the_lowest_value_that_the_binomial_rule_allows(values, percent):
    found = percentile_bound(values, percent)
    assert (found.upper is None) == (len(values) < found.needed)
    if found.upper is not None:
        assert found.upper in values
        assert found.upper >= found.value - 1e-9
        rank = sum(value >= found.upper for value in values)
        assert stats.binom.cdf(rank, len(values), 1 - percent / 100) <= 0.01 < stats.binom.cdf(rank + 1, len(values), 1 - percent / 100)


@given(st.integers(1, 300), st.sampled_from([5.0, 50.0, 90.0, 95.0]), st.sampled_from([0.8, 0.95, 0.99]))
def test_an_interval_of_a_percentile_takes_the_ranks_of_the_binomial_distribution(n, percent, level):
    found = percentile_interval(range(n), percent, level)
    below = stats.binom(n, percent / 100)
    if found is None:
        assert below.cdf(0) > (1 - level) / 2 - 1e-12 or below.cdf(n - 1) < (1 + level) / 2 + 1e-12
    else:
        low, high = int(found.low), int(found.high)  # of sorted values the first is number 0
        assert below.cdf(high) - below.cdf(low) >= level - 1e-9
        assert below.cdf(low) < (1 - level) / 2 + 1e-9
        assert low == 0 or below.cdf(low + 1) > (1 - level) / 2 - 1e-9


@pytest.mark.parametrize("percent", [0, 100, -1, math.nan])
def test_there_is_no_bound_at_the_ends(percent):
    with pytest.raises(ValueError, match="between 0 and 1"):
        percentile_bound([1.0, 2.0], percent)


def test_percentiles_out_of_reach_are_refused():
    with pytest.raises(ValueError, match="needs more than"):
        values_needed(99.9999999)
    with pytest.raises(ValueError, match="between 0 and 100"):
        percentile([1.0], 101)


# --- ranks, trends -----------------------------------------------------------------------------------------------------------


def test_four_against_four_apart_by_ranks_is_the_exact_chance():
    assert mann_whitney([1, 2, 3, 4], [5, 6, 7, 8]) == pytest.approx(2 / 70)


@given(st.lists(TIMES, min_size=1, max_size=12), st.lists(TIMES, min_size=1, max_size=12))
def test_ranks_do_not_care_which_side_is_which_nor_for_the_unit(a, b):
    p = mann_whitney(a, b)
    assert 0 <= p <= 1
    assert p == pytest.approx(mann_whitney(b, a))
    assert p == pytest.approx(mann_whitney([4 * value for value in a], [4 * value for value in b]))


@given(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=40))
def test_a_trend_is_scipys_regression(values):
    found, reference = trend(values), stats.linregress(range(len(values)), values)
    assert found.slope == pytest.approx(reference.slope, abs=1e-6)
    assert 0 <= found.p <= 1
    if max(values) - min(values) > 1e-3:
        assert found.p == pytest.approx(reference.pvalue, abs=1e-4)


def test_a_line_is_a_trend_for_sure_and_its_drift_is_a_share_of_the_mean():
    found = trend([90, 95, 100, 105, 110])
    assert (found.slope, found.p, found.drift) == (pytest.approx(5), 0.0, pytest.approx(0.2))
    assert trend([-1.0, 0.0, 1.0]).drift == math.inf
    assert trend([1.0, 0.0, -1.0]).drift == -math.inf


def test_a_drift_that_matters_is_not_steady_in_either_direction_and_a_small_one_is():
    assert not steady([100, 97, 93, 91, 88])
    assert not steady([88, 91, 93, 97, 100])
    assert steady([100, 101, 102, 103])
    assert not steady([100, 101, 102, 103], tolerance=0.01)
    assert steady([100, 150, 200])  # too few to say


def test_a_window_that_began_before_the_warm_up_was_over_is_not_steady_unless_that_hardly_moves_its_mean():
    rest = [100, 101, 99, 100, 100, 101, 99, 100]
    assert not steady([70, *rest])
    assert not steady([130, *rest])
    assert steady([80, *rest])  # a ninth of 20 % is little
    assert not steady([80, *rest[:4]])
    assert steady([70, 130, 70, 130, 70, 130, 70, 130])  # no more apart than the others are
    assert steady([100.0] * 9)


# --- how much to measure -----------------------------------------------------------------------------------------------------


def test_a_stop_needs_its_fewest_values_however_alike_they_are():
    assert not enough([2.0] * (MIN_ANSWERS - 1), 1.5)
    assert enough([2.0] * MIN_ANSWERS, 1.5)
    assert not enough([2.0] * (MIN_BATCHES - 1), 1.5, batches=True)
    assert enough([2.0] * MIN_BATCHES, 1.5, batches=True)


@given(st.lists(st.floats(0.5, 2.0), min_size=MIN_BATCHES, max_size=40), st.floats(0.1, 20), st.booleans())
def test_a_wider_target_is_met_whenever_a_narrow_one_is(values, half, batches):
    assert enough(values, 2 * half, batches=batches) or not enough(values, half, batches=batches)


def test_answers_stop_by_their_ratio_so_the_unit_does_not_matter():
    rng = random.Random(1)
    values = [math.exp(rng.gauss(0, 0.01)) for _ in range(8)]
    half = 100 * (math.exp(t_interval([math.log(value) for value in values]).half_width) - 1)
    for unit in (1e-3, 1.0, 1e3):
        assert enough([unit * value for value in values], half * 1.001)
        assert not enough([unit * value for value in values], half * 0.999)


def test_slices_whose_neighbours_are_alike_are_measured_for_longer():
    wave = [100 * (1 + 0.03 * math.sin(at / 4)) for at in range(24)]
    mixed = list(wave)
    random.Random(5).shuffle(mixed)
    assert enough(mixed, 2.0, batches=True)
    assert not enough(wave, 2.0, batches=True)


@pytest.mark.parametrize("half", [0, -1.5, math.nan])
def test_a_target_without_width_is_refused(half):
    with pytest.raises(ValueError, match="half width"):
        enough([1.0] * 9, half)


def test_times_that_are_not_positive_are_refused_and_a_rate_of_zero_is_never_enough():
    with pytest.raises(ValueError, match="above 0"):
        enough([1.0, 0.0, 1.0, 1.0, 1.0], 1.5)
    assert not enough([0.0] * 9, 1.5, batches=True)


@given(st.floats(0.001, 0.3), st.floats(0.5, 50))
def test_more_noise_and_smaller_differences_need_more_repeats(sd, percent):
    pairs = repeats_needed(sd, percent)
    assert pairs >= MIN_PAIRS
    assert repeats_needed(2 * sd, percent) >= pairs
    assert repeats_needed(sd, percent / 2) >= pairs
    assert repeats_needed(sd, percent, power=0.95) >= pairs


def test_repeats_by_the_book():
    """Cohen: for an effect of half a standard deviation, two-sided at 5 %, 34 pairs have a power of 80 %."""
    sd = math.log1p(0.1) / 0.5 / math.sqrt(2)
    assert repeats_needed(sd, 10) == 34
    assert repeats_needed(0.0, 1) == MIN_PAIRS


@pytest.mark.parametrize(("sd", "percent"), [(-0.1, 5), (0.1, 0), (0.1, -5), (0.1, math.nan), (math.nan, 5), (0.1, math.inf)])
def test_what_cannot_be_planned_for_is_refused(sd, percent):
    with pytest.raises(ValueError, match=r"cannot be planned|no finite number"):
        repeats_needed(sd, percent)
