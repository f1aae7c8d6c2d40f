"""Tables of scores: aggregates over tasks and seeds, and a benchmark's levels beside published results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vmpo.report import statistics
from vmpo.report.curves import numbers, rounded
from vmpo.report.groups import Group
from vmpo.scores import CAP, Benchmark, benchmarks

PROFILE_POINTS = 101

Normalise = Callable[[str, float], float]


def score_blocks(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """One block for each benchmark, and one for each task that belongs to none, where it has several scores.

    Returns of tasks without reference scores have no common scale, so that each stands for itself, over its seeds.
    """
    blocks = []
    tasks = list(dict.fromkeys(task for group in groups for task in group.tasks))
    for benchmark in benchmarks().values():
        levels = [task for task in tasks if task in benchmark.levels]
        if levels:
            blocks.append(_block(groups, levels, benchmark.name, _normaliser(benchmark), benchmark.capped))
        tasks = [task for task in tasks if task not in levels]
    blocks += [_block(groups, [task], task, lambda _, value: value, None) for task in tasks]
    return [block for block in blocks if block["several"]]


def level_tables(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """For each benchmark that is played: its levels, with the groups' returns beside the published ones."""
    tables = []
    for benchmark in benchmarks().values():
        played = {task for group in groups for task in group.tasks if task in benchmark.levels}
        members = [i for i, group in enumerate(groups) if any(group.scores(t) for t in group.tasks if t in played)]
        if members:
            rows = [_level(benchmark, level, [groups[i] for i in members]) for level in sorted(played)]
            tables.append({"benchmark": benchmark.name, "groups": members, "rows": rows})
    return tables


def _block(
    groups: Sequence[Group], tasks: list[str], title: str, normalise: Normalise, capped: bool | None
) -> dict[str, Any]:
    """Aggregates of the groups that play some of the tasks; ``capped`` is None where scores are plain returns."""
    scores = {
        i: [np.array([normalise(task, score) for score in group.scores(task)]) for task in tasks if group.scores(task)]
        for i, group in enumerate(groups)
    }
    scores = {i: values for i, values in scores.items() if values}
    pooled = np.concatenate([task for values in scores.values() for task in values]) if scores else np.zeros(1)
    low, high = min(0.0, pooled.min()), max(0.0, pooled.max())
    if capped is None:
        low, high = pooled.min(), pooled.max()
    # A little more on both sides, so that a profile begins at 1 and ends at 0.
    margin = 0.02 * (high - low) or 1.0
    thresholds = np.linspace(low - margin, high + margin, PROFILE_POINTS)
    return {
        "title": title,
        "normalised": capped is not None,
        "capped": bool(capped),
        "tasks": len(tasks),
        "several": any(sum(map(len, values)) > 1 for values in scores.values()),
        "groups": [_aggregates(i, groups[i], values, thresholds) for i, values in scores.items()],
    }


def _aggregates(index: int, group: Group, scores: list[np.ndarray], thresholds: np.ndarray) -> dict[str, Any]:
    drawn = statistics.resample(scores)
    estimates = {name: statistics.estimate(scores, kind, drawn) for name, kind in statistics.AGGREGATES.items()}
    profile = statistics.performance_profile(scores, thresholds, drawn)
    return {
        "group": index,
        "tasks": len(scores),
        "runs": [min(map(len, scores)), max(map(len, scores))],
        "estimates": {n: [rounded(e.value), rounded(e.low), rounded(e.high)] for n, e in estimates.items()},
        "profile": {
            "thresholds": numbers(profile.thresholds),
            "shares": numbers(profile.shares),
            "low": None if profile.low is None else numbers(profile.low),
            "high": None if profile.high is None else numbers(profile.high),
        },
    }


def _normaliser(benchmark: Benchmark) -> Normalise:
    def normalise(level: str, value: float) -> float:
        score = benchmark.normalised(level, value)
        return min(score, CAP) if benchmark.capped else score

    return normalise


def _level(benchmark: Benchmark, level: str, groups: Sequence[Group]) -> dict[str, Any]:
    reference = benchmark.levels[level]
    returns = [float(np.mean(scores)) if (scores := group.scores(level)) else None for group in groups]
    return {
        "level": level,
        "random": reference.random,
        "human": reference.human,
        "returns": [rounded(value) for value in returns],
        "normalised": [None if v is None else rounded(benchmark.normalised(level, v)) for v in returns],
        "published": {
            agent: [value, rounded(benchmark.normalised(level, value))] for agent, value in reference.published.items()
        },
    }
