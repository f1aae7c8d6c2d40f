"""What a run measures of itself: where its time goes, how its episodes end, and the files that keep both."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from vmpo.errors import UserError
from vmpo.records import EpisodeResult
from vmpo.scores import benchmark_of

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

MEASURED = ("simulate", "infer", "wait", "learn")
"""Phases that are timed, ``wait`` being for actors in other processes; the remainder of the wall time is ``rest``."""


class Stopwatch:
    """Shares of wall time per phase since the last reset. Not shared between threads: each has its own.

    Every moment counts for one phase only: a phase or a lap inside another phase is taken off the outer one.
    """

    __slots__ = ("_began", "_mark", "_open", "_spent")

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}
        self._open: list[str] = []
        self.reset()

    def reset(self) -> None:
        """Forget all that was measured; an open phase or lap counts from here on."""
        for phase in (*MEASURED, "rest"):
            self._spent[phase] = 0.0
        self._began = self._mark = time.perf_counter()

    def start(self) -> None:
        """Set the mark that the next lap counts from; the time before it goes to the open phase, else to rest."""
        self.lap(self._open[-1] if self._open else "rest")

    def lap(self, phase: str) -> None:
        """Give the time since the mark to a phase and move the mark: two dictionary operations and a clock reading."""
        now = time.perf_counter()
        self._spent[phase] += now - self._mark
        self._mark = now

    @contextmanager
    def phase(self, phase: str) -> Iterator[None]:
        """Give the time of the block to a phase."""
        self.start()
        self._open.append(phase)
        try:
            yield
        finally:
            self.lap(self._open.pop())

    def take(self) -> dict[str, float]:
        """Seconds of each phase since the last reset, and reset."""
        spent = dict(self._spent)
        self.reset()
        return spent

    def shares(self) -> dict[str, float]:
        """Share of the wall time of each phase; they sum to 1."""
        total = time.perf_counter() - self._began
        shares = {phase: self._spent[phase] / total if total > 0 else 0.0 for phase in MEASURED}
        shares["rest"] = max(0.0, 1.0 - sum(shares.values()))
        return shares


class Interval:
    """True once in every so many seconds, starting from now."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = time.perf_counter() + seconds

    def __call__(self) -> bool:
        now = time.perf_counter()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True


class EpisodeWindow:
    """The last episodes of each task."""

    def __init__(self, size: int = 100) -> None:
        self._size = size
        self._windows: dict[str, deque[EpisodeResult]] = {}
        self.count = 0
        """Episodes seen so far, those that have left the window included."""

    def add(self, episodes: Iterable[EpisodeResult]) -> None:
        for episode in episodes:
            self._windows.setdefault(episode.task, deque(maxlen=self._size)).append(episode)
            self.count += 1

    def summary(self) -> dict[str, float]:
        """Returns and lengths over all windows, each task with at most ``size`` episodes; NaN before the first end.

        With several tasks, ``return/<task>`` holds the mean of each. Tasks of a benchmark also have its scores, over
        the levels that have ended an episode so far.
        """
        returns = np.array([e.episode_return for window in self._windows.values() for e in window], np.float64)
        lengths = [e.length for window in self._windows.values() for e in window]
        some = len(returns) > 0
        summary = {
            "return_mean": float(returns.mean()) if some else math.nan,
            "return_std": float(returns.std()) if some else math.nan,
            "return_min": float(returns.min()) if some else math.nan,
            "return_max": float(returns.max()) if some else math.nan,
            "length_mean": float(np.mean(lengths)) if some else math.nan,
            "episodes": self.count,
            "window_episodes": len(returns),
        }
        means = {task: float(np.mean([e.episode_return for e in window])) for task, window in self._windows.items()}
        if len(means) > 1:
            summary |= {f"return/{task}": mean for task, mean in means.items()}
        benchmark = benchmark_of(means)
        if benchmark is not None:
            summary |= {f"human_normalised/{task}": benchmark.normalised(task, mean) for task, mean in means.items()}
            summary |= {f"score/{name}": value for name, value in benchmark.summary(means).items()}
            summary["score/levels"] = len(means)
        return summary


def plain_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn tensors and numpy values into what JSON knows, non-finite numbers into None, in the given order.

    Scalars on a device are stacked and transferred together: one synchronisation per device and type.
    """
    groups: dict[tuple[torch.device, torch.dtype], list[str]] = {}
    for name, value in values.items():
        if isinstance(value, Tensor) and value.ndim == 0:
            groups.setdefault((value.device, value.dtype), []).append(name)
    fetched: dict[str, Any] = {}
    for names in groups.values():
        fetched.update(zip(names, torch.stack([values[name].detach() for name in names]).tolist(), strict=True))
    return {name: _strict(fetched.get(name, value)) for name, value in values.items()}


def _strict(value: Any) -> Any:
    """A value of strict JSON, which has no NaN and no infinity."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_strict(item) for item in value]
    return value


FAULTS = "faults.log"

