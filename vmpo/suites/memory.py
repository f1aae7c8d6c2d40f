"""A memory chain: a bit is shown at the first step of an episode, and asked for at its last one.

After the task of bsuite (Osband et al. 2020), all environments at once in NumPy. The id is the number of steps from the
bit to the question: ``memory:30``.
"""

from __future__ import annotations

import numpy as np

from vmpo.config import EnvConfig
from vmpo.errors import UserError
from vmpo.records import ArraySpec, DiscreteActions, EnvSpec, Observation, Timestep
from vmpo.suites import arrivals


class MemoryChain:
    """Answering with the bit pays 1, with the other one -1; whatever is done before the question is ignored."""

    def __init__(self, name: str, length: int, num_envs: int, stagger: bool) -> None:
        self.num_envs, self._length, self._stagger = num_envs, length, stagger
        self.spec = EnvSpec(
            observation={"observation": ArraySpec(kind="vector", shape=(3,), dtype=np.dtype(np.float32))},
            action=DiscreteActions(sizes=(2,)),
            tasks=(name,),
        )

    def reset(self, seed: int) -> Timestep:
        """Start all episodes anew; the same seed gives the same stream."""
        self._random = np.random.default_rng(seed)
        self._time = np.zeros(self.num_envs, np.int64)
        self._limits = arrivals.first_limits(self.num_envs, self._length if self._stagger else 0)
        self._bits = self._random.integers(2, size=self.num_envs)
        self._resetting = np.zeros(self.num_envs, np.bool_)
        return arrivals.opening(self._observe(), self.num_envs)

    def step(self, actions: np.ndarray) -> Timestep:
        answered = ~self._resetting & (self._time == self._length)
        score = np.where(answered, np.where(actions[:, 0] == self._bits, 1.0, -1.0), 0.0)
        self._time = np.where(self._resetting, 0, self._time + 1)
        self._bits = np.where(self._resetting, self._random.integers(2, size=self.num_envs), self._bits)
        self._limits[self._resetting] = 0
        cut = (self._limits > 0) & (self._time == self._limits)
        timestep = arrivals.next_step(self._observe(), score, answered, cut, resetting=self._resetting)
        self._resetting = timestep.ended
        return timestep

    def _observe(self) -> Observation:
        """Time left, whether the bit is asked for, and the bit itself, as -1 or 1, at the first step alone."""
        left, asked = 1.0 - self._time / self._length, self._time == self._length
        shown = np.where(self._time == 0, 2.0 * self._bits - 1.0, 0.0)
        return {"observation": np.stack([left, asked, shown], axis=1).astype(np.float32)}

    def render(self) -> np.ndarray:
        raise UserError("a memory chain has no picture")

    def close(self) -> None:
        """Nothing is held."""


def make(config: EnvConfig, num_envs: int, seed: int, render: bool = False) -> MemoryChain:
    if not config.id.isdigit() or int(config.id) < 1:
        raise UserError(f"env.id={config.id!r} must be the length of a memory chain, such as 30")
    if render:
        raise UserError("a memory chain has no picture")
    if config.max_episode_steps is not None:
        raise UserError("env.max_episode_steps has no use for a memory chain, whose length is its id")
    return MemoryChain(f"memory-{config.id}", int(config.id), num_envs, config.stagger)
