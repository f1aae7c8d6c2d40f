"""Catch at five reward scales, the test of per-task value normalisation.

    benchmarks/catch.sh runs/catch

A ball falls from a random column of a 10 x 5 board onto a paddle that moves left, stays or moves right. The reward
comes at the bottom: plus the scale for a catch, minus it for a miss. One agent plays all five and is not told which.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np

ROWS, COLUMNS = 10, 5


class Catch(gymnasium.Env):
    scale: ClassVar[float] = 1.0

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (ROWS * COLUMNS,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)
        self._ball = self._paddle = self._row = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._row, self._ball, self._paddle = 0, int(self.np_random.integers(COLUMNS)), COLUMNS // 2
        return self._board(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._paddle = int(np.clip(self._paddle + int(action) - 1, 0, COLUMNS - 1))
        self._row += 1
        landed = self._row == ROWS - 1
        reward = 0.0 if not landed else self.scale if self._ball == self._paddle else -self.scale
        return self._board(), reward, landed, False, {}

    def _board(self) -> np.ndarray:
        board = np.zeros((ROWS, COLUMNS), np.float32)
        board[self._row, self._ball] = 1.0
        board[-1, self._paddle] = 1.0
        return board.ravel()


class Scale0001(Catch):
    scale = 0.001


class Scale003(Catch):
    scale = 0.03


class Scale1(Catch):
    scale = 1.0


class Scale30(Catch):
    scale = 30.0


class Scale1000(Catch):
    scale = 1000.0
