"""The records that every other module speaks in, the tree helpers over them, and the contract of a vector environment.

Layout is ``[T, B, ...]`` everywhere. All fields of a timestep belong to the *arrival* at its observation:
``rewards[t]``, ``discounts[t]`` and ``actions[t]`` describe the transition that led to ``observations[t]``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

Observation: TypeAlias = dict[str, Any]
"""Named arrays: numpy ``[B, ...]`` from an environment, tensors ``[T, B, ...]`` or ``[B, ...]`` in an agent."""

AgentState: TypeAlias = dict[str, Tensor]
"""Recurrent state, each tensor ``[B, ...]``; empty for a feed-forward agent."""

Tree = TypeVar("Tree")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationForm:
    """How a Gymnasium environment itself gives what ``suites.spaces.encode`` makes an array of."""

    path: tuple[str | int, ...]
    """Keys of Dicts and indices of Tuples that lead to it."""
    shape: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    """Choices: how many each has."""
    start: tuple[int, ...] = ()
    """Choices: the lowest of each."""
    seen: tuple[int, ...] | None = None
    """Entries that the agent sees, if not all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionForm:
    """How a Gymnasium environment itself takes an action."""

    shape: tuple[int, ...]
    dtype: str
    start: tuple[int, ...] = ()
    """Choices: the lowest of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySpec:
    """Shape, type and meaning of one named observation, without the batch axis."""

    shape: tuple[int, ...]
    dtype: np.dtype
    kind: Literal["pixels", "vector", "text"]
    """``pixels`` is uint8; ``vector`` float32 of rank 1; ``text`` int64 word codes of rank 1, 0 meaning no word."""
    vocabulary: int = 0
    """Text: codes run from 1 to this number."""
    layout: Literal["CHW", "HWC"] = "CHW"
    """Axis order of pixels as the simulator delivers them; the encoder permutes, so that no copy is made before it."""
    form: ObservationForm | None = field(default=None, compare=False)
    """What the environment itself gives, where that may be another thing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteActions:
    """One categorical choice per entry of ``sizes``; several are independent. Actions are int64 ``[B, len(sizes)]``."""

    sizes: tuple[int, ...]
    form: ActionForm | None = field(default=None, compare=False)

    @property
    def width(self) -> int:
        return len(self.sizes)

    def executable(self, raw: np.ndarray) -> np.ndarray:
        """Every sample of a categorical can be executed as it is."""
        return raw

    def native(self, executable: np.ndarray) -> np.ndarray:
        """As the environment's own ``step`` takes them; without a form, a single choice is a plain integer."""
        if self.form is None:
            return executable[:, 0] if self.width == 1 else executable
        choices = executable + self.form.start if any(self.form.start) else executable
        return choices.reshape(-1, *self.form.shape).astype(self.form.dtype, copy=False)


