"""A stand-in for ``deepmind_lab`` that is as strict as the real one, and tells in its pixels what was done to it.

Its rules are those of python/dmlab_module.c and docs/users/python_api.md of google-deepmind/lab. Where the real lab
would take anything (no seed, a default size), it refuses, because the adapter must never rely on that. It draws into
the same array again and again, which the real one does not, but another lab might.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

EPISODE_FRAMES = 30
"""Frame f gives the reward f, so that a whole episode gives 465 however its frames are grouped."""

OBSERVATIONS = ("RGB_INTERLEAVED", "RGB", "INSTR")

LOW = np.array([-512, -512, -1, -1, 0, 0, 0])
HIGH = np.array([512, 512, 1, 1, 1, 1, 1])

COLOURS = ("red", "green", "blue", "yellow")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a picture of the stand-in tells."""

    action: list[int]
    frame: int
    seed: int
    mixed_seed: int
    compiled: int
    """Levels that this lab has compiled, and in the next field those that it took from the cache."""
    fetched: int


def read(pixels: np.ndarray) -> Seen:
    numbers = pixels[:, :8, 0].astype(np.int64)
    return Seen(
        action=(numbers[0, :7] - 128).tolist(),
        frame=int(numbers[1, 0]),
        seed=_from_bytes(pixels[2, :8, 0]),
        mixed_seed=_from_bytes(pixels[3, :8, 0]),
        compiled=int(numbers[4, 0]),
        fetched=int(numbers[4, 1]),
    )


def instruction(level: str, mixed_seed: int) -> str:
    """Names the level; one level has a very long one, another none."""
    if level.endswith("language_execute_random_task"):
        return " ".join(f"word{i}" for i in range(100))
    if level.endswith("rooms_watermaze"):
        return ""
    return f"Find the {COLOURS[mixed_seed % 4]} box of {level}"


class Lab:
    """The public face of ``deepmind_lab.Lab``, without ``fps``, which only its documentation has."""

    def __init__(
        self,
        level: str,
        observations: list[str],
        config: dict[str, str] | None = None,
        renderer: str = "software",
        level_cache: Any = None,
    ) -> None:
        if type(observations) is not list or type(config) is not dict or type(level) is not str:
            raise TypeError("level must be a str, observations a list, config a dict")
        for name in observations:
            if name not in OBSERVATIONS:
                raise ValueError(f"Unknown observation '{name}'.")
        for key, value in config.items():
            if type(key) is not str or type(value) is not str:
                raise TypeError(f"config must map strings to strings, not {key!r} to {value!r}")
        if renderer not in ("software", "hardware"):
            raise RuntimeError(f'Failed to set renderer must be "hardware" or "software" actual "{renderer}"!')
        if level_cache is not None and not (hasattr(level_cache, "fetch") and hasattr(level_cache, "write")):
            raise AttributeError("a level cache has fetch and write")
        if not level.startswith("contributed/dmlab30/"):
            raise RuntimeError(f"Invalid levelName flag '{level}'")
        if level.endswith("_test") and config.get("allowHoldOutLevels") != "true":
            raise RuntimeError("Failed to init environment - hold-out levels are not allowed")
        self._level, self._observations, self._cache = level, observations, level_cache
        self._shape = (int(config["height"]), int(config["width"]), 3)
        self._mixer_seed = int(config.get("mixerSeed", "0"))
        self._status = "uninitialised"
        self._seed = self._frame = self._compiled = self._fetched = 0
        self._action = np.zeros(7, np.intc)
        self._pixels = np.zeros(self._shape, np.uint8)

    def reset(self, episode: int = -1, seed: Any = None) -> bool:
        if type(seed) is not int or not 0 <= seed < 2**31:
            raise ValueError(f"'seed' must be int, was {seed!r}")
        if self._status == "closed":
            raise RuntimeError("Failed to start environment")
        self._seed, self._frame, self._status = seed, 0, "running"
        self._action = np.zeros(7, np.intc)
        self._load()
        return True

    def _load(self) -> None:
        """Find the map in the cache or compile it: one map per seed in the explore levels, one per level elsewhere."""
        key = f"../{self._level}/map {self._mixed_seed if 'explore' in self._level else 0}?"
        whole = f"compiled {key}".encode() * 1000
        with tempfile.TemporaryDirectory() as folder:
            pk3 = Path(folder) / "level.pk3"
            if self._cache is not None and self._cache.fetch(key, str(pk3)):
                if pk3.read_bytes() != whole:
                    raise RuntimeError("Failed to start environment - damaged pk3")
                self._fetched += 1
                return
            pk3.write_bytes(whole)
            self._compiled += 1
            if self._cache is not None:
                self._cache.write(key, str(pk3))

    @property
    def _mixed_seed(self) -> int:
        return self._seed | self._mixer_seed << 32

    def is_running(self) -> bool:
        return self._status == "running"

    def step(self, action: np.ndarray, num_steps: int = 1) -> float:
        if type(action) is not np.ndarray or type(num_steps) is not int or num_steps < 1:
            raise TypeError("action must be an array, num_steps a positive int")
        if not self.is_running():
            raise RuntimeError("Environment in wrong status to advance.")
        if action.shape != (7,):
            raise ValueError("action must have shape (7)")
        if action.dtype != np.intc:
            raise ValueError("action must have dtype np.intc")
        if not action.flags.c_contiguous or (action < LOW).any() or (action > HIGH).any():
            raise ValueError("the real lab would read beyond the array or the bounds")
        self._action = action.copy()
        self._pixels.fill(0)
        reward = 0.0
        for _ in range(num_steps):
            self._frame += 1
            reward += self._frame
            if self._frame == EPISODE_FRAMES:
                self._status = "ended"
                break
        return reward

    def observations(self) -> dict[str, Any]:
        if not self.is_running():
            raise RuntimeError("Environment in wrong status for call to observations()")
        pixels = self._pixels
        pixels[:] = np.random.default_rng(self._mixed_seed).integers(256, size=self._shape, dtype=np.uint8)
        pixels[0, :7, 0] = self._action + 128
        pixels[1, 0, 0] = self._frame
        pixels[2, :8, 0] = _to_bytes(self._seed)
        pixels[3, :8, 0] = _to_bytes(self._mixed_seed)
        pixels[4, :2, 0] = self._compiled, self._fetched
        everything = {
            "RGB_INTERLEAVED": pixels,
            "RGB": pixels.transpose(2, 0, 1),
            "INSTR": instruction(self._level, self._mixed_seed),
        }
        return {name: everything[name] for name in self._observations}

    def close(self) -> bool:
        was_open, self._status = self._status != "closed", "closed"
        return was_open


def _to_bytes(number: int) -> np.ndarray:
    return np.frombuffer(number.to_bytes(8, "little"), np.uint8)


def _from_bytes(codes: np.ndarray) -> int:
    return int.from_bytes(codes.tobytes(), "little")
