"""Curves small enough to embed: as many points as a screen can show, with their extremes kept."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from vmpo.report.groups import Group
from vmpo.report.runs import CLOCKS, HEALTH, Run

MOST_POINTS = 1000
"""Points of a curve of returns."""
FEWEST_POINTS = 100
BUDGET = 400_000
"""Points of the whole page: more and shorter curves where there are many runs or tasks."""
CLOCK_POINTS = 300
"""Points at which a run's frames and seconds are told; in between the page draws straight lines."""


def thinned(values: Float[np.ndarray, " N"], most: int) -> Int[np.ndarray, " M"]:
    """Positions of at most ``most`` points: the ends, and of each stretch in between its lowest and its highest point.

    Values are finite; peaks survive, which an average or every n-th point would lose.
    """
    if len(values) <= most:
        return np.arange(len(values))
    edges = np.linspace(1, len(values) - 1, (most - 2) // 2 + 1).astype(int)
    kept = {0, len(values) - 1}
    for start, stop in itertools.pairwise(edges):
        if stop > start:
            kept |= {start + int(values[start:stop].argmin()), start + int(values[start:stop].argmax())}
    return np.array(sorted(kept))


def numbers(values: Float[np.ndarray, " N"]) -> list[float | None]:
    """Six digits each, which no screen can tell from all of them; whole numbers without a point."""
    return [rounded(value) for value in values.tolist()]


def rounded(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.6g}")
    return int(short) if short == int(short) and abs(short) < 1e15 else short


def health_names(names: Iterable[str]) -> list[str]:
    """Those that are measurements of dual health, each once and in a fixed order."""
    known = sorted(set(names))
    return [name for kind in HEALTH for name in known if name == kind or (kind[-1] == "/" and name.startswith(kind))]


def minor(points: int) -> int:
    """Points of a curve of dual health or throughput, where a curve of returns has this many."""
    return max(FEWEST_POINTS, points // 3)


def points_per_curve(groups: Sequence[Group]) -> int:
    """Points that a curve of returns may have within the budget."""
    runs = [run for group in groups for run in group.runs]
    shares = sum(len(run.task_columns) + (len(health_names(run.columns)) + 1) / 3 for run in runs)
    return max(FEWEST_POINTS, min(MOST_POINTS, int(BUDGET / max(shares, 1))))


def curves(run: Run, points: int) -> dict[str, Any]:
    """What the page draws of a run: its clocks, and values over agent steps by chart."""
    wanted = {f"return {task}": (column, points) for task, column in run.task_columns.items()}
    wanted |= {f"health {name}": (name, minor(points)) for name in health_names(run.columns)}
    if "steps_per_second" in run.columns:
        wanted["throughput steps_per_second"] = ("steps_per_second", minor(points))
    steps = run.clocks["agent_steps"]
    drawn = {}
    for chart, (name, most) in wanted.items():
        finite = np.flatnonzero(np.isfinite(run.columns[name]))
        kept = finite[thinned(run.columns[name][finite], most)]
        drawn[chart] = [numbers(steps[kept]), numbers(run.columns[name][kept])]
    told = np.unique(np.linspace(0, max(len(steps) - 1, 0), min(CLOCK_POINTS, len(steps))).astype(int))
    return {"clocks": {clock: numbers(run.clocks[clock][told]) for clock in CLOCKS}, "curves": drawn}
