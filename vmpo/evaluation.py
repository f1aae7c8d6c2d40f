"""Evaluation of a run's weights, on environments that its training never saw."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from vmpo import suites
from vmpo.acting.evaluate import EvaluationResult, evaluate, num_evaluation_envs
from vmpo.actors import new_actor, set_threads
from vmpo.config import Config
from vmpo.errors import UserError
from vmpo.learning import checkpoint
from vmpo.records import Weights
from vmpo.run_directory import RunDirectory


def evaluate_weights(
    config: Config, weights: Weights, episodes: int, *, greedy: bool = True, seed: int = 1_000_003
) -> EvaluationResult:
    """Play episodes of each task on fresh environments whose seed the training never used."""
    whole_episodes = dataclasses.replace(config.env, stagger=False)
    num_tasks = len(suites.task_ids(config.env))
    env = suites.make(whole_episodes, num_evaluation_envs(config.actors.num_envs, num_tasks, episodes), seed)
    try:
        return evaluate(new_actor(config, env, weights, seed, greedy=greedy), episodes)
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
) -> EvaluationResult:
    """Evaluate the online network of a run's newest checkpoint, or of the one with the best training return.

    ``held_out`` plays the test versions of the levels that it learned.
    """
    if episodes < 1:
        raise UserError(f"an evaluation of {episodes} episodes has no result; play at least 1")
    run_directory = RunDirectory(directory)
    config = run_directory.read_config(trust)
    if held_out:
        if config.env.suite not in ("lab", "miniworld"):
            raise UserError(f"the suite {config.env.suite} has no held-out levels; lab and miniworld have")
        config = dataclasses.replace(config, env=dataclasses.replace(config.env, held_out=True))
    saved = checkpoint.chosen(run_directory.checkpoints, best)
    set_threads(config)
    return evaluate_weights(config, checkpoint.online_weights(saved), episodes, greedy=greedy, seed=seed)
