"""Gymnasium environments that go wrong at their tenth step: once, where FAULTY_ONCE names a file, or always."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Sound(gymnasium.Env):
    observation_space = spaces.Box(-10.0, 10.0, (5,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self) -> None:
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.zeros(5, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        observation, reward = self.np_random.random(5).astype(np.float32), 1.0
        if self.steps == 10 and self._first_time():
            observation, reward = self.go_wrong(observation)
        return observation, reward, self.steps % 7 == 0, False, {}

    def go_wrong(self, observation: np.ndarray) -> tuple[np.ndarray, float]:
        return observation, 1.0

    def _first_time(self) -> bool:
        once = os.environ.get("FAULTY_ONCE")
        if once is None:
            return True
        try:
            Path(once).touch(exist_ok=False)
            return True
        except FileExistsError:
            return False


class Raises(Sound):
    def go_wrong(self, observation: np.ndarray) -> tuple[np.ndarray, float]:
        raise RuntimeError("the motor broke")


class Dies(Sound):
    def go_wrong(self, observation: np.ndarray) -> tuple[np.ndarray, float]:
        os.kill(os.getpid(), signal.SIGKILL)
        return observation, 1.0


class Hangs(Sound):
    def go_wrong(self, observation: np.ndarray) -> tuple[np.ndarray, float]:
        time.sleep(3600)
        return observation, 1.0


class NotANumber(Sound):
    def go_wrong(self, observation: np.ndarray) -> tuple[np.ndarray, float]:
        return observation, float("nan")


class WrongShape(Sound):
    def go_wrong(self, observation: np.ndarray) -> tuple[np.ndarray, float]:
        return np.zeros((2, 2), np.float32), 1.0
