"""Metrics for Weights & Biases, for runs that ask for it with ``run.wandb``."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vmpo.callbacks import Callback
from vmpo.config import to_dict

if TYPE_CHECKING:
    from vmpo.result import RunResult
    from vmpo.train import Run


class WeightsAndBiases(Callback):
    """One W&B run per run directory, also when it is resumed: its id is on file there."""

    def __init__(self, project: str) -> None:
        import wandb

        self._wandb, self._project = wandb, project

    def on_start(self, run: Run) -> None:
        folder = run.directory.path
        self._run = self._wandb.init(
            project=self._project,
            name=folder.name,
            id=self._identity(folder / "wandb_id"),
            resume="allow",
            dir=str(folder),
            config=to_dict(run.config),
        )
        self._run.define_metric("*", step_metric="frames")

    def _identity(self, file: Path) -> str:
        if not file.exists():
            file.write_text(secrets.token_hex(4))
        return file.read_text().strip()

    def on_log(self, run: Run, line: dict[str, Any]) -> None:
        self._run.log(line)

    def on_end(self, run: Run, result: RunResult) -> None:
        if result.evaluation is not None:
            self._run.summary.update({f"evaluation/{k}": v for k, v in result.evaluation.summary().items()})
        self._run.summary.update({"finished": result.finished, "frames": result.frames})
        self._run.finish()
