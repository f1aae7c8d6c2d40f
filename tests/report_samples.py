"""Run directories made up for the tests of the report."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from samples import with_fields

from vmpo.config import Config, to_dict
from vmpo.report.groups import Group, grouped
from vmpo.report.runs import Run, flattened, read_runs

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'><!-- \u2028 \" & 'x"
"""A name that would run if any part of the page took it for markup."""


def settings(**changes: Any) -> dict[str, Any]:
    """The default configuration as plain values; ``section__field=value`` changes a field."""
    return with_fields(to_dict(Config()), changes)


def row(index: int, returns: dict[str, float], **fields: Any) -> dict[str, Any]:
    """A line of metrics at agent step 1000 * (index + 1), with the fields that a report reads."""
    steps = 1000 * (index + 1)
    line = {
        "learner_step": index,
        "agent_steps": steps,
        "frames": 4 * steps,
        "seconds": 0.5 * steps / 1000,
        "steps_per_second": 2000.0 + index,
        "return_mean": float(np.mean(list(returns.values()))),
        "phase/simulate": 0.2,
        "phase/infer": 0.1,
        "phase/learn": 0.65,
        "phase/rest": 0.05,
        "temperature": 1.0 / (index + 1),
        "e_step_kl_over_bound": 1.0,
        "kl_over_bound/policy": 0.5 + 0.01 * index,
        "alpha/policy": 10.0 ** -(index % 8),
        "entropy": 2.0 - 0.01 * index,
    }
    if len(returns) > 1:
        line |= {f"return/{task}": value for task, value in returns.items()}
    return line | fields


def write_run(
    path: Path,
    *,
    rows: int = 20,
    tasks: Sequence[str] = ("CartPole-v1",),
    score: Callable[[int, int], float] = lambda index, task: 10.0 * index + 100 * task,
    **changes: Any,
) -> Path:
    """A run directory; ``score`` gives the return at a line of a task."""
    path.mkdir(parents=True)
    values = settings(**{"env__id": ",".join(tasks), **changes})
    (path / "config.json").write_text(json.dumps(values))
    lines = [row(i, {task: score(i, t) for t, task in enumerate(tasks)}) for i in range(rows)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def large_groups(runs: int, points: int) -> list[Group]:
    """Groups of five seeds with long curves, without the detour over files."""
    generator = np.random.default_rng(0)
    steps = 1000.0 * np.arange(1, points + 1)
    names = [name for name in row(0, {"CartPole-v1": 0.0}) if name not in ("learner_step", "agent_steps", "frames")]
    members = []
    for index in range(runs):
        columns = {name: np.exp(0.01 * generator.standard_normal(points).cumsum()) for name in names}
        clocks = {"agent_steps": steps, "frames": 4 * steps, "seconds": columns.pop("seconds").cumsum()}
        nested = settings(run__seed=index % 5, loss__discount=0.9 + 0.001 * (index // 5))
        run = Run(
            name=f"run-{index // 5}-seed{index % 5}",
            path=Path("nowhere"),
            settings=flattened(nested),
            clocks=clocks,
            columns=columns,
            notes=(),
        )
        members.append(run)
    return grouped(members)


def groups_of(*paths: Path) -> list[Group]:
    return grouped(read_runs(paths))


def write_evaluation(run: Path, agent_steps: int, **summary: Any) -> None:
    """As ``vmpo.evaluation`` leaves it in a run directory."""
    values = {"mean_return": 1.0, "std_return": 0.0, "episodes": 100, "agent_steps": agent_steps, **summary}
    (run / "evaluation.json").write_text(json.dumps({"summary": values, "episodes": []}))
