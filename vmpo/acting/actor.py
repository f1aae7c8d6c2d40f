"""The actor: one vector environment and one acting network, turned into unrolls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vmpo.acting.faults import Faults, check_finite
from vmpo.distributions import PolicyFamily
from vmpo.errors import UserCodeError, UserError
from vmpo.metrics import Stopwatch
from vmpo.networks.agent import Agent, AgentInput, agent_inputs
from vmpo.networks.session import SessionPolicy, session_policy
from vmpo.records import ContinuousActions, EnvSpec, EpisodeResult, Trajectory, VectorEnv, Weights, tree_map
from vmpo.signals import Stopped


def allocate(spec: EnvSpec, family: PolicyFamily, network: Agent, length: int, batch: int, pin: bool) -> Trajectory:
    """Memory for ``batch`` unrolls of ``length`` transitions, to be written in place over and over."""

    def empty(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, pin_memory=pin)

    steps = length + 1
    continuous = isinstance(spec.action, ContinuousActions)
    return Trajectory(
        observations={
            name: empty(steps, batch, *array.shape, dtype=torch.from_numpy(np.empty(0, array.dtype)).dtype)
            for name, array in spec.observation.items()
        },
        rewards=empty(steps, batch, dtype=torch.float32),
        discounts=empty(steps, batch, dtype=torch.float32),
        firsts=empty(steps, batch, dtype=torch.bool),
        valids=empty(steps, batch, dtype=torch.bool),
        tasks=empty(steps, batch, dtype=torch.int64),
        actions=empty(steps, batch, spec.action.width, dtype=torch.float32 if continuous else torch.int64),
        behaviour=empty(length, batch, family.num_parameters, dtype=torch.float32),
        state={k: empty(*v.shape, dtype=v.dtype) for k, v in network.initial_state(batch, "cpu").items()},
        versions=torch.zeros(batch, dtype=torch.int64),
    )


def _packed(network: Agent) -> Agent:
    """With linear layers' weights input by input: a CPU multiplies few rows with them faster, by up to a third."""
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data = layer.weight.data.t().contiguous().t()
    return network


