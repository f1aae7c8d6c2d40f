"""What a user sees of a running training: a live panel on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from typing_extensions import Self

from vmpo.health import HIGH_RATIO, Health, finite

REFRESH_SECONDS = 0.25
"""Least time between two drawings of the panel."""
WIDE = 76
"""Columns from which progress and dual health stand side by side."""
LABEL_WIDTH = 22
"""Columns that a label may take, so that a long task name leaves room for its value."""
SHOWN_TASKS = 6
"""Tasks of a multi-task run that get a row of their own."""
SPARKS = "▁▂▃▄▅▆▇█"
ASCII_SPARKS = "_.-:=+*#"

PROGRESS_ROWS = {"episodes": "episodes", "learner_step": "learner steps", "agent_steps": "agent steps"}
FAULT_ROWS = {
    "faults/environment": "environment faults",
    "faults/disk": "disk faults",
    "skipped_updates": "skipped updates",
}
"""Shown once there are any."""
HEALTH_ROWS = {
    "effective_sample_size": "effective samples",
    "value_explained_variance": "explained variance",
    "target_age": "target age",
    "policy_lag": "policy lag",
}


class Display:
    """Shows metrics lines. This one shows nothing; the others override what they show."""

    def update(self, line: Mapping[str, Any]) -> None:
        """Show a line of ``metrics.jsonl``; any key may be missing or None."""

    def note(self, text: str) -> None:
        """Say something once, such as that a checkpoint was written."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class PlainDisplay(Display):
    """One line of text per update, for log files and pipes; a complaint once, when it begins."""

    def __init__(self, stream: TextIO, total_frames: int, title: str) -> None:
        self._stream = stream
        self._total_frames = total_frames
        self._title = title
        self._health = Health()
        self._complaints: dict[str, str] = {}

    def update(self, line: Mapping[str, Any]) -> None:
        self.note(summary_line(line, self._total_frames))
        before, self._complaints = self._complaints, self._health.observe(line)
        for name, sentence in self._complaints.items():
            if name not in before:
                self.note(f"warning: {sentence}")

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def __enter__(self) -> Self:
        self.note(self._title)
        return self


class LiveDisplay(Display):
    """A panel that is redrawn in place. No thread: it is drawn by updates, at most four times a second."""

    def __init__(self, console: Console, total_frames: int, title: str) -> None:
        self._console = console
        self._total_frames = total_frames
        self._title = title
        self._line: Mapping[str, Any] = {}
        self._watch, self._complaints = Health(), dict[str, str]()
        self._history: list[float] = []
        self._drawn = -math.inf
        # Printing belongs above the panel, but output that goes to a pipe must still arrive there.
        on_terminal = sys.stdout.isatty()
        self._live = Live(console=console, auto_refresh=False, get_renderable=self.render, redirect_stdout=on_terminal)

    def update(self, line: Mapping[str, Any]) -> None:
        self._line = line
        self._complaints = self._watch.observe(line)
        score = finite(line.get("return_mean"))
        if score is not None:
            self._history.append(score)
        if time.monotonic() - self._drawn >= REFRESH_SECONDS:
            self._live.refresh()
            self._drawn = time.monotonic()

    def note(self, text: str) -> None:
        self._console.print(Text(text))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def render(self) -> RenderableType:
        """The panel for the latest line, in two columns where the terminal is wide enough."""
        progress, health = self._progress(), self._health()
        body: RenderableType = Group(progress, health)
        if self._console.width >= WIDE:
            body = Table.grid(expand=True, padding=(0, 2))
            body.add_column(ratio=1)
            body.add_column(ratio=1)
            body.add_row(progress, health)
        warnings = [Text(sentence, style="yellow") for sentence in self._complaints.values()]
        return Panel(
            Group(self._bar(), body, *warnings), title=Text(self._title, overflow="ellipsis"), border_style="dim"
        )

    def _bar(self) -> RenderableType:
        frames = finite(self._line.get("frames")) or 0.0
        left = time_left(self._line, self._total_frames)
        grid = Table.grid(expand=True, padding=(0, 1))
        grid.add_column(ratio=1)
        grid.add_column(justify="right")
        percent = f"{min(1.0, frames / max(1, self._total_frames)):.0%}"
        grid.add_row(ProgressBar(total=max(1, self._total_frames), completed=frames), percent)
        counts = f"{frames:,.0f} / {self._total_frames:,} frames"
        return Group(grid, Text(counts if left is None else f"{counts}, {left} left"))

    def _progress(self) -> RenderableType:
        """Speed, phases, returns and counts."""
        line, grid = self._line, _grid()
        _row(grid, "steps/s", _number(line.get("steps_per_second")))
        shares = [(key, value) for key, value in _finite_group(line, "phase/") if value >= 0.005]
        phases = [f"{key.removeprefix('phase/')} {value:.0%}" for key, value in shares]
        _row(grid, "time", ", ".join(phases) or "-")
        sparks = SPARKS if self._console.encoding.lower().startswith("utf") else ASCII_SPARKS
        _row(grid, "return", f"{_number(line.get('return_mean'))} {sparkline(self._history, 16, sparks)}", "bold green")
        spread = f"std {_number(line.get('return_std'))}"
        _row(grid, "", f"{spread}, {_number(line.get('return_min'))} to {_number(line.get('return_max'))}")
        tasks = _finite_group(line, "return/")
        for key, value in tasks[:SHOWN_TASKS]:
            _row(grid, f"  {key.removeprefix('return/')}", _number(value))
        if len(tasks) > SHOWN_TASKS:
            _row(grid, "", f"and {len(tasks) - SHOWN_TASKS} more tasks")
        _row(grid, "length", _number(line.get("length_mean")))
        for key, label in PROGRESS_ROWS.items():
            _row(grid, label, _number(line.get(key)))
        for key, label in FAULT_ROWS.items():
            if finite(line.get(key)):
                _row(grid, label, f"{_number(line.get(key))} survived", "yellow")
        return grid

    def _health(self) -> RenderableType:
        """Whether the dual variables hold their bounds, and how stale the acting policy is."""
        line, grid = self._line, _grid()
        _row(grid, "temperature", _number(line.get("temperature")))
        ratios = [("E-step KL / bound", finite(line.get("e_step_kl_over_bound")))]
        parts = _finite_group(line, "kl_over_bound/")
        ratios += [(f"KL / bound, {key.removeprefix('kl_over_bound/')}", value) for key, value in parts]
        for label, value in ratios:
            _row(grid, label, _number(value), "yellow" if value is not None and value > HIGH_RATIO else "")
        for key, label in HEALTH_ROWS.items():
            _row(grid, label, _number(line.get(key)))
        return grid


