"""What a program may do while a run goes on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from vmpo.errors import UserError, unknown
from vmpo.records import EpisodeResult

if TYPE_CHECKING:
    from vmpo.result import RunResult
    from vmpo.train import Run


class Callback:
    """Methods that a run calls between two of its updates; override those that matter.

    ``run.learner.online`` is the network, ``run.learner_weights()`` a copy of what it knows, and ``run.stop.request()``
    ends the run as Ctrl-C does. An exception ends it too, after a checkpoint.
    """

    def on_start(self, run: Run) -> None:
        """Before the first update of a session: of a new run, or of one that is resumed."""

    def on_episodes(self, run: Run, episodes: Sequence[EpisodeResult]) -> None:
        """Episodes have ended."""

    def on_unroll(self, run: Run) -> None:
        """All batches of an unroll have been learned from. This is called often."""

    def on_log(self, run: Run, line: dict[str, Any]) -> None:
        """A line of ``metrics.jsonl`` was written."""

    def on_checkpoint(self, run: Run, path: Path) -> None:
        """A checkpoint was written."""

    def on_end(self, run: Run, result: RunResult) -> None:
        """After the last update and the evaluation, or after a signal. Not after an error."""


Callbacks: TypeAlias = Callback | Sequence[Callback]
"""One, or several."""


def listed(callbacks: Callbacks) -> list[Callback]:
    """All of them; what no run would call is refused."""
    found: list[Any] = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
    events = [name for name in vars(Callback) if name.startswith("on_")]
    for callback in found:
        if not isinstance(callback, Callback):
            what = f"the class {callback.__name__}" if isinstance(callback, type) else repr(callback)
            raise UserError(f"callbacks must be objects of classes that derive from vmpo.Callback; given: {what:.80}")
        # Classes beside ours may have events of their own.
        for kind in type(callback).__mro__:
            for name in vars(kind) if issubclass(kind, Callback) else ():
                if name.startswith("on_") and name not in events:
                    raise unknown(f"event of {kind.__name__}", name, events)
    return found
