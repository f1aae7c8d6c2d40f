"""Faults of environments that a run survives: counted, reported, answered by a restart, and limited."""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from vmpo.errors import RunFailed, told
from vmpo.metrics import RESTART
from vmpo.records import Trajectory

Report: TypeAlias = Callable[[str], None]

WINDOW = 100
"""Unrolls in which the limit counts: a fault now and then is no reason to stop a week-long run."""

LONGEST_PAUSE = 30.0
"""Seconds to wait at most before a restart; the first wait is one second, and each one in a row is twice as long."""


class Faults:
    """The faults of one actor's environments."""

    def __init__(self, limit: int, report: Report, pause: float = 1.0) -> None:
        self.count = 0
        """Faults survived so far."""
        self._limit, self._report, self._pause = limit, report, pause
        self._unrolls = 0
        self._recent: deque[tuple[int, str]] = deque()
        self._in_a_row = 0

    def survive(self, error: Exception, learned: bool) -> None:
        """Wait a little before the restart, or stop the run with the first cause where there were too many.

        Where nothing was ever ``learned`` and no unroll was good, a fault is a mistake and not an accident.
        """
        cause = told(error)
        self._recent.append((self._unrolls, cause))
        while self._recent[0][0] < self._unrolls - WINDOW:
            self._recent.popleft()
        self.count += 1
        end = None
        if not self._unrolls and not learned:
            end = f"the environments failed in their first unroll: {cause}"
        elif len(self._recent) > self._limit:
            times = "once" if len(self._recent) == 1 else f"{len(self._recent)} times"
            end = f"the environments failed {times} within {WINDOW} unrolls; the first cause was {self._recent[0][1]}"
        self._report("".join(traceback.format_exception(error)) + (end or RESTART + cause))
        if end is not None:
            raise RunFailed(end) from error
        time.sleep(min(LONGEST_PAUSE, self._pause * 2**self._in_a_row))
        self._in_a_row += 1

    def unrolled(self) -> None:
        """An unroll was good."""
        self._unrolls += 1
        self._in_a_row = 0


class BrokenUnroll(RuntimeError):
    """An environment returned what no learner can use."""


def check_finite(slot: Trajectory, tasks: Sequence[str]) -> None:
    """Refuse an unroll with NaN or infinite rewards or observations, and say whose they are."""
    parts = {"reward": slot.rewards, **{f"observation {name!r}": x for name, x in slot.observations.items()}}
    for name, tensor in parts.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            bad = (~torch.isfinite(tensor)).flatten(2).any(dim=2) if tensor.ndim > 2 else ~torch.isfinite(tensor)
            step, env = bad.nonzero()[0].tolist()
            value = tensor[step, env].flatten()
            value = value[~torch.isfinite(value)][0].item()
            task = tasks[int(slot.tasks[step, env])]
            raise BrokenUnroll(f"{task} returned the {name} {value} (environment {env}, step {step} of an unroll)")