@dataclass(frozen=True, kw_only=True)
class ContinuousActions:
    """A real vector. The policy lives in the unit box; ``executable`` maps it to the environment's bounds."""

    low: np.ndarray
    high: np.ndarray
    form: ActionForm | None = field(default=None, compare=False)

    @property
    def width(self) -> int:
        return len(self.low)

    def executable(self, raw: np.ndarray) -> np.ndarray:
        """Clip the raw sample to [-1, 1] and scale it to the bounds; an entry without both bounds is only clipped.

        The learner scores the raw sample; only what the environment executes is clipped.
        """
        low, high, scale, middle = self._mapping
        return (np.minimum(np.maximum(raw, low), high) * scale + middle).astype(np.float32)

    def native(self, executable: np.ndarray) -> np.ndarray:
        """As the environment's own ``step`` takes them."""
        if self.form is None:
            return executable
        if self.form.dtype != "float32":
            # A float32 may lie just outside the bounds: 0.4 is rounded up.
            executable = np.clip(executable.astype(self.form.dtype), self.low, self.high)
        return executable.reshape(-1, *self.form.shape)

    @cached_property
    def _mapping(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Bounds of what is clipped, then factor and offset: in float64, so that the ends are met exactly."""
        low, high = self.low.astype(np.float64), self.high.astype(np.float64)
        bounded = np.isfinite(low) & np.isfinite(high)
        with np.errstate(invalid="ignore"):
            scale, middle = np.where(bounded, 0.5 * (high - low), 1.0), np.where(bounded, 0.5 * (high + low), 0.0)
        return np.where(bounded, -1.0, low), np.where(bounded, 1.0, high), scale, middle


ActionSpec: TypeAlias = DiscreteActions | ContinuousActions


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """What an agent must know of an environment before it is built."""

    observation: dict[str, ArraySpec]
    action: ActionSpec
    tasks: tuple[str, ...]
    """Names of the tasks; ``Timestep.task`` indexes this tuple."""
    action_repeat: int = 1
    """Simulator frames per agent step: frames = agent steps x action repeat."""
    steps_per_second: float | None = None
    """Agent steps in a second of the simulated world, where it is known; videos are played at this speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timestep:
    """What one call of a vector environment returns, as numpy arrays that stay untouched until the next call.

    A final observation is a timestep of its own. Where the simulator resets within the same call (no final observation
    is delivered in time), a terminated episode may arrive at the next ``first`` observation with ``discount`` 0, and a
    truncated one with ``valid`` False: the trace is then cut one step earlier, at an observation whose value is known.
    """

    observation: Observation
    reward: Float[np.ndarray, " B"]
    """As the learner shall see it (clipped where the suite is told to)."""
    discount: Float[np.ndarray, " B"]
    """0 on true termination (or on a lost life where asked for), 1 otherwise, truncation included."""
    first: Bool[np.ndarray, " B"]
    """The observation starts an episode: recurrent state is reset before it is seen."""
    valid: Bool[np.ndarray, " B"]
    """The agent's action led here. False on last -> first, and on the very first timestep."""
    task: Int[np.ndarray, " B"]
    score: Float[np.ndarray, " B"]
    """The reward before any clipping; episode returns are sums of it."""
    ended: Bool[np.ndarray, " B"]
    """The episode, as scores count it, ended with this transition (terminated or truncated)."""


class VectorEnv(Protocol):
    """A fixed number of environments stepped together. Each resets itself: the call after an end ignores its action."""

    spec: EnvSpec
    num_envs: int

    def reset(self, seed: int) -> Timestep: ...

    def step(self, actions: np.ndarray) -> Timestep:
        """Take executable actions ``[B, width]`` of the spec's type and return the arrivals."""
        ...

    def render(self) -> np.ndarray:
        """An RGB picture ``[H, W, 3]`` uint8 of environment 0."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeResult:
    task: str
    episode_return: float
    length: int
    """Agent steps."""
    env_index: int = 0
    """Which environment of the vector it was played in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """Unrolls of T transitions from B environments: T + 1 timesteps, the last one being the bootstrap observation."""

    observations: Observation
    """Tensors ``[T+1, B, ...]``."""
    rewards: Float[Tensor, "T+1 B"]
    discounts: Float[Tensor, "T+1 B"]
    firsts: Bool[Tensor, "T+1 B"]
    valids: Bool[Tensor, "T+1 B"]
    tasks: Int64[Tensor, "T+1 B"]
    actions: Tensor
    """Raw actions ``[T+1, B, width]``; ``actions[t]`` led to timestep t, so ``actions[t + 1]`` was chosen at t."""
    behaviour: Float[Tensor, "T B P"]
    """Flat parameters of the distribution that each action was drawn from."""
    state: AgentState
    """Recurrent state before timestep 0."""
    versions: Int64[Tensor, " B"]
    """Version of the weights that acted, one per unroll; stays on the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """An immutable copy of an acting network's tensors."""

    version: int
    tensors: dict[str, Tensor]


def tree_map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply a function to matching leaves of records and dicts; anything else is a leaf."""
    if isinstance(tree, dict):
        return {key: tree_map(function, value, *(o[key] for o in others)) for key, value in tree.items()}  # type: ignore[return-value,index]
    if is_dataclass(tree) and not isinstance(tree, type):
        changed = {
            f.name: tree_map(function, getattr(tree, f.name), *(getattr(o, f.name) for o in others))
            for f in fields(tree)
        }
        return replace(tree, **changed)
    return function(tree, *others)


def num_bytes(trajectory: Trajectory) -> int:
    """Of all its arrays or tensors."""
    values = [getattr(trajectory, f.name) for f in fields(trajectory)]
    return sum(x.nbytes for value in values for x in (value.values() if isinstance(value, dict) else [value]))


def concatenate(trajectories: Sequence[Trajectory]) -> Trajectory:
    """Join unrolls along the batch axis. A single one is returned as it is."""
    if len(trajectories) == 1:
        return trajectories[0]
    return _map_with_batch_axis(lambda axis, *parts: torch.cat(parts, dim=axis), *trajectories)


def split(trajectory: Trajectory, parts: int) -> list[Trajectory]:
    """Divide whole unrolls into equal minibatches, as views."""
    if parts == 1:
        return [trajectory]
    size = trajectory.rewards.shape[1] // parts
    return [
        _map_with_batch_axis(lambda axis, x, start=start: x.narrow(axis, start, size), trajectory)
        for start in range(0, parts * size, size)
    ]


def _map_with_batch_axis(function: Callable[..., Tensor], *trajectories: Trajectory) -> Trajectory:
    """Apply ``function(axis, *tensors)``: the batch axis is 1, but 0 where there is no time axis."""
    without_time = ("state", "versions")
    return Trajectory(
        **{
            f.name: tree_map(
                partial(function, 0 if f.name in without_time else 1), *(getattr(t, f.name) for t in trajectories)
            )
            for f in fields(Trajectory)
        }
    )
