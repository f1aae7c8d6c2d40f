"""What docs/results.md reports: for each task the runs side by side, as words after ``vmpo train``, and the bar."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Experiment:
    groups: Mapping[str, str]
    """Options of each curve; seed, directory and threads are added."""
    seeds: tuple[int, ...] = (200, 201, 202)
    """Reported ones. Settings were tuned on others."""
    bar: float
    """What V-MPO is to reach: mean return, greedy over 100 episodes unless ``sampled``."""
    sampled: bool = False
    """Whether the bar is for the last ``window`` training episodes."""
    window: int = 100
    """Episodes of the running mean."""


EXPERIMENTS: dict[str, Experiment] = {
    "cartpole": Experiment(groups={"vmpo": "cartpole"}, seeds=(200, 201, 202, 203, 204), bar=500.0),
}
