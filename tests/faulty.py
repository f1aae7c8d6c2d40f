"""Gymnasium environments that go wrong: at their tenth step, a CartPole at a set rate, or before anything worked.

And an encoder and a loss that do.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import TimeLimit


class Sound(gymnasium.Env):
    """Goes wrong, in its subclasses, at the tenth step: once, where FAULTY_ONCE names a file, or always."""

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


class RateCartPole(CartPoleEnv):
    """CartPole of which one step in FAULTY_EVERY, counted over all environments, goes wrong, in each way in turn.

    The files FAULTY_COUNT and FAULTY_LOG outlive the processes: steps so far, and a line for each fault.
    """

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        observation, reward, terminated, truncated, info = super().step(action)
        steps = self._count()
        if steps % int(os.environ["FAULTY_EVERY"]):
            return observation, reward, terminated, truncated, info
        fault = FAULTS[(steps // int(os.environ["FAULTY_EVERY"])) % len(FAULTS)]
        with open(os.environ["FAULTY_LOG"], "a") as log:
            log.write(fault.__name__ + "\n")
        observation, reward = fault().go_wrong(observation)
        return observation, reward, terminated, truncated, info

    def _count(self) -> int:
        with open(os.environ["FAULTY_COUNT"], "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            steps = int(file.read()) + 1
            file.seek(0)
            file.write(str(steps))
        return steps


FAULTS = (Raises, Dies, Hangs, NotANumber, WrongShape)


def rate_cartpole() -> gymnasium.Env:
    return TimeLimit(RateCartPole(), 500)


class Crashes(Sound):
    """Takes its process with it when it starts."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        os.kill(os.getpid(), signal.SIGKILL)
        return super().reset(seed=seed)


class CannotStart(Sound):
    def __init__(self) -> None:
        raise RuntimeError("the motor broke")


class Stuck(Sound):
    def __init__(self) -> None:
        time.sleep(3600)


class CrashesWhenDrawn(Sound):
    def render(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class CannotReset(Sound):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        raise FileNotFoundError("no level")


class OldReset(Sound):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros(5, np.float32)


class NoSeed(Sound):
    def reset(self) -> tuple[np.ndarray, dict]:
        return np.zeros(5, np.float32), {}


class Sized(Sound):
    def __init__(self, size: int) -> None:
        self.steps = size


class NoActions(gymnasium.Env):
    observation_space = Sound.observation_space


class CannotStep(Sound):
    def step(self, action: int) -> Any:
        return {}["missing"]


class FourValues(Sound):
    def step(self, action: int) -> Any:
        return np.zeros(5, np.float32), 1.0, False, {}


class AlwaysWrongShape(Sound):
    def step(self, action: int) -> Any:
        return np.zeros((2, 2), np.float32), 1.0, False, False, {}


class NeverANumber(Sound):
    def step(self, action: int) -> Any:
        return np.zeros(5, np.float32), float("nan"), False, False, {}


class Undrawn(CartPoleEnv):
    render = gymnasium.Env.render


class BrokenEncoder:
    def __init__(self, observation: Any, config: Any) -> None:
        raise RuntimeError("no layers left")


def broken_loss(samples: Any, multipliers: Any, config: Any, share: Any) -> Any:
    return 1 / 0
