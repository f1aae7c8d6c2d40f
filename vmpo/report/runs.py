"""Run directories as a report reads them: settings and measured curves, as data. Nothing of a run is executed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from vmpo.config import Config, to_dict
from vmpo.errors import UserError
from vmpo.run_directory import RunDirectory

CLOCKS = ("agent_steps", "frames", "seconds")
"""Every line of metrics has these three; they are the axes of the report's curves."""

PHASES = ("simulate", "infer", "wait", "learn", "rest")
HEALTH = ("temperature", "e_step_kl_over_bound", "kl_over_bound/", "alpha/", "entropy")
"""Dual health: fields by name, or all whose name begins with one that ends in a slash."""

KEPT = ("return_mean", "return/", "steps_per_second", "phase/", *HEALTH)

LARGEST = 1e300
"""A number beyond this is no measurement, and would overflow in the page's arithmetic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The greedy one at the end of a run."""

    mean: float
    deviation: float
    episodes: int
    agent_steps: int
    """Of the evaluated weights; a run that was resumed may be beyond them."""
    tasks: dict[str, float]
    """Mean return of each, where there are several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    name: str
    """End of the path, as long as needed to be unique among the runs of the report."""
    path: Path
    settings: dict[str, str]
    """``section.field`` -> its value as text."""
    clocks: dict[str, Float[np.ndarray, " rows"]]
    columns: dict[str, Float[np.ndarray, " rows"]]
    """Measured values; NaN where a line lacks one."""
    notes: tuple[str, ...]
    """What could not be read."""
    evaluation: Evaluation | None = None

    @property
    def task_columns(self) -> dict[str, str]:
        """Task -> the column of its return. With one task it goes by the environment's id."""
        several = {name.removeprefix("return/"): name for name in self.columns if name.startswith("return/")}
        if several:
            return dict(sorted(several.items()))
        return {self.settings["env.id"]: "return_mean"} if "return_mean" in self.columns else {}

    def score(self, task: str) -> float | None:
        """The last measured return of a task: the mean over its last 100 training episodes."""
        column = self.columns[self.task_columns[task]]
        finite = column[np.isfinite(column)]
        return float(finite[-1]) if len(finite) else None

    def last(self, clock: str) -> float:
        return float(self.clocks[clock][-1]) if len(self.clocks[clock]) else 0.0

    def phase_shares(self) -> dict[str, float]:
        """Mean share of each phase over the lines that tell it."""
        columns = {phase: self.columns.get(f"phase/{phase}") for phase in PHASES}
        return {
            phase: float(np.nanmean(column))
            for phase, column in columns.items()
            if column is not None and np.isfinite(column).any()
        }


def read_runs(directories: Iterable[str | Path]) -> list[Run]:
    """The runs in these folders; one that is given twice counts once."""
    named = [path for directory in directories for path in _trials(Path(directory))]
    given = {os.path.realpath(path): path for path in named}
    if not given:
        raise UserError("a report needs at least one run directory: vmpo report runs/cartpole-... --out report.html")
    names = _names([Path(real) for real in given])
    return [_read_run(path, name) for path, name in zip(given.values(), names, strict=True)]


def _trials(path: Path) -> list[Path]:
    """The trials of a sweep that have begun, or the run itself."""
    if not (path / "sweep.json").is_file():
        return [path]
    begun = sorted(file.parent for file in path.glob("trial_*/config.json"))
    if not begun:
        raise UserError(f"no trial of the sweep {path} has begun")
    return begun


def _read_run(path: Path, name: str) -> Run:
    if not path.is_dir():
        raise UserError(f"{path} is no run directory")
    settings = _read_settings(RunDirectory(path).config_file)
    rows, notes = _read_rows(path / "metrics.jsonl")
    # A stable sort: lines of a run that was resumed by hand may overlap.
    rows.sort(key=lambda row: row["agent_steps"])
    names = sorted({name for row in rows for name in row})
    columns = {name: np.array([row.get(name, math.nan) for row in rows], np.float64) for name in names}
    clocks = {clock: np.maximum.accumulate(columns.pop(clock, np.zeros(0))) for clock in CLOCKS}
    columns = {name: column for name, column in columns.items() if np.isfinite(column).any()}
    try:
        evaluation = _read_evaluation(RunDirectory(path).evaluation_file)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        evaluation = None
        notes.append("evaluation.json cannot be read")
    return Run(
        name=name,
        path=path,
        settings=settings,
        clocks=clocks,
        columns=columns,
        notes=tuple(notes),
        evaluation=evaluation,
    )


def _read_evaluation(path: Path) -> Evaluation | None:
    if not path.is_file():
        return None
    summary = json.loads(path.read_bytes())["summary"]
    tasks = {str(task): float(values["mean_return"]) for task, values in summary.get("tasks", {}).items()}
    mean, deviation = float(summary["mean_return"]), float(summary["std_return"])
    if not all(abs(number) <= LARGEST for number in (mean, deviation, *tasks.values())):
        raise ValueError("no measurement")
    counts = int(summary["episodes"]), int(summary["agent_steps"])
    return Evaluation(mean=mean, deviation=deviation, episodes=counts[0], agent_steps=counts[1], tasks=tasks)


def _read_settings(path: Path) -> dict[str, str]:
    """The configuration as text, whichever version of this package wrote it.

    Fields that are newer than the run have their defaults, and fields that are not known here are kept: runs of
    several versions can stand side by side. Nothing that a configuration names is imported.
    """
    if not path.is_file():
        raise RunDirectory(path.parent).no_run()
    try:
        values = json.loads(path.read_bytes())
        if not isinstance(values, dict):
            raise UserError(f"{path} must be an object of settings, not {str(values)[:40]}")
        return {**flattened(to_dict(Config())), **flattened(values)}
    except UserError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def flattened(config: Mapping[str, Any]) -> dict[str, str]:
    """``section.field`` -> its value as text."""
    flat: dict[str, str] = {}
    for section, fields in config.items():
        if isinstance(fields, dict):
            flat |= {f"{section}.{field}": _text(value) for field, value in fields.items()}
        else:
            flat[section] = _text(fields)
    return flat


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)  # 1 and 1.0 are the same setting.
    return value if isinstance(value, str) else json.dumps(value)


def _read_rows(path: Path) -> tuple[list[dict[str, float]], list[str]]:
    """The lines that can be read, and a note on those that cannot."""
    if not path.is_file():
        return [], ["has no metrics.jsonl"]
    rows, damaged = [], 0
    with open(path, "rb") as file:
        for raw in file:
            row = _row(raw)
            if row is None:
                damaged += 1
            else:
                rows.append(row)
    notes = []
    if damaged:
        notes.append(f"{damaged} damaged line{'s' if damaged > 1 else ''} of metrics.jsonl skipped")
    if not rows:
        notes.append("metrics.jsonl has no line that can be read")
    return rows, notes


def _row(raw: bytes) -> dict[str, float] | None:
    """The numbers of a line that a report uses; None for a damaged line, such as one without its clocks."""
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict):
        return None
    row = {
        name: float(value)
        for name, value in line.items()
        if _is_kept(name) and type(value) in (int, float) and abs(value) <= LARGEST
    }
    return row if all(clock in row for clock in CLOCKS) else None


def _is_kept(name: str) -> bool:
    return name in CLOCKS or any(name == kept or (kept[-1] == "/" and name.startswith(kept)) for kept in KEPT)


def _names(paths: Sequence[Path]) -> list[str]:
    """The last parts of each path, as few as make them all different."""
    for length in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-length:]) for path in paths]
        if len(set(names)) == len(names):
            break
    return names
