"""Tiny deterministic Gymnasium environments whose every observation and reward is known beforehand.

Importing this module registers them, so ``probes:Counting-v0`` works wherever ``tests`` is on the path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv


class Counting(gymnasium.Env):
    """Observes its number of steps in the episode; step k earns k. Ends after so many steps, in either way or both."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = spaces.Box(0.0, 1000.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(
        self, terminate_after: int | None = 3, truncate_after: int | None = None, render_mode: str | None = None
    ) -> None:
        self.terminate_after, self.truncate_after, self.render_mode = terminate_after, truncate_after, render_mode
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        terminated, truncated = self.steps == self.terminate_after, self.steps == self.truncate_after
        return self._observe(), float(self.steps), terminated, truncated, {}

    def render(self) -> np.ndarray:
        return np.full((4, 5, 3), self.steps, np.uint8)

    def _observe(self) -> np.ndarray:
        return np.array([self.steps], np.float32)


def make_counting() -> gymnasium.Env:
    """A factory as a user may write it: no arguments, nothing registered."""
    return Counting(terminate_after=4)


def make_nothing() -> str:
    return "not an environment"


def counting_vector(
    mode: AutoresetMode, ends: Sequence[tuple[int | None, int | None]], asynchronous: bool = False
) -> VectorEnv:
    """Counting environments with an end each (terminate after, truncate after), resetting in the given way."""
    creators = [lambda end=end: Counting(*end) for end in ends]
    return (AsyncVectorEnv if asynchronous else SyncVectorEnv)(creators, autoreset_mode=mode)


class CountingVector(SyncVectorEnv):
    """A vectorised implementation that resets within the step that ends an episode."""

    def __init__(self, num_envs: int, max_episode_steps: int | None = None) -> None:
        super().__init__([lambda: Counting(3, max_episode_steps)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


class SilentVector(CountingVector):
    """A vectorised implementation that does not say how it resets."""

    def __init__(self, num_envs: int, max_episode_steps: int | None = None) -> None:
        super().__init__(num_envs, max_episode_steps)
        del self.metadata["autoreset_mode"]


class ForgetfulVector(SyncVectorEnv):
    """Resets only those that it is told to, in its one array of observations, and spoils the rows of all others."""

    def __init__(self, ends: Sequence[tuple[int | None, int | None]]) -> None:
        creators = [lambda end=end: Counting(*end) for end in ends]
        super().__init__(creators, copy=False, autoreset_mode=AutoresetMode.DISABLED)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        others = ~options["reset_mask"] if options else []
        observation, info = super().reset(seed=seed, options=options)
        observation[others] = -1.0
        return observation, info


class Noise(Counting):
    """Observes a random number in place of the count, so that seeds show."""

    def _observe(self) -> np.ndarray:
        return self.np_random.random(1).astype(np.float32)


class Observing(Counting):
    """Observes a sample of a given space, always the same."""

    def __init__(self, space: spaces.Space, sample: Any) -> None:
        super().__init__()
        self.observation_space, self._sample = space, sample

    def _observe(self) -> Any:
        return self._sample


class Nested(Counting):
    """Observes one of everything: an image, choices, bits, numbers and words, in dicts and tuples."""

    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (6, 8, 3), np.uint8),
            "body": spaces.Dict({"gear": spaces.Discrete(4, start=2), "touch": spaces.MultiBinary(3)}),
            "hands": spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.Box(-9.0, 9.0, (2, 2), np.float64))),
            "mission": spaces.Text(40),
        }
    )

    def _observe(self) -> dict[str, Any]:  # type: ignore[override]
        return {
            "camera": np.full((6, 8, 3), 7 * self.steps, np.uint8),
            "body": {"gear": 2 + self.steps, "touch": np.array([1, 0, 1], np.int8)},
            "hands": (np.array([1, 2]), np.array([[0.1, -0.2], [0.3, self.steps]])),
            "mission": "Go there" if self.steps else "Wait",
        }


class Recording(Counting):
    """Keeps every action that it executes; ``executed`` is shared by all instances of one list."""

    def __init__(self, action_space: spaces.Space, executed: list[Any]) -> None:
        super().__init__()
        self.action_space, self.executed = action_space, executed

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        self.executed.append(action)
        return super().step(action)


class Undrawable(Counting):
    """Promises pictures and gives none."""

    def render(self) -> None:  # type: ignore[override]
        return None


def _needs_package() -> gymnasium.Env:
    raise ModuleNotFoundError("No module named 'simulator'", name="simulator")


def _needs_extra() -> gymnasium.Env:
    raise gymnasium.error.DependencyNotInstalled('simulator is missing,\nrun `pip install "gymnasium[simulator]"`')


for _name, _options in {
    "Counting-v0": {"entry_point": Counting},
    "Limited-v0": {"entry_point": Counting, "kwargs": {"terminate_after": None}, "max_episode_steps": 5},
    "Noise-v0": {"entry_point": Noise},
    "Nested-v0": {"entry_point": Nested},
    "Undrawable-v0": {"entry_point": Undrawable},
    "Vectorised-v0": {"entry_point": Counting, "vector_entry_point": CountingVector},
    "Silent-v0": {"entry_point": Counting, "vector_entry_point": SilentVector},
    "OnlySilent-v0": {"vector_entry_point": SilentVector},
    "NeedsPackage-v0": {"entry_point": _needs_package},
    "NeedsExtra-v0": {"entry_point": _needs_extra},
}.items():
    if _name not in gymnasium.registry:
        gymnasium.register(_name, **_options)
