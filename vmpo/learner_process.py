"""The inside of a learner's process on a Ray cluster: it trains in one thread and answers the driver in others."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from vmpo.acting.remote import Crew
from vmpo.callbacks import Callback
from vmpo.config import Config
from vmpo.display import Display
from vmpo.result import RunResult
from vmpo.signals import StopSignal
from vmpo.surroundings import Surroundings
from vmpo.train import resume, train

PATIENCE = 60.0
"""Seconds that a learner which is started again waits for the end of the one before it."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to train: a new run if it comes with a configuration, and otherwise the one in the directory."""

    directory: str
    config: Config | None = None
    frames: int | None = None
    callbacks: Sequence[Callback] = ()


class Relay(Display):
    """Keeps what there is to show until the driver fetches it."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.notes: list[str] = []

    def update(self, line: Mapping[str, Any]) -> None:
        # The driver shows the newest one; it may look less often than lines are made.
        self.lines = [dict(line)]

    def note(self, text: str) -> None:
        self.notes.append(text)


class LearnerProcess:
    def __init__(self) -> None:
        self._relay, self._stop = Relay(), StopSignal()

    def place(self) -> tuple[str, int]:
        """The address of this machine, and a port that is free there."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), probe.getsockname()[1]

    def train(self, order: Order, crew: Crew, variables: dict[str, str]) -> RunResult:
        os.environ.update(variables)
        around = Surroundings(crew=crew, stop=self._stop, display=self._relay, patience=PATIENCE)
        if order.config is not None:
            return train(order.config, order.directory, callbacks=order.callbacks, around=around)
        # The driver has read the configuration, and asked for trust where that needs it.
        return resume(order.directory, frames=order.frames, trust=True, callbacks=order.callbacks, around=around)

    def stop(self) -> None:
        self._stop.request()

    def news(self) -> tuple[list[dict[str, Any]], list[str]]:
        lines, notes = self._relay.lines, self._relay.notes
        self._relay.lines, self._relay.notes = [], []
        return lines, notes
