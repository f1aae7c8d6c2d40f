"""The report: one HTML file that needs no network and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

from vmpo.errors import UserError
from vmpo.report import aggregates, curves, sweeps, videos
from vmpo.report.groups import Group, differences, from_preset, grouped
from vmpo.report.runs import Run, read_runs

SCRIPTS = ("scales.js", "chart.js", "tables.js", "parallel.js", "page.js")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was written."""

    path: Path
    size: int
    """Bytes."""
    summary: str
    """How many runs, groups and tasks it shows."""
    notes: tuple[str, ...]
    """What could not be read, each with the name of its run."""


def write(directories: Iterable[str | Path], out: str | Path = "report.html") -> Report:
    """Write the report of these run directories, whole or not at all; a file of that name is replaced."""
    out = Path(out)
    if out.is_dir():
        raise UserError(f"{out} is a directory; name a file for the report, such as {out / 'report.html'}")
    if not out.parent.is_dir():
        raise UserError(f"the directory {out.parent} does not exist; make it first, or choose another --out")
    groups = grouped(read_runs(directories))
    content = render(groups).encode()
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(out)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
    runs = [run for group in groups for run in group.runs]
    return Report(
        path=out,
        size=len(content),
        summary=_summary(groups),
        notes=tuple(f"{run.name}: {note}" for run in runs for note in run.notes),
    )


def render(groups: Sequence[Group]) -> str:
    """The page. Names reach it only as JSON, which the script shows as text and never as markup."""
    style, script = _part("page.css"), "".join(map(_part, SCRIPTS))
    parts = {
        "policy": f"default-src 'none'; img-src data:; media-src data:; style-src {_hash(style)}; "
        f"script-src {_hash(script)}",
        "style": style,
        "script": script,
        "data": embedded_json(contents(groups)),
    }
    page = _part("page.html")
    # One pass over the template: what is filled in is not searched for placeholders again.
    pieces = page.split("@@")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def contents(groups: Sequence[Group]) -> dict[str, Any]:
    """Everything the page shows, as plain values."""
    from vmpo import __version__

    points = curves.points_per_curve(groups)
    members = [(index, run) for index, group in enumerate(groups) for run in group.runs]
    runs = [run for _, run in members]
    different = differences(groups)
    return {
        "summary": _summary(groups),
        "version": __version__,
        "written": f"{datetime.now():%Y-%m-%d %H:%M}",
        "points": points,
        "thinned": any(len(run.clocks["agent_steps"]) > curves.minor(points) for run in runs),
        "health": curves.health_names([name for run in runs for name in run.columns]),
        "groups": [group.name for group in groups],
        "tasks": sorted({task for group in groups for task in group.tasks}),
        "runs": [{"group": index, **_overview(run), **curves.curves(run, points)} for index, run in members],
        "blocks": aggregates.score_blocks(groups),
        "levels": aggregates.level_tables(groups),
        "settings": {
            "differences": different,
            "equal": len({field for run in runs for field in run.settings}) - len(different),
            "single": {"changed": from_preset(runs[0]), "all": runs[0].settings} if len(runs) == 1 else None,
        },
        "parallel": sweeps.parallel(runs),
        "videos": videos.embedded(runs),
    }


def embedded_json(values: Any) -> str:
    """JSON that cannot end the script element it stands in, nor open a comment there."""
    text = json.dumps(values, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _summary(groups: Sequence[Group]) -> str:
    tasks = {task for group in groups for task in group.tasks}
    counts = {"run": sum(len(group.runs) for group in groups), "group": len(groups), "task": len(tasks)}
    runs, grouped_as, on = (f"{n} {noun}{'' if n == 1 else 's'}" for noun, n in counts.items())
    return f"{runs} in {grouped_as} on {on}"


def _overview(run: Run) -> dict[str, Any]:
    scores = {task: run.score(task) for task in run.task_columns}
    seconds = run.last("seconds")
    return {
        "name": run.name,
        "seed": run.settings["run.seed"],
        "environment": run.settings["env.id"],
        "frames": curves.rounded(run.last("frames")),
        "agent_steps": curves.rounded(run.last("agent_steps")),
        "seconds": curves.rounded(seconds),
        "speed": curves.rounded(run.last("agent_steps") / seconds) if seconds > 0 else None,
        "scores": {task: curves.rounded(score) for task, score in scores.items()},
        "phases": {phase: curves.rounded(share) for phase, share in run.phase_shares().items()},
        "evaluation": None if run.evaluation is None else asdict(run.evaluation),
        "notes": list(run.notes),
    }


def _part(name: str) -> str:
    return (resources.files("vmpo.report") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Source expression that allows exactly this inline text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
