"""The actors of a run: environments of its suite, a copy of its network, and a seed of their own."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from vmpo import suites
from vmpo.acting.actor import Actor, allocate
from vmpo.acting.faults import Faults, Report
from vmpo.acting.local import Fleet, SerialFleet
from vmpo.acting.overlapping import OverlappingFleet
from vmpo.config import Config
from vmpo.learning.checkpoint import check_fit
from vmpo.learning.learner import Learner
from vmpo.metrics import Stopwatch
from vmpo.networks.agent import make_agent, policy_family
from vmpo.records import EnvSpec, VectorEnv, Weights


def new_actor(config: Config, env: VectorEnv, weights: Weights, seed: int, **options: Any) -> Actor:
    """An actor with its own copy of the network; the options are those of ``Actor``."""
    network = make_agent(env.spec, config)
    check_fit(network.state_dict(), weights.tensors)
    actor = Actor(
        env,
        network,
        policy_family(env.spec, config),
        seed=seed,
        device=config.actors.device,
        onnx_runtime=config.actors.onnx_runtime,
        **options,
    )
    actor.load(weights)
    return actor


def training_env(config: Config, seed: int) -> VectorEnv:
    return suites.make(config.env, config.actors.num_envs, seed)


def training_actor(
    config: Config, weights: Weights, seed: int, report: Report, env: VectorEnv | None = None, **options: Any
) -> Actor:
    """An actor that makes its environments anew where they fail, and reports it; ``env`` may be its first."""
    return new_actor(
        config,
        env or training_env(config, seed),
        weights,
        seed,
        make_env=lambda new_seed: training_env(config, new_seed),
        faults=Faults(config.actors.max_faults, report),
        **options,
    )


def environment_spec(config: Config) -> EnvSpec:
    """Of the environments that other processes will make."""
    env = training_env(config, config.run.seed)
    try:
        return env.spec
    finally:
        env.close()


def distant_actor(config: Config, index: int, since: int, report: Report, **options: Any) -> Actor:
    """An actor in another process, where weights arrive later."""
    seed = actor_seed(config, index, since)
    env = training_env(config, seed)
    blank = Weights(version=-1, tensors=make_agent(env.spec, config).state_dict())
    return training_actor(config, blank, seed, report, env, **options)


def make_fleet(
    config: Config,
    learner: Learner,
    env: VectorEnv | None,
    first: int,
    report: Report,
    stopwatch: Stopwatch,
    safe_moment: Callable[[], None],
) -> Fleet:
    """Actors in this process, which play ``env``, or in others of this machine, numbered from ``first`` on."""
    weights = learner.weights()
    if env is not None:
        seed = actor_seed(config, first, learner.learner_step)
        actor = training_actor(config, weights, seed, report, env, stopwatch=stopwatch, safe_moment=safe_moment)
        return SerialFleet(config, actor)
    length, num_envs = config.learner.unroll_length, config.actors.num_envs
    slot = allocate(learner.spec, learner.family, learner.target, length, num_envs, pin=False)
    makers = [partial(distant_actor, config, first + index) for index in range(config.actors.num_actors)]
    return OverlappingFleet(
        config, makers, slot, weights, report=report, safe_moment=safe_moment, since=learner.learner_step
    )


def actor_seed(config: Config, index: int, since: int) -> int:
    """The seed of an actor that starts after so many learner steps: a resumed run plays new episodes."""
    return (config.run.seed + 10_007 * index + 7_919 * since) % 2**31


def set_threads(config: Config) -> None:
    """Those of the configuration, or one per core; several learners on a machine share its cores."""
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    elif learners := os.environ.get("LOCAL_WORLD_SIZE"):
        # torchrun and Ray start a process with one thread.
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(learners)))