def make_display(total_frames: int, title: str, *, quiet: bool = False, stream: TextIO | None = None) -> Display:
    """The display that suits the stream (standard error unless given): only a capable terminal gets the panel."""
    if quiet:
        return Display()
    stream = sys.stderr if stream is None else stream
    console = Console(file=stream)
    # Ask the stream too: rich takes FORCE_COLOR for a terminal, which would fill a log file with cursor movements.
    if stream.isatty() and console.is_interactive:
        return LiveDisplay(console, total_frames, title)
    return PlainDisplay(stream, total_frames, title)


def summary_line(line: Mapping[str, Any], total_frames: int) -> str:
    """The most telling numbers of a line; what is missing is left out. ``kl/bound`` is the largest M-step one."""
    parts = [f"frames {finite(line.get('frames')) or 0:,.0f}/{total_frames:,}"]
    window = line.get("window_episodes", line.get("episodes"))
    ratios = [value for _, value in _finite_group(line, "kl_over_bound/")]
    shown = {
        "steps/s {:,.0f}": line.get("steps_per_second"),
        "return {}" + ("" if window is None else f" ({window:,} episodes)"): line.get("return_mean"),
        "length {:,.0f}": line.get("length_mean"),
        "eta {:.3g}": line.get("temperature"),
        "kl/bound {:.2f}": max(ratios, default=None),
    }
    for template, value in shown.items():
        number = finite(value)
        if number is not None:
            parts.append(template.format(return_text(number) if template.startswith("return") else number))
    left = time_left(line, total_frames)
    return "  ".join(parts if left is None else [*parts, f"left {left}"])


def return_text(number: float) -> str:
    """A return in few digits: four of a small one, of which a decimal would not tell how good it is."""
    return f"{number:.4g}" if abs(number) < 10 else f"{number:,.1f}"


def time_left(line: Mapping[str, Any], total_frames: int) -> timedelta | None:
    """Time to the last frame at the present speed; None while that is unknown."""
    frames, agent_steps = finite(line.get("frames")), finite(line.get("agent_steps"))
    speed = finite(line.get("steps_per_second"))
    if not frames or not agent_steps or not speed or speed < 0:
        return None
    seconds = max(0.0, total_frames - frames) / (speed * frames / agent_steps)
    return timedelta(seconds=round(seconds)) if seconds < timedelta.max.total_seconds() else None


def sparkline(history: list[float], width: int, levels: str = SPARKS) -> str:
    """The history as a row of bars between its own least and greatest value; a longer one is thinned out."""
    if len(history) > width:
        history = [history[round(i * (len(history) - 1) / (width - 1))] for i in range(width)]
    if not history:
        return ""
    low, high = min(history), max(history)
    scale = (len(levels) - 1) / (high - low) if high > low else 0.0
    return "".join(levels[round((value - low) * scale)] for value in history)


def _finite_group(line: Mapping[str, Any], prefix: str) -> list[tuple[str, float]]:
    """The numbers whose names start with the prefix."""
    numbers = ((key, finite(value)) for key, value in line.items() if key.startswith(prefix))
    return [(key, value) for key, value in numbers if value is not None]


def _number(value: Any) -> str:
    number = finite(value)
    if number is None:
        return "-"
    whole = abs(number) < 1e12 and (abs(number) >= 1000 or number == int(number))
    return f"{number:,.0f}" if whole else f"{number:.4g}"


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True, overflow="ellipsis", max_width=LABEL_WIDTH)
    grid.add_column(overflow="fold")
    return grid


def _row(grid: Table, label: str, value: str, style: str = "") -> None:
    """Add a row as Text, which takes brackets in a name as they are; a plain string would be read as markup."""
    grid.add_row(Text(label), Text(value, style=style))
