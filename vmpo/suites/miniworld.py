"""A lab that runs here: five own first-person levels on MiniWorld, behind the interface of ``deepmind_lab``.

Pixels, instructions, actions and repeat are those of DMLab, so that the same adapter (``vmpo.suites.lab``) and the same
agents serve both. ``env.id`` names levels, separated by commas, or ``all``. ``:blank`` behind a name silences its
instruction, for the experiment that asks what instructions are worth: ``choose_colour:blank``, ``all:blank``. The task
keeps its name, so that curves compare.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vmpo.config import EnvConfig
from vmpo.errors import unknown
from vmpo.suites import lab
from vmpo.suites.miniworld_drawing import Painter, check_installed
from vmpo.suites.miniworld_game import Game
from vmpo.suites.miniworld_levels import LEVELS
from vmpo.suites.workers import WorkerEnv

ALL = "all"
"""All levels together."""

BLANK = "blank"

OBSERVATIONS = ("RGB_INTERLEAVED", "INSTR")

_LOW = np.array([-512, -512, -1, -1, 0, 0, 0])
_HIGH = np.array([512, 512, 1, 1, 1, 1, 1])


def make(config: EnvConfig, num_envs: int, seed: int, render: bool = False) -> WorkerEnv:
    """Build the levels that ``config.id`` names, in worker processes."""
    check_installed()
    return lab.make_labs(
        lab="vmpo.suites.miniworld:Lab",
        levels=level_names(config.id),
        config=config,
        num_envs=num_envs,
        render=render,
    )


def task_ids(config: EnvConfig) -> tuple[str, ...]:
    return tuple(level_names(config.id))


def level_names(text: str) -> dict[str, str]:
    """The level that each task plays, by the task's name."""
    levels: dict[str, str] = {}
    for name in text.split(","):
        task, colon, suffix = name.strip().partition(":")
        if (task not in LEVELS and task != ALL) or (colon and suffix != BLANK):
            raise unknown("miniworld level", name.strip(), [ALL, *LEVELS, *(f"{level}:{BLANK}" for level in LEVELS)])
        levels |= {level: f"{level}{colon}{suffix}" for level in (LEVELS if task == ALL else [task])}
    return levels


class Lab:
    """A level by the rules of ``deepmind_lab.Lab``; a level's name may end in ``:blank``."""

    def __init__(
        self,
        level: str,
        observations: list[str],
        config: dict[str, str] | None = None,
        renderer: str = "software",
        level_cache: Any = None,
    ) -> None:
        """``config`` holds strings: ``width``, ``height`` and ``mixerSeed`` are used. There is nothing to cache."""
        config = {} if config is None else config
        if type(level) is not str or type(observations) is not list or type(config) is not dict:
            raise TypeError("level must be a str, observations a list, config a dict")
        for key, value in config.items():
            if type(key) is not str or type(value) is not str:
                raise TypeError(f"config must map strings to strings, not {key!r} to {value!r}")
        for name in observations:
            if name not in OBSERVATIONS:
                raise ValueError(f"unknown observation {name!r}; known: {', '.join(OBSERVATIONS)}")
        if renderer not in ("software", "hardware"):
            raise RuntimeError(f'the renderer must be "hardware" or "software", not {renderer!r}')
        [(task, full_name)] = level_names(level).items()
        self._blank = full_name.endswith(f":{BLANK}")
        self._observations = observations
        self._mixer_seed = int(config.get("mixerSeed", "0"))
        self.game = Game(LEVELS[task])
        """The simulator's state, for scripted players and tests."""
        self._painter = Painter(LEVELS[task], int(config.get("height", "240")), int(config.get("width", "320")))
        self._closed = False

    def reset(self, episode: int = -1, seed: int | None = None) -> bool:
        """Start an episode; the same seed gives the same one. Episodes have no numbers here."""
        if self._closed:
            raise RuntimeError("the lab is closed")
        if seed is not None and type(seed) is not int:
            raise ValueError(f"seed must be an int, not {seed!r}")
        self.game.reset(np.random.default_rng(None if seed is None else [seed, self._mixer_seed]))
        return True

    def is_running(self) -> bool:
        return not self._closed and self.game.running

    def step(self, action: np.ndarray, num_steps: int = 1) -> float:
        """Play so many frames of one action, or what is left of the episode, and return the sum of the rewards."""
        if not self.is_running():
            raise RuntimeError("the episode is over or has not begun: reset comes before step")
        if type(action) is not np.ndarray or type(num_steps) is not int or num_steps < 1:
            raise TypeError("action must be an array and num_steps a positive int")
        if action.shape != (len(_LOW),) or action.dtype != np.intc:
            raise ValueError(f"action must be 7 numbers of type intc, not {action.shape} of {action.dtype}")
        if (action < _LOW).any() or (action > _HIGH).any():
            raise ValueError(f"action {action.tolist()} leaves the range {_LOW.tolist()} to {_HIGH.tolist()}")
        native = action.tolist()
        reward = 0.0
        for _ in range(num_steps):
            reward += self.game.frame(native)
            if not self.game.running:
                break
        return reward

    def observations(self) -> dict[str, Any]:
        """What was asked for of the picture ``[H, W, 3]`` and the instruction, now; raises once the episode is over."""
        if not self.is_running():
            raise RuntimeError("the episode is over or has not begun: there is nothing to observe")
        seen: dict[str, Any] = {}
        for name in self._observations:
            if name == "INSTR":
                seen[name] = "" if self._blank else self.game.trial.instruction
            else:
                seen[name] = self._painter.draw(self.game)
        return seen

    def close(self) -> bool:
        was_open, self._closed = not self._closed, True
        if was_open:
            self._painter.close()
        return was_open
