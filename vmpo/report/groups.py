"""Runs that differ only in their seed, and in which settings the others differ."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from vmpo import presets
from vmpo.config import to_dict
from vmpo.report.runs import Run, flattened

LONGEST_NAME = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs of one configuration. Single-task runs that differ in their task too belong together: one agent, many games.

    On any one task, the runs of a group differ in nothing but their seed.
    """

    name: str
    runs: tuple[Run, ...]

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(task for run in self.runs for task in run.task_columns))

    def scores(self, task: str) -> list[float]:
        """A score for each run that has one on the task."""
        scores = [run.score(task) for run in self.runs if task in run.task_columns]
        return [score for score in scores if score is not None]


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Groups in the order of their first runs."""
    members: dict[frozenset[tuple[str, str]], list[Run]] = {}
    for run in runs:
        members.setdefault(_key(run), []).append(run)
    names = [_name(group) for group in members.values()]
    taken = Counter(names)
    # Groups whose names are equal are told apart by their first run.
    names = [
        name if taken[name] == 1 else _short(group[0].name) for name, group in zip(names, members.values(), strict=True)
    ]
    return [Group(name=name, runs=tuple(group)) for name, group in zip(names, members.values(), strict=True)]


def differences(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Settings that are not the same in all runs: field -> the values of each group."""
    fields = list(dict.fromkeys(field for group in groups for run in group.runs for field in run.settings))
    rows = {
        field: [list(dict.fromkeys(run.settings.get(field, "–") for run in group.runs)) for group in groups]
        for field in fields
    }
    return {
        field: [", ".join(values) for values in row]
        for field, row in rows.items()
        if len({value for values in row for value in values}) > 1
    }


def from_preset(run: Run) -> dict[str, list[str]] | None:
    """Settings that are not as in the run's preset: field -> the preset's value and the run's; None if there is no
    such preset, as with a run of another version."""
    preset = presets.PRESETS.get(run.settings["preset"])
    if preset is None:
        return None
    values = flattened(to_dict(preset.config))
    return {
        field: [values.get(field, "–"), value] for field, value in run.settings.items() if values.get(field) != value
    }


def _key(run: Run) -> frozenset[tuple[str, str]]:
    left_out = {"run.seed", "preset"}  # A preset is where settings came from, not a setting.
    if len(run.task_columns) <= 1:
        left_out.add("env.id")
    return frozenset((field, value) for field, value in run.settings.items() if field not in left_out)


def _name(runs: Sequence[Run]) -> str:
    """What the names of the runs have in common, without the beginning of a seed: pong-seed0, pong-seed1 -> pong."""
    if len(runs) == 1:
        return _short(runs[0].name)
    letters = zip(*(run.name for run in runs), strict=False)
    common = "".join(same[0] for same in itertools.takewhile(lambda column: len(set(column)) == 1, letters))
    common = re.sub(r"([-_./ ]+(seeds?|s))?[-_./ ]*\d*$", "", common)
    return _short(common if len(common) > 2 else runs[0].settings["preset"])


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
