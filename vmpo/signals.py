"""Ctrl-C and SIGTERM as a wish that a run fulfils at its next safe moment."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any

from typing_extensions import Self

GRACE_SECONDS = 3.0
"""How long a run may take to finish its unroll after the first signal; then the unroll is given up."""

STOPPING = (signal.SIGINT, signal.SIGTERM)

MESSAGE = b"\nvmpo: stopping and saving; a second signal exits at once\n"


def is_command() -> bool:
    """Whether this process is the command: no script of a user's, and no process that was started by the command."""
    program, given = sys.argv[0], sys.orig_argv
    if program == "-m":
        return ("-m", "vmpo") in pairwise(given)
    return os.path.basename(program) == "vmpo" and program in given


def leave(number: int, frame: FrameType | None) -> None:
    """While the command imports what it needs nothing has begun, and the place of an interrupt is of no interest."""
    os.write(2, b"vmpo: interrupted\n")
    os._exit(130)


def raise_interrupts() -> None:
    """Ctrl-C is an exception from here on."""
    if signal.getsignal(signal.SIGINT) is leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def unheard() -> Iterator[None]:
    """Signals reach the whole process group: a process that is started within hears none before it can ignore them."""
    resource_tracker.ensure_running()  # Its start, which the first process would cause, unblocks them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore() -> None:
    """In a process that was started so: another one hears the signals."""
    for signum in STOPPING:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


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
            for signum in STOPPING:
                self._previous[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