@dataclass(frozen=True, slots=True, kw_only=True)
class _Views:
    """The memory of a slot as an unroll goes through it: made one by one, views cost as much as a small network."""

    slot: Trajectory
    arrays: Any
    """As NumPy sees it: a small write costs a tenth of torch's."""
    inputs: list[AgentInput]
    """What is seen at each timestep but the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Played:
    """What counts for episodes and not for the learner, ``[T+1, B]``; the first timestep was counted before."""

    scores: np.ndarray
    ended: np.ndarray


class Actor:
    """Steps its environments with the newest weights it was given; those stay fixed within an unroll."""

    def __init__(
        self,
        env: VectorEnv,
        network: Agent,
        family: PolicyFamily,
        *,
        seed: int,
        device: str = "cpu",
        onnx_runtime: bool = True,
        greedy: bool = False,
        stopwatch: Stopwatch | None = None,
        make_env: Callable[[int], VectorEnv] | None = None,
        faults: Faults | None = None,
        safe_moment: Callable[[], None] = lambda: None,
    ) -> None:
        """With ``make_env``, a fault of the environments is answered by new ones of another seed, as ``faults`` allow;
        without it, a fault is raised. ``safe_moment`` is called before each step and may raise to end all acting."""
        self.env, self.family, self.greedy = env, family, greedy
        self._make_env, self._seed, self._safe_moment = make_env, seed, safe_moment
        self.faults = faults or Faults(0, report=lambda text: None)
        self.device = torch.device(device)
        self.network = network.to(self.device).requires_grad_(False)
        self.policy = (onnx_runtime and session_policy(self.network)) or _packed(self.network)
        self.stopwatch = stopwatch or Stopwatch()
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.version = 0
        self._views: dict[int, _Views] = {}
        """Of the slots that were filled, by their identity: a fleet has a few, which go round."""
        self._broken = False
        self._begin(seed)

    def _begin(self, seed: int) -> None:
        """Start all episodes anew."""
        num_envs = self.env.num_envs
        self._state = self.network.initial_state(num_envs, self.device)
        self._action = np.zeros((num_envs, self.env.spec.action.width))
        self._timestep = self.env.reset(seed)
        self._episode_returns = np.zeros(num_envs)
        self._episode_lengths = np.zeros(num_envs, dtype=np.int64)

    def load(self, weights: Weights) -> None:
        self.network.load_state_dict(weights.tensors)
        if isinstance(self.policy, SessionPolicy):
            self.policy.forget()
        self.version = weights.version

    def unroll(self, slot: Trajectory) -> list[EpisodeResult]:
        """Fill a slot with the next unroll. Its first timestep is the last one of the unroll before.

        A broken unroll is discarded with its episodes, and made again with new environments.
        """
        while True:
            try:
                if self._broken:
                    self._restart()
                episodes = self._unroll(slot)
                check_finite(slot, self.env.spec.tasks)
                self.faults.unrolled()
                return episodes
            except Exception as error:
                mistaken = isinstance(error, UserError) and not isinstance(error, UserCodeError)
                if self._make_env is None or mistaken or isinstance(error, Stopped):
                    raise
                self._broken = True
                self.faults.survive(error, learned=self.version > 0)

    def _restart(self) -> None:
        assert self._make_env is not None
        # What is broken may not even close.
        with contextlib.suppress(Exception):
            self.env.close()
        seed = (self._seed + 104_729 * self.faults.count) % 2**31
        self.env = self._make_env(seed)
        self._begin(seed)
        self._broken = False

    @torch.inference_mode()
    def _unroll(self, slot: Trajectory) -> list[EpisodeResult]:
        self.stopwatch.start()
        views = self._views.get(id(slot)) or self._views.setdefault(id(slot), _views(slot))
        arrays = views.arrays
        for name, tensor in slot.state.items():
            tensor.copy_(self._state[name])
        arrays.versions.fill(self.version)
        arrays.actions[0] = self._action
        self._write(arrays, 0)
        played = _Played(scores=np.empty(slot.rewards.shape), ended=np.zeros(slot.rewards.shape, np.bool_))
        # The noise of a whole unroll at once.
        noise = self.family.noise(*slot.behaviour.shape[:2], generator=self.generator).unbind()
        policies: list[Tensor] = []
        for t, (inputs, chance) in enumerate(zip(views.inputs, noise, strict=True)):
            self.stopwatch.lap("rest")
            self._safe_moment()
            policies.append(self._choose(inputs, chance, arrays.actions[t + 1]))
            executed = self.env.spec.action.executable(arrays.actions[t + 1])
            self.stopwatch.lap("infer")
            self._timestep = self.env.step(executed)
            self.stopwatch.lap("simulate")
            self._write(arrays, t + 1)
            played.scores[t + 1], played.ended[t + 1] = self._timestep.score, self._timestep.ended
        slot.behaviour.copy_(torch.stack(policies))
        self._action = arrays.actions[-1].copy()
        episodes = self._count(played, arrays)
        self.stopwatch.lap("rest")
        return episodes

    def _choose(self, inputs: AgentInput, noise: Tensor, action: np.ndarray) -> Tensor:
        """Sample an action for every environment; the parameters of the distribution that it came from."""
        if self.device.type != "cpu":
            inputs = tree_map(lambda x: x.to(self.device, non_blocking=True), inputs)
        parameters, self._state = self.policy.act(inputs, self._state)
        policy = self.family.distribution(parameters)
        action[:] = (policy.mode() if self.greedy else policy.sample(noise)).cpu().numpy()
        return parameters

    def _write(self, arrays: Any, t: int) -> None:
        timestep = self._timestep
        for name, array in timestep.observation.items():
            arrays.observations[name][t] = array
        for column, array in (
            (arrays.rewards, timestep.reward),
            (arrays.discounts, timestep.discount),
            (arrays.firsts, timestep.first),
            (arrays.valids, timestep.valid),
            (arrays.tasks, timestep.task),
        ):
            column[t] = array

    def _count(self, played: _Played, arrays: Any) -> list[EpisodeResult]:
        """The episodes that ended within an unroll, in their order."""
        played.scores[0] = self._episode_returns
        counted = (arrays.valids | played.ended).astype(np.int64)
        counted[0] = self._episode_lengths
        # Sums run on from episode to episode of an environment: what was there at the last end is taken off.
        returns, lengths = played.scores.cumsum(axis=0), counted.cumsum(axis=0)
        envs, times = np.nonzero(played.ended.T)
        before = np.where(np.diff(envs, prepend=-1) == 0, np.roll(times, 1), -1)
        scored = returns[times, envs] - np.where(before < 0, 0.0, returns[before, envs])
        taken = lengths[times, envs] - np.where(before < 0, 0, lengths[before, envs])
        last = np.zeros(self.env.num_envs, np.int64)
        np.maximum.at(last, envs, times)
        everyone, ended = np.arange(self.env.num_envs), played.ended.any(axis=0)
        self._episode_returns = returns[-1] - np.where(ended, returns[last, everyone], 0.0)
        self._episode_lengths = lengths[-1] - np.where(ended, lengths[last, everyone], 0)
        order = np.argsort(times, kind="stable")
        columns = (envs[order], arrays.tasks[times, envs][order], scored[order], taken[order])
        return [self._episode(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]

    def running(self, at_least: int) -> list[EpisodeResult]:
        """The episodes that have not ended after so many steps, as far as they got."""
        columns = (self._timestep.task, self._episode_returns, self._episode_lengths)
        everyone = enumerate(zip(*(column.tolist() for column in columns), strict=True))
        return [self._episode(index, *row) for index, row in everyone if row[-1] >= at_least]

    def _episode(self, index: int, task: int, episode_return: float, length: int) -> EpisodeResult:
        return EpisodeResult(
            task=self.env.spec.tasks[task], episode_return=episode_return, length=length, env_index=index
        )


def _views(slot: Trajectory) -> _Views:
    seen = agent_inputs(slot)
    timesteps = zip(
        zip(*(x[:-1].unbind() for x in seen.observation.values()), strict=True),
        seen.previous_action[:-1].unbind(),
        seen.previous_reward[:-1].unbind(),
        seen.first[:-1].unbind(),
        strict=True,
    )
    return _Views(
        slot=slot,
        arrays=tree_map(lambda x: x.numpy(), slot),
        inputs=[
            AgentInput(
                observation=dict(zip(seen.observation, observation, strict=True)),
                previous_action=action,
                previous_reward=reward,
                first=first,
            )
            for observation, action, reward, first in timesteps
        ],
    )
