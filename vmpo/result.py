"""What came of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vmpo.acting.evaluate import EvaluationResult
from vmpo.actors import set_threads
from vmpo.config import Config
from vmpo.evaluation import final_evaluation
from vmpo.learning import checkpoint
from vmpo.metrics import EpisodeWindow, RunLog
from vmpo.run_directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class RunResult:
    directory: Path
    learner_steps: int
    agent_steps: int
    frames: int
    seconds: float
    """Wall-clock of all sessions of the run."""
    return_mean: float
    """Mean return of the last 100 training episodes of each task."""
    evaluation: EvaluationResult | None
    finished: bool
    """False if a signal stopped it before its last frame."""
    trained: bool = True
    """False if it had finished before, so that there was nothing to do."""


def of_finished(config: Config, directory: RunDirectory, saved: checkpoint.Checkpoint, evaluate: bool) -> RunResult:
    """The result of a run whose last checkpoint has all of its frames; only an evaluation that is not there is made."""
    window, evaluation = EpisodeWindow(), None
    window.add(RunLog(directory.path, tensorboard=False, append=True).read_episodes())
    learner_step, agent_steps, frames = (int(saved.progress[k]) for k in ("learner_step", "agent_steps", "frames"))
    if evaluate:
        set_threads(config)
        weights = checkpoint.online_weights(saved)
        evaluation = final_evaluation(config, directory, weights, learner_step, agent_steps)
    return RunResult(
        directory=directory.path,
        learner_steps=learner_step,
        agent_steps=agent_steps,
        frames=frames,
        seconds=float(saved.progress["seconds"]),
        return_mean=window.summary()["return_mean"],
        evaluation=evaluation,
        finished=True,
        trained=False,
    )
