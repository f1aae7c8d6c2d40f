"""What the scripts of all libraries share: the workloads, EnvPool, and the meter."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

WARMUP_UNROLLS = 5
"""At least, so that whoever simulates ahead of the learner has filled the queue between them."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One of ``vmpo.bench``'s, in words that the peers' environments know; `ours.py` checks that they agree."""

    task: str
    """EnvPool's name."""
    num_envs: int = 64
    unroll_length: int = 40
    hidden: tuple[int, ...] = (512, 256)
    heads: tuple[int, ...] = (256,)
    """Hidden units of the policy's and of the value's head."""
    activation: str = "relu"
    pixels: str = ""
    """The encoder of images: ``nature``, or ``resnet`` with an LSTM of 256 units behind it."""

    @property
    def batch_size(self) -> int:
        return self.num_envs * self.unroll_length


_BREAKOUT: dict[str, Any] = dict(task="Breakout-v5", num_envs=32, unroll_length=20, hidden=(), heads=())
WORKLOADS = {
    "cartpole": Workload(task="CartPole-v1", unroll_length=32, hidden=(64, 64), heads=(), activation="tanh"),
    "halfcheetah": Workload(task="HalfCheetah-v5"),
    "humanoid": Workload(task="Humanoid-v5"),
    "breakout": Workload(**_BREAKOUT, pixels="nature"),
    "breakout-resnet": Workload(**_BREAKOUT, pixels="resnet"),
}


class Arguments(NamedTuple):
    workload: str
    variant: str
    warmup: float
    """Seconds before the window."""
    seconds: float
    """Of the window."""


def arguments() -> Arguments:
    workload, variant, warmup, seconds = sys.argv[1:]
    return Arguments(workload, variant, float(warmup), float(seconds))


class Meter:
    """Measures one window after a warm-up and prints its result.

    It lasts from the end of one unroll to the end of another, so that it holds an update for each of its unrolls.
    """

    def __init__(self, batch_size: int, warmup: float, seconds: float) -> None:
        self._batch_size, self._warmup, self._seconds = batch_size, warmup, seconds
        self._steps, self._first = 0, time.perf_counter()
        self._begin: tuple[float, int] | None = None

    def count(self, steps: int) -> None:
        """So many agent steps were taken. Ends the process group, made by the driver, when the window is over."""
        self._steps += steps
        if self._steps % self._batch_size == 0 and self.mark(self._steps):
            os.killpg(0, signal.SIGKILL)  # The libraries' own ways to stop take long.

    def mark(self, steps: int) -> bool:
        """Whether the window is over, at the end of an unroll, so many agent steps after the start."""
        now = time.perf_counter()
        if self._begin is None:
            if now - self._first >= self._warmup and steps >= WARMUP_UNROLLS * self._batch_size:
                self._begin = now, steps
            return False
        elapsed, taken = now - self._begin[0], steps - self._begin[1]
        if elapsed < self._seconds:
            return False
        print(json.dumps({"agent_steps": taken, "seconds": elapsed}), flush=True)
        return True


class Step(NamedTuple):
    observations: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    last: dict[int, np.ndarray]
    """The last observations of the environments that ended, by index; these have begun anew."""


class Pool:
    """EnvPool under the protocol of our own suites, with float32 observations; its steps are counted."""

    def __init__(self, workload: Workload, meter: Meter, num_envs: int, crowded: bool = False) -> None:
        """``crowded`` has two threads for each core, as our own simulator-bound workloads do."""
        import envpool
        from gymnasium.spaces import Box, Discrete

        protocol = {"noop_max": 30, "use_fire_reset": False, "reward_clip": True} if workload.pixels else {}
        threads = 2 * (os.cpu_count() or 1) if crowded else 0
        self._envs = envpool.make_gymnasium(workload.task, num_envs=num_envs, num_threads=threads, **protocol)
        self._meter, self.num_envs = meter, num_envs
        low, high, self._dtype = (0, 255, np.uint8) if workload.pixels else (-np.inf, np.inf, np.float32)
        self.observation_space = Box(low, high, self._envs.observation_space.shape, self._dtype)
        action = self._envs.action_space
        self._limits = None if hasattr(action, "n") else (action.low, action.high)
        self.action_space = Box(*self._limits, dtype=np.float32) if self._limits else Discrete(int(action.n))

    def reset(self) -> np.ndarray:
        return self._envs.reset()[0].astype(self._dtype, copy=False)

    def step(self, actions: np.ndarray) -> Step:
        actions = np.clip(actions, *self._limits) if self._limits else actions
        observations, rewards, terminated, truncated, _ = self._envs.step(actions)
        observations = observations.astype(self._dtype, copy=False)
        ended = np.flatnonzero(terminated | truncated)
        last = dict(zip(ended.tolist(), observations[ended], strict=True))
        if last:
            fresh, info = self._envs.reset(ended)
            observations[info["env_id"]] = fresh
        self._meter.count(self.num_envs)
        return Step(observations, rewards.astype(np.float32, copy=False), terminated, truncated, last)
