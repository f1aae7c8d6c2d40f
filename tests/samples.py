"""Small environments, specs, configurations and random unrolls that the tests of learning and acting share."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from vmpo.acting.actor import Actor, allocate
from vmpo.config import ActorConfig, AgentConfig, Config, LearnerConfig, LossConfig, RunConfig
from vmpo.distributions import Categorical, Distribution, PolicyFamily
from vmpo.learning.learner import Learner
from vmpo.learning.replicas import Replicas
from vmpo.networks.agent import AgentInput, make_agent, policy_family
from vmpo.records import ArraySpec, ContinuousActions, DiscreteActions, EnvSpec, Timestep, Trajectory

VECTOR = {"vector": ArraySpec(shape=(5,), dtype=np.dtype(np.float32), kind="vector")}
IMAGE = {"image": ArraySpec(shape=(2, 42, 42), dtype=np.dtype(np.uint8), kind="pixels")}
DISCRETE = DiscreteActions(sizes=(3,))
CONTINUOUS = ContinuousActions(low=-np.ones(2, np.float32), high=np.ones(2, np.float32))


def env_spec(action: Any = DISCRETE, tasks: tuple[str, ...] = ("task",)) -> EnvSpec:
    return EnvSpec(observation=VECTOR, action=action, tasks=tasks)


def sample(policy: Distribution, generator: torch.Generator) -> torch.Tensor:
    """A draw from a policy that was not made by a family."""
    if isinstance(policy, Categorical):
        actions, batch = DiscreteActions(sizes=policy.sizes), policy.logits.shape[:-1]
    else:
        width = policy.mean.shape[-1]
        actions, batch = ContinuousActions(low=-np.ones(width), high=np.ones(width)), policy.mean.shape[:-1]
    return policy.sample(PolicyFamily(actions=actions).noise(*batch, generator=generator))


def with_fields(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A configuration as plain values, changed: ``section__field`` names a field, ``section`` the whole of one."""
    for name, value in changes.items():
        section, _, field = name.partition("__")
        if field:
            values[section][field] = value
        else:
            values[section] = value
    return values


def small_config(**sections: dict[str, Any]) -> Config:
    """An MLP of 16 units on unrolls of 6 x 4; sections override fields by name."""
    config = Config(
        agent=AgentConfig(
            hidden=(16,),
            head_units=8,
            lstm_units=8,
            transformer_layers=2,
            transformer_heads=2,
            transformer_key_size=4,
            transformer_mlp=16,
            transformer_width=8,
            transformer_memory=4,
        ),
        loss=LossConfig(epsilon_policy=0.01, epsilon_mean=0.01, epsilon_covariance=1e-3),
        learner=LearnerConfig(batch_size=4, unroll_length=6, target_period=3, learning_rate=1e-2),
        actors=ActorConfig(num_envs=4),
        run=RunConfig(frames=96, tensorboard=False, log_steps=1),
    )
    return replace(config, **{name: replace(getattr(config, name), **fields) for name, fields in sections.items()})


def random_unrolls(learner: Learner, seed: int, resets: bool = True) -> Trajectory:
    """Unrolls as an actor would record them with the learner's target weights: the behaviour is the target's."""
    generator = torch.Generator().manual_seed(seed)
    length, batch = learner.config.learner.unroll_length, learner.config.learner.batch_size
    steps, spec = length + 1, learner.spec

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    firsts = torch.rand(steps, batch, generator=generator) < (0.25 if resets else 0.0)
    valids = ~firsts
    state = {
        k: 0.5 * normal(*v.shape) if v.is_floating_point() else v
        for k, v in learner.target.initial_state(batch).items()
    }
    observations = {
        name: normal(steps, batch, *part.shape)
        if part.kind == "vector"
        else torch.randint(256, (steps, batch, *part.shape), generator=generator, dtype=torch.uint8)
        for name, part in spec.observation.items()
    }
    rewards, tasks = (
        normal(steps, batch),
        torch.randint(len(spec.tasks), (batch,), generator=generator).expand(steps, batch),
    )
    discounts = (torch.rand(steps, batch, generator=generator) > 0.2).float()
    actions = torch.zeros(
        steps, batch, spec.action.width, dtype=torch.int64 if spec.action is DISCRETE else torch.float32
    )
    behaviour = torch.zeros(length, batch, learner.family.num_parameters)
    carried = state
    with torch.no_grad():
        for t in range(length):
            inputs = AgentInput(
                observation={k: v[t] for k, v in observations.items()},
                previous_action=actions[t],
                previous_reward=rewards[t],
                first=firsts[t],
            )
            output, carried = learner.target.step(inputs, carried)
            behaviour[t] = output.policy
            actions[t + 1] = sample(learner.family.distribution(output.policy), generator)
    return Trajectory(
        observations=observations,
        rewards=rewards,
        discounts=discounts,
        firsts=firsts,
        valids=valids,
        tasks=tasks.contiguous(),
        actions=actions,
        behaviour=behaviour,
        state=state,
        versions=torch.full((batch,), learner.version),
    )


