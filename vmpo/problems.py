"""What is impossible in a configuration, found before any work starts."""

from __future__ import annotations

import dataclasses
import math
import re

from vmpo.config import Config


def problems(config: Config) -> list[str]:
    """All of it at once, a sentence each."""
    learner, actors, loss = config.learner, config.actors, config.loss
    found = [
        f"{section}.{name}={value} must be at least 1"
        for section in ("learner", "actors", "run")
        for name, value in dataclasses.asdict(getattr(config, section)).items()
        if name in POSITIVE and value is not None and value < 1
    ]
    found += [
        f"loss.{name}=None has no range to sample from; give a value"
        for name in ("epsilon_policy", "epsilon_mean", "epsilon_covariance")
        if getattr(loss, name) is None
    ]
    found += [
        f"{where}={value} must be a positive number"
        for where, value in _positive_numbers(config)
        if value is not None and not (math.isfinite(value) and value > 0)
    ]
    found += [
        f"run.{name}={value} must not be negative"
        for name, value in dataclasses.asdict(config.run).items()
        if name in ("seed", "threads", "evaluation_episodes") and value < 0
    ]
    if not 0 < loss.top_fraction <= 1:
        found.append(f"loss.top_fraction={loss.top_fraction} must be in (0, 1]")
    if not 0 <= loss.popart_rate <= 1:
        found.append(f"loss.popart_rate={loss.popart_rate} must be in [0, 1]")
    if not 0 <= loss.discount <= 1:
        found.append(f"loss.discount={loss.discount} must be in [0, 1]")
    if not 0 <= loss.gae_lambda <= 1:
        found.append(f"loss.gae_lambda={loss.gae_lambda} must be in [0, 1]")
    if config.agent.initial_std <= config.agent.minimum_std:
        found.append(
            f"agent.initial_std={config.agent.initial_std} must exceed agent.minimum_std={config.agent.minimum_std}"
        )
    for where, device in (("learner.device", learner.device), ("actors.device", actors.device)):
        if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
            found.append(f"{where}={device!r} must be cpu, cuda or cuda:N")
    if found:
        return found
    if learner.batch_size % learner.virtual_replicas:
        remainder = learner.batch_size % learner.virtual_replicas
        found.append(
            f"learner.batch_size={learner.batch_size} does not divide over {learner.virtual_replicas} replicas; "
            f"try {learner.batch_size - remainder or learner.virtual_replicas}"
        )
    if learner.batch_size % actors.num_envs and actors.num_envs % learner.batch_size:
        multiple = max(actors.num_envs, learner.batch_size - learner.batch_size % actors.num_envs)
        found.append(
            f"learner.batch_size={learner.batch_size} and actors.num_envs={actors.num_envs}: one must be a multiple of "
            f"the other; try --learner.batch-size {multiple}"
        )
    if learner.batch_size // learner.virtual_replicas * learner.unroll_length * loss.top_fraction < 1:
        found.append("a minibatch of one sample has no top half; raise learner.batch_size or learner.unroll_length")
    return found


POSITIVE = (
    "batch_size",
    "unroll_length",
    "passes",
    "virtual_replicas",
    "target_period",
    "num_envs",
    "num_actors",
    "queue_size",
    "frames",
    "keep_checkpoints",
    "log_steps",
)


def _positive_numbers(config: Config) -> list[tuple[str, float | None]]:
    loss = config.loss
    named: list[tuple[str, float | None]] = [
        (f"loss.{name}", getattr(loss, name))
        for name in (
            "epsilon_temperature",
            "epsilon_policy",
            "epsilon_mean",
            "epsilon_covariance",
            "initial_temperature",
            "initial_alpha_policy",
            "initial_alpha_mean",
            "initial_alpha_covariance",
            "popart_minimum",
            "clip_ratio",
        )
    ]
    return [
        *named,
        ("learner.learning_rate", config.learner.learning_rate),
        ("learner.multiplier_learning_rate", config.learner.multiplier_learning_rate),
        ("learner.max_gradient_norm", config.learner.max_gradient_norm),
        ("run.video_seconds", config.run.video_seconds),
    ]
