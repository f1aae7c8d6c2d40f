"""Playing a level frame by frame, by the native actions of DeepMind Lab."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from vmpo.suites.miniworld_levels import Level, Thing, Trial

DEGREES_PER_PIXEL = 0.1875
"""Turn per frame and pixel of looking: at repeat 4, the paper's 10 pixels make 7.5 degrees and its 60 make 45."""

METRES_PER_FRAME = 0.1
"""Walking speed: 0.4 m per agent step at repeat 4."""

MAX_PITCH = 30.0
"""Degrees that the agent can look up or down. It looks straight ahead again by itself."""

BODY = 0.25
"""Half the agent's width in metres."""

REACH = 0.7
"""Distance in metres between the agent's middle and a thing's at which they touch."""


class Game:
    """One episode after another of a level: where the agent is, what lies around and what touching it pays."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self.frames = level.episode_frames
        self.trial: Trial
        self.things: list[Thing] = []
        """Those of the trial that are still there."""
        self.x = self.z = self.heading = self.pitch = 0.0
        self._trials: Iterator[Trial] = iter(())
        self._trial_frames = 0

    def reset(self, rng: np.random.Generator) -> None:
        self.frames = 0
        self._trials = self.level.trials(rng)
        self._next_trial()

    @property
    def running(self) -> bool:
        return self.frames < self.level.episode_frames

    def frame(self, action: Sequence[int]) -> float:
        """Play one frame: look right, look down, strafe right, move forward. Fire, jump and crouch do nothing."""
        look_right, look_down, strafe, forward = action[:4]
        self.heading = (self.heading - math.radians(look_right * DEGREES_PER_PIXEL)) % (2 * math.pi)
        tilted = self.pitch - look_down * DEGREES_PER_PIXEL if look_down else 0.75 * self.pitch
        self.pitch = min(max(tilted, -MAX_PITCH), MAX_PITCH)
        if forward or strafe:
            cos, sin = math.cos(self.heading), math.sin(self.heading)
            self._move(METRES_PER_FRAME * (forward * cos + strafe * sin), 0.0)
            self._move(0.0, METRES_PER_FRAME * (strafe * cos - forward * sin))
        self.frames += 1
        self._trial_frames += 1
        reward = self._touch()
        if self._trial_frames == self.trial.frames:
            self._next_trial()
        return reward

    def _move(self, x: float, z: float) -> None:
        """Along one axis at a time, so that the agent slides along walls."""
        x, z = self.x + x, self.z + z
        if not any(self.level.blocked(x + dx, z + dz) for dx in (-BODY, BODY) for dz in (-BODY, BODY)):
            self.x, self.z = x, z

    def _touch(self) -> float:
        reward, over = 0.0, False
        for thing in list(self.things):
            if thing.effect == "none" or (thing.x - self.x) ** 2 + (thing.z - self.z) ** 2 > REACH**2:
                continue
            reward += thing.reward
            self.things.remove(thing)
            over |= thing.effect == "ends trial" or not any(t.reward > 0 for t in self.things)
        if over:
            self._next_trial()
        return reward

    def _next_trial(self) -> None:
        self.trial = next(self._trials)
        self._trial_frames = 0
        self.things = list(self.trial.things)
        self.x, self.z, self.heading, self.pitch = self.trial.x, self.trial.z, self.trial.heading, 0.0
