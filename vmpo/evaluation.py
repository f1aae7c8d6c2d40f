"""Evaluation of a run's weights, on environments that its training never saw."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import torch

from vmpo import suites
from vmpo.acting.evaluate import EvaluationResult, evaluate, num_evaluation_envs
from vmpo.actors import new_actor, set_threads
from vmpo.config import Config
from vmpo.errors import UserError
from vmpo.learning import checkpoint
from vmpo.metrics import plain_numbers
from vmpo.records import EpisodeResult, Weights
from vmpo.run_directory import RunDirectory, put


def evaluate_weights(
    config: Config,
    weights: Weights,
    episodes: int,
    *,
    greedy: bool = True,
    seed: int = 1_000_003,
    tell: Callable[[str], None] | None = None,
) -> EvaluationResult:
    """Play episodes of each task on fresh environments whose seed the training never used.

    A run of another machine, whose actors had a GPU, is played on the CPU where there is none.
    """
    if not torch.cuda.is_available():
        config = dataclasses.replace(config, actors=dataclasses.replace(config.actors, device="cpu"))
    whole_episodes = dataclasses.replace(config.env, stagger=False)
    num_tasks = len(suites.task_ids(config.env))
    env = suites.make(whole_episodes, num_evaluation_envs(config.actors.num_envs, num_tasks, episodes), seed)
    try:
        return evaluate(new_actor(config, env, weights, seed, greedy=greedy), episodes, tell)
    finally:
        env.close()


def evaluate_run(
    directory: str | Path,
    episodes: int = 100,
    *,
    greedy: bool = True,
    seed: int = 1_000_003,
    held_out: bool = False,
    best: bool = False,
    trust: bool = False,
    tell: Callable[[str], None] | None = None,
) -> EvaluationResult:
    """Evaluate the online network of a run's newest checkpoint, or of the one with the best training return.

    ``held_out`` plays the test versions of the levels that it learned. ``tell`` is given a line every ten seconds.
    """
    if episodes < 1:
        raise UserError(f"an evaluation of {episodes} episodes has no result; play at least 1")
    if seed < 0:
        raise UserError(f"the seed {seed} must not be negative")
    run_directory = RunDirectory(directory)
    config = run_directory.read_config(trust)
    if held_out:
        if config.env.suite not in ("lab", "miniworld"):
            raise UserError(f"the suite {config.env.suite} has no held-out levels; lab and miniworld have")
        config = dataclasses.replace(config, env=dataclasses.replace(config.env, held_out=True))
    saved = checkpoint.chosen(run_directory.checkpoints, best)
    set_threads(config)
    weights = checkpoint.online_weights(saved)
    result = evaluate_weights(config, weights, episodes, greedy=greedy, seed=seed, tell=tell)
    return dataclasses.replace(
        result, learner_step=saved.progress["learner_step"], agent_steps=saved.progress.get("agent_steps", 0)
    )


def final_evaluation(
    config: Config,
    directory: RunDirectory,
    weights: Weights,
    learner_step: int,
    agent_steps: int,
    tell: Callable[[str], None] | None = None,
) -> EvaluationResult | None:
    """That of a run's end, if it asks for one. It is kept in the run directory, and not played again."""
    episodes = config.run.evaluation_episodes
    known = _stored(directory, learner_step) if episodes else None
    if not episodes or known is not None:
        return known
    played = evaluate_weights(config, weights, episodes, tell=tell)
    result = dataclasses.replace(played, learner_step=learner_step, agent_steps=agent_steps)
    lines = [{"task": e.task, "return": e.episode_return, "length": e.length} for e in result.episodes]
    # A full disk shall not take the result from the user, who is told it in any case.
    with contextlib.suppress(OSError):
        put(directory.evaluation_file, plain_numbers({"summary": result.summary(), "episodes": lines}))
    return result


def _stored(directory: RunDirectory, learner_step: int) -> EvaluationResult | None:
    """The evaluation on file, if it is of this learner step and can be read."""
    try:
        values = json.loads(directory.evaluation_file.read_text())
        summary = values["summary"]
        if summary["learner_step"] != learner_step:
            return None
        return EvaluationResult(
            episodes=tuple(
                EpisodeResult(
                    task=str(line["task"]),
                    episode_return=math.nan if line["return"] is None else float(line["return"]),
                    length=int(line["length"]),
                )
                for line in values["episodes"]
            ),
            unfinished=int(summary.get("unfinished", 0)),
            learner_step=learner_step,
            agent_steps=int(summary["agent_steps"]),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
