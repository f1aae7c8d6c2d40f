"""Scores of the paper's suites: human-normalised returns, and their median, mean or capped mean over the levels."""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from statistics import fmean, median

CAP = 100.0
"""Above human level a DMLab-30 level counts no more (Espeholt et al. 2018)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What is known of one level."""

    random: float
    """Return of a random agent."""
    human: float
    """Return of a human."""
    published: dict[str, float] = field(default_factory=dict)
    """Returns of the paper's table by agent."""
    test_level: str = ""
    """Name of the held-out version, where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A suite of levels with a score of its own; tasks are called by its level names."""

    name: str
    levels: dict[str, Reference]
    capped: bool
    """The score is the mean over levels of what is capped at 100, instead of median and mean of what is not."""

    def normalised(self, level: str, episode_return: float) -> float:
        """Per cent of the way from a random agent to a human: 100 (E - R) / (H - R)."""
        reference = self.levels[level]
        return 100.0 * (episode_return - reference.random) / (reference.human - reference.random)

    def summary(self, returns: Mapping[str, float]) -> dict[str, float]:
        """Aggregate scores over the levels that have a return."""
        scores = [self.normalised(level, value) for level, value in returns.items()]
        if not scores:
            return {}
        if self.capped:
            return {"capped_mean": fmean(min(score, CAP) for score in scores)}
        return {"median": median(scores), "mean": fmean(scores)}


def _rows(file: str) -> list[dict[str, str]]:
    text = (resources.files("vmpo") / "data" / file).read_text()
    return list(csv.DictReader(text.splitlines()))


@functools.cache
def benchmarks() -> dict[str, Benchmark]:
    """The suites that have reference scores, by name."""
    atari = {
        row["game"]: Reference(
            random=float(row["random"]),
            human=float(row["human"]),
            published={"IMPALA": float(row["impala"]), "V-MPO": float(row["vmpo"])},
        )
        for row in _rows("atari57.csv")
    }
    lab = {
        row["train_level"]: Reference(
            random=float(row["random"]), human=float(row["human"]), test_level=row["test_level"]
        )
        for row in _rows("dmlab30.csv")
    }
    return {
        "atari57": Benchmark(name="atari57", levels=atari, capped=False),
        "dmlab30": Benchmark(name="dmlab30", levels=lab, capped=True),
    }


def benchmark_of(tasks: Iterable[str]) -> Benchmark | None:
    """The benchmark that all of these tasks belong to, if there is one."""
    names = set(tasks)
    return next((b for b in benchmarks().values() if names and names <= set(b.levels)), None)
