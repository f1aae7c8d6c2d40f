"""Aggregates against slow transcriptions of their definitions, and the bootstrap against all resamples there are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import trim_mean

from vmpo.report import statistics


def ragged(seed, sizes):
    generator = np.random.default_rng(seed)
    return [generator.normal(size=size) for size in sizes]


@pytest.mark.parametrize("sizes", [(5,), (5, 5, 5), (3, 1, 4, 2), (1, 1), (2, 2, 2, 2, 2, 2, 2)])
def test_aggregates_equal_their_definitions(sizes):
    scores = ragged(0, sizes)
    means = sorted(sum(task) / len(task) for task in scores)
    middle = len(means) // 2
    median = means[middle] if len(means) % 2 else (means[middle - 1] + means[middle]) / 2
    pooled = sorted(value for task in scores for value in task)
    cut = int(0.25 * len(pooled))
    kept = pooled[cut : len(pooled) - cut]
    assert statistics.mean(scores) == pytest.approx(sum(means) / len(means))
    assert statistics.median(scores) == pytest.approx(median)
    assert statistics.interquartile_mean(scores) == pytest.approx(sum(kept) / len(kept))
    # The function that rliable calls.
    assert statistics.interquartile_mean(scores) == pytest.approx(trim_mean(np.concatenate(scores), 0.25))


def test_the_interquartile_mean_ignores_an_outlier_that_moves_the_mean():
    scores = [np.array([1.0, 2.0, 3.0, 4.0])]
    spoilt = [np.array([1.0, 2.0, 3.0, 4000.0])]
    assert statistics.interquartile_mean(scores) == statistics.interquartile_mean(spoilt) == 2.5
    assert statistics.mean(spoilt) > 1000


def test_a_score_at_the_threshold_is_not_above_it():
    scores = [np.array([1.0, 2.0]), np.array([2.0, 3.0, 4.0, 5.0])]
    assert statistics.above(scores, 2.0) == pytest.approx((0 / 2 + 3 / 4) / 2)


def test_a_profile_is_the_mean_over_tasks_of_the_share_of_runs_above():
    scores = ragged(1, (4, 2, 5))
    thresholds = np.linspace(-3, 3, 13)
    profile = statistics.performance_profile(scores, thresholds)
    expected = [np.mean([np.mean([value > t for value in task]) for task in scores]) for t in thresholds]
    np.testing.assert_allclose(profile.shares, expected)
    assert profile.shares[0] == 1
    assert profile.shares[-1] == 0
    assert profile.low is not None
    assert profile.high is not None
    assert (profile.low <= profile.shares + 1e-12).all()
    assert (profile.shares <= profile.high + 1e-12).all()
    assert (profile.high > profile.low).any()


@pytest.mark.parametrize("aggregate", statistics.AGGREGATES.values(), ids=statistics.AGGREGATES.keys())
def test_the_interval_is_that_of_all_resamples(aggregate):
    scores = [np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 3.5])]
    every = [
        float(aggregate([np.array(first), np.array(second)]))
        for first in itertools.product(scores[0], repeat=3)
        for second in itertools.product(scores[1], repeat=3)
    ]
    estimate = statistics.estimate(scores, aggregate, statistics.resample(scores, 20_000))
    assert estimate.value == pytest.approx(float(aggregate(scores)))
    # Percentiles of few distinct values jump; the neighbouring percentiles bound the jump.
    for given, percent in ((estimate.low, 2.5), (estimate.high, 97.5)):
        lower, upper = np.percentile(every, [percent - 1, percent + 1])
        assert lower - 1e-9 <= given <= upper + 1e-9


def test_a_resample_draws_runs_of_the_same_task():
    scores = [np.array([1.0, 2.0]), np.array([10.0, 20.0, 30.0])]
    drawn = statistics.resample(scores, 500)
    assert [task.shape for task in drawn] == [(500, 2), (500, 3)]
    assert [set(task.ravel().tolist()) for task in drawn] == [{1.0, 2.0}, {10.0, 20.0, 30.0}]
    # Independent between tasks: the first draw of one does not tell that of the other.
    together = {(a, b) for a, b in zip(drawn[0][:, 0].tolist(), drawn[1][:, 0].tolist(), strict=True)}
    assert len(together) == 6


def test_single_runs_have_no_interval():
    scores = [np.array([1.0]), np.array([2.0])]
    assert statistics.estimate(scores, statistics.mean) == statistics.Estimate(value=1.5, low=None, high=None)
    assert statistics.performance_profile(scores, np.array([1.5])).low is None