RESTART = "environments restart after: "
"""How the last line on a fault begins that a run survives."""
SKIPPED_UPDATES = "skipped_updates.jsonl"


class RunLog:
    """Writer of a run directory's ``metrics.jsonl``, ``episodes.jsonl`` and, where asked for, ``tensorboard/``.

    Faults go to ``faults.log`` and ``skipped_updates.jsonl``. A disk that takes nothing more is noted, not raised.
    """

    def __init__(self, directory: str | Path, *, tensorboard: bool, append: bool) -> None:
        """Start the files anew, or append to them; a resumed run calls ``truncate_to`` before it writes."""
        if tensorboard and importlib.util.find_spec("tensorboard") is None:
            raise UserError("tensorboard is not installed; pip install tensorboard, or set run.tensorboard to False")
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._tensorboard = tensorboard
        self._writer: SummaryWriter | None = None
        self._purge_step: int | None = None
        self.notes: list[str] = []
        """What the user should hear of; the display takes it from here."""
        self.disk_faults = 0
        self._metrics = self._directory / "metrics.jsonl"
        self._episodes = self._directory / "episodes.jsonl"
        for path in (self._metrics, self._episodes):
            path.open("a" if append else "w").close()

    def write_metrics(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Write one line, and return it as written: plain numbers, for the display to show."""
        line = plain_numbers(values)
        with self._tolerate("metrics"):
            _append(self._metrics, [line])
            if self._tensorboard:
                self._write_tensorboard(line)
        return line

    def write_fault(self, text: str) -> None:
        """Keep the whole text on file, and its last line for the display where the run goes on."""
        self.notes += [line for line in text.splitlines()[-1:] if line.startswith(RESTART)]
        with self._tolerate("a fault"), open(self._directory / FAULTS, "a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n{text}\n")

    def write_skipped(self, diagnosis: Mapping[str, Any]) -> None:
        """Describe a batch whose update was left out."""
        self.notes.append(f"learner step {diagnosis['learner_step']}: loss or gradient not finite, update skipped")
        with self._tolerate("a diagnosis"):
            _append(self._directory / SKIPPED_UPDATES, [plain_numbers(diagnosis)])

    def note_disk_fault(self, what: str, error: OSError) -> None:
        self.disk_faults += 1
        self.notes.append(f"{what} could not be written, training goes on: {error}")

    @contextmanager
    def _tolerate(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.note_disk_fault(what, error)

    def write_episodes(self, episodes: Sequence[EpisodeResult], agent_steps: int, frames: int, seconds: float) -> None:
        """Write one line per episode, all stamped with the moment at which the learner heard of them."""
        moment = {"agent_steps": agent_steps, "frames": frames, "seconds": seconds}
        lines = [{"task": e.task, "return": e.episode_return, "length": e.length, **moment} for e in episodes]
        if lines:
            with self._tolerate("episodes"):
                _append(self._episodes, [plain_numbers(line) for line in lines])

    def read_episodes(self) -> Iterator[EpisodeResult]:
        """The episodes on file, oldest first: a resumed run fills its window with them."""
        for line in _read(self._episodes):
            score = math.nan if line["return"] is None else line["return"]
            yield EpisodeResult(task=line["task"], episode_return=score, length=line["length"])

    def truncate_to(self, learner_step: int, agent_steps: int) -> None:
        """Drop what was written after the checkpoint that a run resumes from, and any torn line.

        TensorBoard's files stay as they are; the next one tells it to ignore later events.
        """
        self.close()
        kept = _rewrite(self._metrics, "learner_step", learner_step)
        _rewrite(self._episodes, "agent_steps", agent_steps)
        self._purge_step = 0 if kept is None else int(kept.get("frames") or 0) + 1

    def close(self) -> None:
        """Flush TensorBoard; the other files are whole after each write."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_tensorboard(self, line: Mapping[str, Any]) -> None:
        """One scalar per number, over frames. The import takes a second, so that it waits for the first line."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._directory / "tensorboard"), purge_step=self._purge_step)
        for name, value in line.items():
            if name != "frames" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, int(line["frames"]))


def _append(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write and close, so that a reader sees whole lines and a crash loses none; the opening costs microseconds."""
    with open(path, "a", encoding="utf-8") as file:
        file.write("".join(json.dumps(line, allow_nan=False) + "\n" for line in lines))


def _read(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines. A crash can leave a torn line, in any bytes: it is skipped."""
    with open(path, "rb") as file:
        for raw in file:
            try:
                line = json.loads(raw)
            except ValueError:
                continue
            if isinstance(line, dict):
                yield line


def _rewrite(path: Path, key: str, limit: int) -> dict[str, Any] | None:
    """Keep the lines whose ``key`` is at most the limit; return the last of them. A crash leaves the old file."""
    temporary = path.with_name(path.name + ".tmp")
    last = None
    with open(temporary, "w", encoding="utf-8") as file:
        for line in _read(path):
            if line.get(key, math.inf) <= limit:
                file.write(json.dumps(line) + "\n")
                last = line
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return last
