"""What a program may do while a run goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
