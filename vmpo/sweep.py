"""A sweep: runs of one preset that differ in their seed, and in what each draws from the preset's ranges, on Ray Tune.

A trial is an ordinary run in a folder of the sweep's directory, and what has finished is read from there: the same
command goes on with a sweep however it was interrupted, resumes what was under way, and runs nothing twice.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ray import tune

from vmpo import presets
from vmpo.cluster import connected
from vmpo.config import Config, to_dict
from vmpo.errors import RunFailed, UserError
from vmpo.learning.checkpoint import available
from vmpo.metrics import plain_numbers
from vmpo.problems import check
from vmpo.result import RunResult
from vmpo.run_directory import RunDirectory, put
from vmpo.surroundings import Surroundings
from vmpo.train import resume, train

PATIENCE = 60.0
"""Seconds to wait for the processes of an interrupted sweep to end."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    index: int
    path: Path
    config: Config

    @property
    def result_file(self) -> Path:
        return self.path / "result.json"

    @property
    def finished(self) -> bool:
        return self.result_file.exists()

    def row(self) -> dict[str, Any]:
        """Its line in the summary: what was drawn for it, and what came of it."""
        ranges = presets.get(self.config.preset).ranges
        drawn = {name: getattr(presets.settled(self.config).loss, name) for name in sorted(ranges)}
        result = json.loads(self.result_file.read_text()) if self.finished else {"score": None}
        return {"trial": self.path.name, "seed": self.config.run.seed, **drawn, **result}


def trials_of(config: Config, directory: Path, count: int) -> list[Trial]:
    """Each with a seed of its own, on one core."""
    single = replace(
        config,
        env=replace(config.env, simulator_threads=config.env.simulator_threads or 1),
        run=replace(config.run, threads=config.run.threads or 1),
    )
    return [
        Trial(
            index=index,
            path=directory / f"trial_{index:03d}",
            config=replace(single, run=replace(single.run, seed=config.run.seed + index)),
        )
        for index in range(count)
    ]


def sweep(config: Config, directory: str | Path, count: int, address: str = "local", quiet: bool = False) -> list[dict]:
    """Run the trials that have not finished; the rows of all, best first."""
    if count < 1:
        raise UserError(f"--trials {count} must be at least 1")
    check(presets.settled(config))
    folder = Path(directory).absolute()
    claim(folder, config)
    trials = trials_of(config, folder, count)
    pending = [trial for trial in trials if not trial.finished]
    errors: list[Exception] = []
    if pending:
        with connected(address):
            errors = run_trials(pending, folder, quiet)
    rows = summarise(trials, folder)
    if errors:
        first = " ".join(str(errors[0]).split())
        raise RunFailed(f"{len(errors)} of {count} trials failed; the same command tries them again: {first[-300:]}")
    return rows


def claim(folder: Path, config: Config) -> None:
    """A directory belongs to one sweep: its settings are on file, and other settings are refused."""
    settings, text = folder / "sweep.json", json.dumps(to_dict(config), indent=2)
    if settings.exists() and settings.read_text() != text:
        raise UserError(f"{folder} holds a sweep of other settings; choose another directory")
    if not settings.exists() and folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty and holds no sweep; choose another directory")
    folder.mkdir(parents=True, exist_ok=True)
    settings.write_text(text)


def run_trials(pending: list[Trial], folder: Path, quiet: bool) -> list[Exception]:
    """On as many cores, or GPUs, as the cluster has; errors of those that failed."""
    # Environments of a user's own module are looked for where the command was given.
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    on_gpu = pending[0].config.learner.device.startswith("cuda")
    by_name = {trial.path.name: trial for trial in pending}
    trainable = tune.with_parameters(run_trial, trials=by_name)
    tuner = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1, "gpu": 1 if on_gpu else 0}),
        param_space={"trial": tune.grid_search(list(by_name))},
        run_config=tune.RunConfig(
            name="tune", storage_path=str(folder / ".tune"), verbose=0, callbacks=[] if quiet else [Progress()]
        ),
    )
    return [result.error for result in tuner.fit() if result.error is not None]


def run_trial(parameters: dict[str, Any], trials: dict[str, Trial]) -> None:
    """In a process of its own: start the trial, or resume it where it was interrupted."""
    trial = trials[parameters["trial"]]
    around, folder = Surroundings(patience=PATIENCE), RunDirectory(trial.path)
    if available(folder.checkpoints):
        result = resume(trial.path, quiet=True, trust=True, around=around)
    else:
        shutil.rmtree(trial.path, ignore_errors=True)
        result = train(trial.config, trial.path, quiet=True, around=around)
    if result.finished:
        put(trial.result_file, outcome(result))
        tune.report({"score": outcome(result)["score"]})


def outcome(result: RunResult) -> dict[str, Any]:
    evaluation = None if result.evaluation is None else result.evaluation.summary()
    score = result.return_mean if evaluation is None else evaluation["mean_return"]
    return plain_numbers(
        {"score": score, "return_mean": result.return_mean, "frames": result.frames, "evaluation": evaluation}
    )


def summarise(trials: Iterable[Trial], folder: Path) -> list[dict[str, Any]]:
    """Write ``summary.json``, and let ``best`` point to the best trial."""
    rows = [trial.row() for trial in trials]
    rows.sort(key=lambda row: float("-inf") if row["score"] is None else row["score"], reverse=True)
    put(folder / "summary.json", {"trials": rows})
    if rows[0]["score"] is not None:
        temporary = folder / f".best.{os.getpid()}"
        temporary.symlink_to(rows[0]["trial"])
        temporary.replace(folder / "best")
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    names = [name for name in rows[0] if name not in ("evaluation", "trial")]
    lines = [f"{'trial':10}" + "".join(f"{name:>20}" for name in names)]
    for row in rows:
        cells = [row.get(name) for name in names]
        shown = ["-" if x is None else f"{x:.4g}" if isinstance(x, float) else f"{x:,}" for x in cells]
        lines.append(f"{row['trial']:10}" + "".join(f"{cell:>20}" for cell in shown))
    return lines


class Progress(tune.Callback):
    """A line for each trial that ends."""

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        self._say(trial, f"score {trial.last_result.get('score')}")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        self._say(trial, "failed")

    def _say(self, trial: Any, text: str) -> None:
        print(f"{trial.config['trial']}: {text}", file=sys.stderr, flush=True)
