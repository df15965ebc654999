from __future__ import annotations

import math
import random

import pytest
from scipy import stats

from autotuner.decide.statistics import MIN_PAIRS, compare, pooled_variance


def test_four_pairs_give_a_paired_interval_that_drift_does_not_widen():
    drift = [1.0, 1.3, 0.7, 1.1]
    baseline = [100 * d for d in drift]
    candidate = [110 * d * noise for d, noise in zip(drift, (1.001, 0.999, 1.0005, 0.9995), strict=True)]
    found = compare(baseline, candidate)
    assert found.method == "paired"
    assert found.ratio == pytest.approx(1.1, rel=1e-3)
    assert 1.095 < found.low < 1.1 < found.high < 1.105


def test_the_paired_interval_is_scipys():
    source = random.Random(3)
    baseline, candidate = ([100 * math.exp(source.gauss(0, 0.05)) for _ in range(6)] for _ in range(2))
    found = compare(baseline, candidate, confidence=0.99)
    reference = stats.ttest_rel([math.log(value) for value in candidate], [math.log(value) for value in baseline]).confidence_interval(0.99)
    assert (math.log(found.low), math.log(found.high)) == (pytest.approx(reference.low), pytest.approx(reference.high))


def test_fewer_pairs_without_a_pooled_variance_are_inconclusive():
    found = compare([100.0] * (MIN_PAIRS - 1), [150.0] * (MIN_PAIRS - 1))
    assert not found.conclusive
    assert found.ratio == pytest.approx(1.5)


def test_a_pooled_variance_stands_in_for_missing_pairs_only_with_enough_degrees_of_freedom():
    thin = pooled_variance([[100.0, 101.0], [50.0, 50.5]])
    thick = pooled_variance([[100.0, 101.0], [50.0, 50.5], [10.0, 10.1], [7.0, 7.05]])
    assert thin.df == 2
    assert not compare([100.0, 100.0], [150.0, 151.0], pooled=thin).conclusive
    assert compare([100.0, 100.0], [150.0, 151.0], pooled=thick).method == "pooled"
    assert not compare([100.0, 100.0], [150.0], pooled=thick).conclusive  # one launch of a configuration says nothing about the next


def test_pooled_variance_is_the_root_mean_square_of_log_deviations():
    found = pooled_variance([[math.e, 1 / math.e], [5.0]])
    assert found.df == 1
    assert found.sd == pytest.approx(math.sqrt(2))
    assert pooled_variance([[1.0], []]) is None


@pytest.mark.parametrize(("baseline", "candidate"), [([], [1.0]), ([1.0], []), ([0.0], [1.0]), ([1.0], [-1.0])])
def test_empty_or_unpositive_sides_are_refused(baseline, candidate):
    with pytest.raises(ValueError, match="positive"):
        compare(baseline, candidate)


def test_a_configuration_compared_with_itself_is_rarely_called_better():
    """2000 A/A comparisons with launch-to-launch noise of 5 %: at most 5 % may look better (expected 2.5 %)."""
    source = random.Random(7)
    better = 0
    for _ in range(2000):
        rows = [[100 * math.exp(source.gauss(0, 0.05)) for _ in range(4)] for _ in range(2)]
        better += compare(rows[0], rows[1]).low > 1
    assert better / 2000 <= 0.05


def test_a_real_difference_is_found():
    source = random.Random(7)
    found = 0
    for _ in range(200):
        baseline = [100 * math.exp(source.gauss(0, 0.02)) for _ in range(4)]
        found += compare(baseline, [110 * math.exp(source.gauss(0, 0.02)) for _ in baseline]).low > 1
    assert found > 190