def new_learner(
    config: Config, spec: EnvSpec | None = None, seed: int = 0, replicas: Replicas | None = None
) -> Learner:
    torch.manual_seed(seed)
    return Learner(spec or env_spec(), config, replicas)


class GraphEnv(gymnasium.Env):
    """Observes a graph, which no encoder here can read."""

    observation_space = gymnasium.spaces.Graph(gymnasium.spaces.Discrete(3), None)
    action_space = gymnasium.spaces.Discrete(2)


class SequenceEnv(gymnasium.Env):
    """Acts by a sequence of any length, which no policy here can sample."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,))
    action_space = gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(2))


class SlowEnv(gymnasium.Env):
    """Takes a while for each step, and makes a file at the first one."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        Path(os.environ["SLOW_ENV_MARK"]).touch()
        time.sleep(0.02)
        return np.zeros(3, np.float32), 0.0, False, False, {}


class CountingEnv:
    """Environment i ends after ``lengths[i]`` steps; the observation is [i, step, 0, 0, 0] and step k earns k."""

    def __init__(self, lengths, spec=None, delay=0.0, fail_at=None):
        self.spec, self.num_envs = spec or env_spec(), len(lengths)
        self.lengths, self.delay, self.fail_at = np.array(lengths), delay, fail_at
        self.steps = np.zeros(self.num_envs, np.int64)
        self.ended = np.zeros(self.num_envs, bool)
        self.executed, self.closed, self.calls = [], False, 0

    def reset(self, seed):
        return self._arrive(np.ones(self.num_envs, bool))

    def step(self, actions):
        self.calls += 1
        if self.calls == self.fail_at:
            raise RuntimeError("the simulator broke")
        time.sleep(self.delay)
        self.executed.append(actions.copy())
        first = self.ended.copy()
        self.steps = np.where(first, 0, self.steps + 1)
        return self._arrive(first)

    def _arrive(self, first):
        observation = np.zeros((self.num_envs, 5), np.float32)
        observation[:, 0], observation[:, 1] = np.arange(self.num_envs), self.steps
        self.ended = (self.steps == self.lengths) & ~first
        reward = self.steps.astype(np.float32)
        return Timestep(
            observation={"vector": observation},
            reward=reward,
            discount=1.0 - self.ended.astype(np.float32),
            first=first,
            valid=~first,
            task=np.zeros(self.num_envs, np.int64),
            score=reward,
            ended=self.ended,
        )

    def close(self):
        self.closed = True


def narrow_encoder(observation: dict[str, ArraySpec], config: AgentConfig) -> torch.nn.Module:
    """An encoder that says it is wider than it is."""
    encoder = torch.nn.Module()
    encoder.width = 5  # type: ignore[assignment]
    encoder.forward = lambda observation: torch.zeros(2, 3)  # type: ignore[method-assign]
    return encoder


def make_actor(env, config, seed=0, greedy=False, **options):
    torch.manual_seed(seed)
    network, family = make_agent(env.spec, config), policy_family(env.spec, config)
    return Actor(env, network, family, seed=seed, greedy=greedy, **options)


def counting_actor(config, lengths, delay, fail_at, attempt, *, report, safe_moment):
    """For a process of its own; the weights that it is given are of version 0 or later."""
    actor = make_actor(CountingEnv(lengths, delay=delay, fail_at=fail_at), config, safe_moment=safe_moment)
    actor.version = -1
    return actor


def new_slot(actor, config):
    length = config.learner.unroll_length
    return allocate(actor.env.spec, actor.family, actor.network, length, actor.env.num_envs, pin=False)
