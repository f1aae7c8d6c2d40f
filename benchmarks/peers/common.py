"""What the scripts of all libraries share: the workloads, the window that is asked for, EnvPool, and the meter."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# By its path: other libraries' environments have none of what vmpo needs, and its settings of threads are our own.
_spec: Any = importlib.util.spec_from_file_location("workloads", Path(__file__).parents[2] / "vmpo" / "workloads.py")
sys.modules["workloads"] = _workloads = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_workloads)
WORKLOADS = {name: each for name, each in _workloads.WORKLOADS.items() if name != "humanoid-run"}

WARMUP_UNROLLS = 5
"""At least, so that whoever simulates ahead of the learner has filled the queue between them."""


class Task(NamedTuple):
    """What the driver asks for on the command line."""

    workload: Any
    variant: str
    warmup: float
    seconds: float

    @classmethod
    def asked(cls) -> Task:
        workload, variant, warmup, seconds = sys.argv[1:]
        return cls(WORKLOADS[workload], variant, float(warmup), float(seconds))


class Meter:
    """Measures one window, from the end of an unroll to that of another: it has an update for each of its unrolls."""

    def __init__(self, task: Task) -> None:
        self._task, self._steps, self._first = task, 0, time.perf_counter()
        self._begin: tuple[float, int] | None = None

    def count(self, steps: int) -> None:
        """So many agent steps were taken. Ends the process group, made by the driver, when the window is over."""
        self._steps += steps
        if self._steps % self._task.workload.batch_size == 0 and self.mark(self._steps):
            os.killpg(0, signal.SIGKILL)  # The libraries' own ways to stop take long.

    def mark(self, steps: int) -> bool:
        """Whether the window is over, at the end of an unroll, so many agent steps after the start; then print it."""
        now, enough = time.perf_counter(), WARMUP_UNROLLS * self._task.workload.batch_size
        if self._begin is None:
            self._begin = (now, steps) if now - self._first >= self._task.warmup and steps >= enough else None
            return False
        elapsed, taken = now - self._begin[0], steps - self._begin[1]
        if elapsed >= self._task.seconds:
            print(json.dumps({"agent_steps": taken, "seconds": elapsed}), flush=True)
        return elapsed >= self._task.seconds


class Step(NamedTuple):
    observations: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    last: dict[int, np.ndarray]
    """The last observations of the environments that ended, by index; these have begun anew."""


class Pool:
    """EnvPool under the protocol of our own suites, with float32 observations; its steps are counted."""

    def __init__(self, task: Task, meter: Meter | None, num_envs: int) -> None:
        """The variant ``crowded`` has two threads for each core, as our own simulator-bound workloads do."""
        import envpool
        from gymnasium.spaces import Box, Discrete

        protocol = {"noop_max": 30, "use_fire_reset": False, "reward_clip": True} if task.workload.pixels else {}
        threads = 2 * (os.cpu_count() or 1) if "crowded" in task.variant else 0
        self._envs = envpool.make_gymnasium(task.workload.task, num_envs=num_envs, num_threads=threads, **protocol)
        self._meter, self.num_envs = meter, num_envs
        low, high, self._dtype = (0, 255, np.uint8) if task.workload.pixels else (-np.inf, np.inf, np.float32)
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
        if self._meter:
            self._meter.count(self.num_envs)
        return Step(observations, rewards.astype(np.float32, copy=False), terminated, truncated, last)
