"""Aggregate scores as rliable defines them (Agarwal et al. 2021), as pure functions.

Scores come as one array per task whose last axis is runs; tasks may have different numbers of runs. Leading axes,
such as bootstrap resamples, are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

Scores: TypeAlias = Sequence[Float[np.ndarray, "*resamples _"]]
Aggregate: TypeAlias = Callable[[Scores], Float[np.ndarray, "*resamples"]]

RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """An aggregate over tasks and runs."""

    value: float
    low: float | None
    """Lower end of the bootstrap interval; None where every task has a single run, since nothing can be resampled."""
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Share of scores above each threshold."""

    thresholds: Float[np.ndarray, " K"]
    shares: Float[np.ndarray, " K"]
    low: Float[np.ndarray, " K"] | None
    high: Float[np.ndarray, " K"] | None


def median(scores: Scores) -> Float[np.ndarray, "*resamples"]:
    """Median over tasks of the mean over runs."""
    return np.asarray(np.median(_task_means(scores), axis=-1))


def mean(scores: Scores) -> Float[np.ndarray, "*resamples"]:
    """Mean over tasks of the mean over runs."""
    return np.asarray(np.mean(_task_means(scores), axis=-1))


def interquartile_mean(scores: Scores) -> Float[np.ndarray, "*resamples"]:
    """Mean of the middle half of all runs of all tasks: a quarter of them, rounded down, is cut off at each end."""
    pooled = np.sort(np.concatenate(list(scores), axis=-1), axis=-1)
    cut = pooled.shape[-1] // 4
    return np.asarray(pooled[..., cut : pooled.shape[-1] - cut].mean(axis=-1))


def above(scores: Scores, threshold: float) -> Float[np.ndarray, "*resamples"]:
    """Mean over tasks of the share of runs that score strictly more than the threshold."""
    return np.asarray(np.mean(_task_means([task > threshold for task in scores]), axis=-1))


AGGREGATES: dict[str, Aggregate] = {"median": median, "IQM": interquartile_mean, "mean": mean}


def resample(scores: Scores, count: int = RESAMPLES, seed: int = 0) -> Scores:
    """Stratified bootstrap: draw each task's runs anew, with replacement and independently of the other tasks."""
    generator = np.random.default_rng(seed)
    return [task[generator.integers(len(task), size=(count, len(task)))] for task in scores]


def estimate(scores: Scores, aggregate: Aggregate, resamples: Scores | None = None) -> Estimate:
    """The aggregate with its percentile bootstrap interval."""
    value = float(aggregate(scores))
    if not _can_resample(scores):
        return Estimate(value=value, low=None, high=None)
    low, high = _percentiles(aggregate(resample(scores) if resamples is None else resamples))
    return Estimate(value=value, low=float(low), high=float(high))


def performance_profile(
    scores: Scores, thresholds: Float[np.ndarray, " K"], resamples: Scores | None = None
) -> Profile:
    """Share of runs above each threshold, averaged over tasks, with pointwise bootstrap intervals."""
    shares = np.array([above(scores, threshold) for threshold in thresholds])
    if not _can_resample(scores):
        return Profile(thresholds=thresholds, shares=shares, low=None, high=None)
    drawn = resample(scores) if resamples is None else resamples
    intervals = np.array([_percentiles(above(drawn, threshold)) for threshold in thresholds])
    return Profile(thresholds=thresholds, shares=shares, low=intervals[:, 0], high=intervals[:, 1])


def _task_means(scores: Scores) -> Float[np.ndarray, "*resamples tasks"]:
    return np.stack([task.mean(axis=-1) for task in scores], axis=-1)


def _can_resample(scores: Scores) -> bool:
    return any(task.shape[-1] > 1 for task in scores)


def _percentiles(samples: Float[np.ndarray, " resamples"]) -> Float[np.ndarray, " ends"]:
    tail = 100 * (1 - LEVEL) / 2
    return np.percentile(samples, [tail, 100 - tail])
