"""What spawned processes must be able to import: a tiny environment for workers, and dm_control played by itself.

It stands beside ``probes`` so that a child need not load Gymnasium.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vmpo.errors import UserError
from vmpo.records import ArraySpec, DiscreteActions, EnvSpec, Observation
from vmpo.suites.workers import Outcome


class Ticking:
    """Observes its steps in the episode, its number and a draw from its seed; step k under action a earns k + 10 a.

    It is named by how it ends and when: ``terminate 3``, ``truncate 3``, ``both 3``, ``raise 3``, ``complain 3``,
    ``hang 3``; a reset is step 0, so that ``raise 0`` cannot be reset.
    """

    def __init__(self, task: str) -> None:
        self._end, number = task.split()
        self._number, self._steps, self._draw = int(number), 0, 0.0

    def reset(self, seed: int) -> Observation:
        self._steps, self._draw = 0, float(np.random.default_rng(seed).random())
        self._fail()
        return self._observe()

    def step(self, action: np.ndarray) -> Outcome:
        self._steps += 1
        self._fail()
        over = self._steps == self._number
        return Outcome(
            observation=self._observe(),
            reward=self._steps + 10.0 * float(action[0]),
            terminated=over and self._end in ("terminate", "both"),
            truncated=over and self._end in ("truncate", "both"),
        )

    def render(self) -> np.ndarray:
        return np.full((4, 5, 3), self._steps, np.uint8)

    def close(self) -> None:
        pass

    def _fail(self) -> None:
        if self._steps == self._number and self._end == "raise":
            raise RuntimeError(f"the spring broke at step {self._steps}")
        if self._steps == self._number and self._end == "hang":
            time.sleep(3600)
        if self._steps == self._number and self._end == "complain":
            raise UserError(f"step {self._steps} is not allowed")

    def _observe(self) -> Observation:
        return {"clock": np.array([self._steps, self._number, self._draw])}


def ticking_spec(tasks: Sequence[str]) -> EnvSpec:
    clock = ArraySpec(shape=(3,), dtype=np.dtype(np.float32), kind="vector")
    return EnvSpec(observation={"clock": clock}, action=DiscreteActions(sizes=(3,)), tasks=tuple(tasks))


@dataclass(frozen=True, kw_only=True)
class Played:
    """What dm_control itself returned: the reset and every step, each array ``[T + 1, ...]``."""

    vectors: np.ndarray
    pixels: np.ndarray | None
    rewards: list[float]
    discounts: list[float]
    last: list[bool]


def play_suite(task: str, seeds: Sequence[int], actions: np.ndarray, time_limit: float | None = None) -> Played:
    """dm_control's own stream, one seed per episode; a reset takes a step of its own."""
    os.environ["MUJOCO_GL"] = "disable"
    from dm_control import suite

    limit = {} if time_limit is None else {"time_limit": time_limit}
    domain, name = task.split("-")
    played, remaining = [], list(seeds)
    for action in [None, *actions]:
        if action is None or played[-1].last():
            env = suite.load(domain, name, task_kwargs={"random": remaining.pop(0), **limit})
            played.append(env.reset())
        else:
            played.append(env.step(action))
    return _record(played, list(played[0].observation), camera=None)


def play_gaps(seeds: Sequence[int], actions: np.ndarray, parts: Sequence[str], camera: str) -> Played:
    """dm_control's own example of a corridor with gaps, told to run at 4 m/s."""
    os.environ["MUJOCO_GL"] = "egl"
    from dm_control.locomotion.examples.basic_cmu_2019 import cmu_humanoid_run_gaps

    played, remaining = [], list(seeds)
    for action in [None, *actions]:
        if action is None or played[-1].last():
            env = cmu_humanoid_run_gaps(np.random.RandomState(remaining.pop(0)))
            env.task._vel = 4.0
            played.append(env.reset())
        else:
            played.append(env.step(action))
    return _record(played, parts, camera)


def play_humanoid_run(position: np.ndarray, velocity: np.ndarray, actions: np.ndarray) -> Played:
    """dm_control's humanoid-run from a given state of the physics."""
    os.environ["MUJOCO_GL"] = "disable"
    from dm_control import suite

    env = suite.load("humanoid", "run")
    opening = env.reset()
    with env.physics.reset_context():
        env.physics.data.qpos[:], env.physics.data.qvel[:] = position, velocity
    played = [opening._replace(observation=env.task.get_observation(env.physics))]
    played += [env.step(action) for action in actions]
    return _record(played, list(played[0].observation), camera=None)


def _record(played: Sequence[Any], parts: Sequence[str], camera: str | None) -> Played:
    return Played(
        vectors=np.stack([np.concatenate([np.ravel(p.observation[part]) for part in parts]) for p in played]),
        pixels=None if camera is None else np.stack([p.observation[camera] for p in played]),
        rewards=[p.reward or 0.0 for p in played],
        discounts=[1.0 if p.discount is None else p.discount for p in played],
        last=[p.last() for p in played],
    )
