"""Ctrl-C and SIGTERM as a wish that a run fulfils at its next safe moment."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from typing_extensions import Self

GRACE_SECONDS = 3.0
"""How long a run may take to finish its unroll after the first signal; then the unroll is given up."""

MESSAGE = b"\nvmpo: stopping and saving; a second signal exits at once\n"


class Stopped(Exception):
    """The unroll or update at hand was given up, because a signal has waited for too long."""


class StopSignal:
    """Within its context the first SIGINT or SIGTERM sets a flag; a second one acts as usual."""

    def __init__(self) -> None:
        self._received = float("inf")
        self._previous: dict[signal.Signals, Any] = {}

    def request(self) -> None:
        """Wish for the end without a signal."""
        self._received = time.monotonic()

    def requested(self) -> bool:
        """A signal has come."""
        return self._received < float("inf")

    def check(self) -> None:
        """Raise where a signal has waited for longer than its grace. Long work calls this at its safe moments."""
        if self._received < float("inf") and time.monotonic() > self._received + GRACE_SECONDS:
            raise Stopped

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.request()
        self._restore()
        os.write(2, MESSAGE)

    def _restore(self) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def __enter__(self) -> Self:
        # Python delivers signals to the main thread alone; elsewhere whoever owns that one has to stop the run.
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                self._previous[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
