"""What the adapters share: a simulator's flags turned into the stream of arrivals, and one seed per environment."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Shaped

from vmpo.records import Observation, Timestep

Flags = Bool[np.ndarray, " B"]
Numbers = Shaped[np.ndarray, " B"]
_ZERO = np.float32(0.0)


def env_seeds(seed: int, num_envs: int) -> list[int]:
    """Seeds below 2**31, one per environment.

    Simulators that are given one number seed their environments by ``seed + i``: two actors with neighbouring seeds
    would then play almost the same episodes. These are spread instead.
    """
    return [int(state >> 1) for state in np.random.SeedSequence(seed).generate_state(num_envs)]


def first_limits(num_envs: int, limit: int) -> Shaped[np.ndarray, " B"]:
    """Steps after which each environment's first episode is cut so that all are spread over the limit; 0: not cut.

    Environments that start together and always play to the limit would otherwise show the learner one phase of the
    episode at a time. Neighbours are far apart (steps of the golden ratio), because they share a minibatch.
    """
    order = np.argsort(np.arange(num_envs) * 0.618034 % 1.0)
    limits = np.empty(num_envs, np.int64)
    limits[order] = np.arange(num_envs) * limit // num_envs
    return limits


def opening(observation: Observation, num_envs: int, task: Numbers | None = None) -> Timestep:
    """The arrival at the first observations after a reset of all environments: no action led here."""
    return Timestep(
        observation=observation,
        reward=np.zeros(num_envs, np.float32),
        discount=np.ones(num_envs, np.float32),
        first=np.ones(num_envs, np.bool_),
        valid=np.zeros(num_envs, np.bool_),
        task=np.zeros(num_envs, np.int64) if task is None else task,
        score=np.zeros(num_envs, np.float32),
        ended=np.zeros(num_envs, np.bool_),
    )


def next_step(
    observation: Observation,
    score: Numbers,
    terminated: Flags,
    truncated: Flags,
    resetting: Flags,
    task: Numbers | None = None,
) -> Timestep:
    """The arrival where an end is followed by a call that resets: the final observation is a timestep of its own.

    ``resetting`` marks the environments whose last arrival ended an episode. What the simulator reports of them is
    ignored: it belongs to no transition, and some repeat the last reward.
    """
    valid = ~resetting
    terminated = terminated & valid
    score = np.where(valid, score, _ZERO).astype(np.float32, copy=False)
    return Timestep(
        observation=observation,
        reward=score,
        discount=(~terminated).astype(np.float32),
        first=resetting,
        valid=valid,
        task=np.zeros(len(valid), np.int64) if task is None else task,
        score=score,
        ended=terminated | (truncated & valid),
    )


def same_step(observation: Observation, score: Numbers, terminated: Flags, truncated: Flags) -> Timestep:
    """The arrival where the call that ends an episode also resets it, so that the final observation is not delivered.

    A terminated episode needs no value of its final observation: its last transition arrives at the next episode's
    first observation with discount 0. A truncated one would need it, so its last transition is invalid and the return
    is cut one step earlier; the score still counts it. Both at once is a termination.
    """
    ended = terminated | truncated
    lost = truncated & ~terminated
    score = score.astype(np.float32)
    return Timestep(
        observation=observation,
        reward=np.where(lost, _ZERO, score),
        discount=(~terminated).astype(np.float32),
        first=ended,
        valid=~lost,
        task=np.zeros(len(ended), np.int64),
        score=score,
        ended=ended,
    )
