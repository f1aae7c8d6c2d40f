"""What is impossible in a configuration, found before any work starts."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import re
from pathlib import Path

import torch

from vmpo.config import ClusterConfig, Config
from vmpo.errors import UserError, missing_extra
from vmpo.movie import check_format


def problems(config: Config, replicas: int = 1) -> list[str]:
    """All of it at once, a sentence each; ``replicas`` learner processes divide the work."""
    env, agent, learner, actors, loss = config.env, config.agent, config.learner, config.actors, config.loss
    found = [
        f"{section}.{name}={value} must be at least 1"
        for section in ("env", "agent", "learner", "actors", "run")
        for name, value in dataclasses.asdict(getattr(config, section)).items()
        if name in POSITIVE and value is not None and value < 1
    ]
    found += [
        f"{where}={sizes} must be numbers of at least 1"
        for where, sizes in (("agent.hidden", agent.hidden), ("agent.resnet_channels", agent.resnet_channels))
        if any(size < 1 for size in sizes)
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
        f"{where}={value} must not be negative"
        for where, value in (
            ("run.seed", config.run.seed),
            ("run.threads", config.run.threads),
            ("run.evaluation_episodes", config.run.evaluation_episodes),
            ("actors.lag", actors.lag),
            ("actors.queue_size", actors.queue_size),
            ("agent.head_units", agent.head_units),
            ("env.noop_max", env.noop_max),
            ("env.simulator_threads", env.simulator_threads),
        )
        if value < 0
    ]
    if not 0 < loss.top_fraction <= 1:
        found.append(f"loss.top_fraction={loss.top_fraction} must be in (0, 1]")
    found += [
        f"{where}={value} must be in [0, 1]"
        for where, value in (
            ("loss.popart_rate", loss.popart_rate),
            ("loss.discount", loss.discount),
            ("loss.gae_lambda", loss.gae_lambda),
            ("env.sticky_actions", env.sticky_actions),
            ("env.life_loss_discount", env.life_loss_discount),
        )
        if not 0 <= value <= 1
    ]
    if agent.initial_std <= agent.minimum_std:
        found.append(f"agent.initial_std={agent.initial_std} must exceed agent.minimum_std={agent.minimum_std}")
    for where, device in (("learner.device", learner.device), ("actors.device", actors.device)):
        if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
            found.append(f"{where}={device!r} must be cpu, cuda or cuda:N")
    if found:
        return found
    parts = learner.virtual_replicas * replicas
    if remainder := learner.batch_size % parts:
        found.append(
            f"learner.batch_size={learner.batch_size} does not divide over {parts} replicas; "
            f"try {learner.batch_size - remainder or parts}"
        )
    if remainder := actors.num_envs % replicas:
        found.append(
            f"actors.num_envs={actors.num_envs} does not divide over {replicas} learner processes; "
            f"try {actors.num_envs - remainder or replicas}"
        )
    if learner.batch_size % actors.num_envs and actors.num_envs % learner.batch_size:
        multiple = max(actors.num_envs, learner.batch_size - learner.batch_size % actors.num_envs)
        found.append(
            f"learner.batch_size={learner.batch_size} and actors.num_envs={actors.num_envs}: one must be a multiple of "
            f"the other; try --learner.batch-size {multiple}"
        )
    if learner.batch_size // parts * learner.unroll_length * loss.top_fraction < 1:
        found.append("a minibatch of one sample has no top half; raise learner.batch_size or learner.unroll_length")
    return found


def check(config: Config, replicas: int = 1) -> None:
    """Refuse what is impossible, or impossible on this machine."""
    found = problems(config, replicas)
    for where, device in (("learner.device", config.learner.device), ("actors.device", config.actors.device)):
        if not device.startswith("cuda"):
            continue
        index = device.partition(":")[2]
        if not torch.cuda.is_available():
            found.append(f"{where}={device}, but torch finds no CUDA device")
        elif index and replicas > 1:
            found.append(f"{where}={device} would be that of all {replicas} learners; cuda gives each its own")
        elif index and int(index) >= torch.cuda.device_count():
            found.append(f"{where}={device}, but torch finds {torch.cuda.device_count()} CUDA devices, from 0 on")
    if found:
        raise UserError("; ".join(found))
    if config.run.wandb is not None and importlib.util.find_spec("wandb") is None:
        raise missing_extra("wandb", "wandb")
    if config.run.video_seconds is not None:
        check_format(Path("any.mp4"))


def cluster_problems(cluster: ClusterConfig, config: Config) -> list[str]:
    """What is impossible about the numbers of processes, for a configuration without problems of its own."""
    found = [
        f"cluster.{name}={value} must be at least 1"
        for name, value in (("actors", cluster.actors), ("learners", cluster.learners))
        if value < 1
    ]
    if not found and cluster.actors < cluster.learners:
        found.append(f"cluster.actors={cluster.actors} must be at least cluster.learners={cluster.learners}")
    if not found and config.actors.fleet == "serial" and config.actors.num_envs % cluster.actors:
        more = config.actors.num_envs + -config.actors.num_envs % cluster.actors
        found.append(
            f"actors.num_envs={config.actors.num_envs} does not divide over cluster.actors={cluster.actors}, which "
            f"take turns with the learner; try --actors.num-envs {more}, or --actors.fleet overlapping"
        )
    if not found and config.actors.fleet == "serial" and cluster.actors % cluster.learners:
        found.append(
            f"cluster.actors={cluster.actors} does not divide over cluster.learners={cluster.learners}; "
            f"try {cluster.actors - cluster.actors % cluster.learners}"
        )
    return found


POSITIVE = (
    "batch_size",
    "unroll_length",
    "passes",
    "virtual_replicas",
    "target_period",
    "num_envs",
    "num_actors",
    "frames",
    "keep_checkpoints",
    "log_steps",
    "max_episode_steps",
    "max_frames",
    "frame_stack",
    "action_repeat",
    "pixel_features",
    "text_embedding",
    "text_units",
    "lstm_layers",
    "lstm_units",
    "transformer_layers",
    "transformer_heads",
    "transformer_key_size",
    "transformer_mlp",
    "transformer_width",
    "transformer_memory",
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
        ("learner.final_learning_rate", config.learner.final_learning_rate),
        ("learner.multiplier_learning_rate", config.learner.multiplier_learning_rate),
        ("learner.max_gradient_norm", config.learner.max_gradient_norm),
        ("learner.adam_epsilon", config.learner.adam_epsilon),
        ("agent.minimum_std", config.agent.minimum_std),
        ("run.video_seconds", config.run.video_seconds),
    ]
