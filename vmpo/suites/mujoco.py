"""Continuous control on EnvPool: Gym's MuJoCo tasks (``Ant-v4``) and the DeepMind Control Suite (``HumanoidRun-v1``).

EnvPool steps all environments in C++ threads and resets in the call after an end. A control-suite episode ends by its
time limit alone, LQR's excepted. An episode that terminates in the very step of its limit counts as truncated.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from vmpo.config import EnvConfig
from vmpo.errors import UserError, missing_extra, spelt
from vmpo.records import ArraySpec, ContinuousActions, EnvSpec, Timestep
from vmpo.suites import arrivals

_DOG = ("ball_state", "target_position")
_HUMANOID = ("position",)
_PURE_STATE = ("joint_angles", "head_height", "extremities", "torso_vertical", "com_velocity")
_QUADRUPED = ("origin", "rangefinder", "ball_state", "target_position")

FOREIGN: Mapping[str, tuple[str, ...]] = {
    "DogStand-v1": _DOG,
    "DogWalk-v1": _DOG,
    "DogTrot-v1": _DOG,
    "DogRun-v1": _DOG,
    "FingerSpin-v1": ("target_position", "dist_to_target"),
    "FishUpright-v1": ("target",),
    "HumanoidStand-v1": _HUMANOID,
    "HumanoidWalk-v1": _HUMANOID,
    "HumanoidRun-v1": _HUMANOID,
    "HumanoidRunPureState-v1": _PURE_STATE,
    "QuadrupedWalk-v1": _QUADRUPED,
    "QuadrupedRun-v1": _QUADRUPED,
    "QuadrupedEscape-v1": _QUADRUPED[2:],
    "QuadrupedFetch-v1": _QUADRUPED[:2],
}
"""Arrays that a task does not have in dm_control. EnvPool gives each task all arrays of its domain, mostly zeros."""

STEP_SECONDS: Mapping[str, Mapping[str, float]] = {
    "gym": {
        "Ant": 0.05,
        "HalfCheetah": 0.05,
        "Hopper": 0.008,
        "Humanoid": 0.015,
        "HumanoidStandup": 0.015,
        "InvertedDoublePendulum": 0.05,
        "InvertedPendulum": 0.04,
        "Pusher": 0.05,
        "Reacher": 0.02,
        "Swimmer": 0.04,
        "Walker2d": 0.008,
    },
    "dmc": {
        "Acrobot": 0.01,
        "BallInCup": 0.02,
        "Cartpole": 0.01,
        "Cheetah": 0.01,
        "Dog": 0.015,
        "Finger": 0.02,
        "Fish": 0.04,
        "Hopper": 0.02,
        "Humanoid": 0.025,
        "HumanoidCMU": 0.02,
        "Lqr": 0.03,
        "Manipulator": 0.01,
        "Pendulum": 0.02,
        "PointMass": 0.02,
        "Quadruped": 0.02,
        "Reacher": 0.02,
        "Stacker": 0.01,
        "Swimmer": 0.03,
        "Walker": 0.025,
    },
}
"""Simulated seconds of an agent step by body, which EnvPool does not tell: Gym's and dm_control's own."""

PICTURE = {"render_mode": "rgb_array", "render_width": 320, "render_height": 240}


def make(config: EnvConfig, num_envs: int, seed: int, render: bool = False) -> MujocoEnv:
    """Build ``num_envs`` environments of ``config.id``; ``reset`` seeds them."""
    return MujocoEnv(config, num_envs, render)


class MujocoEnv:
    """An EnvPool whose observations are one float32 vector: the task's arrays in EnvPool's order."""

    def __init__(self, config: EnvConfig, num_envs: int, render: bool = False) -> None:
        self.num_envs, self._render = num_envs, render
        self._task, self._envpool = task_id(config.id), _envpool()
        self._options: dict[str, Any] = {"num_envs": num_envs, "num_threads": config.simulator_threads}
        if config.max_episode_steps is not None:
            self._options["max_episode_steps"] = config.max_episode_steps
        self._pool: Any = None
        self._resetting = np.zeros(num_envs, np.bool_)
        self._stagger, self._steps = config.stagger, 0
        spec = self._envpool.make_spec(self._task, **self._options)
        self._columns = _columns(self._task, spec.observation_space)
        width = max(columns.stop for columns in self._columns.values())
        self._first_limits = arrivals.first_limits(num_envs, spec.config.max_episode_steps)
        self._vector = np.zeros((num_envs, width), np.float32)
        low, high = (bound.astype(np.float32) for bound in (spec.action_space.low, spec.action_space.high))
        self.spec = EnvSpec(
            observation={"observation": ArraySpec(shape=(width,), dtype=np.dtype(np.float32), kind="vector")},
            action=ContinuousActions(low=low, high=high),
            tasks=(self._task,),
            steps_per_second=steps_per_second(self._task),
        )

    def reset(self, seed: int) -> Timestep:
        """Start all episodes anew; the same seed gives the same stream.

        EnvPool takes its seeds when it is built, so it is built here. The control suite needs about a tenth of a
        second for each environment.
        """
        self.close()
        seeds = arrivals.env_seeds(seed, self.num_envs)
        drawing = PICTURE if self._render else {}
        self._pool = self._envpool.make_gymnasium(self._task, seed=seeds, **self._options, **drawing)
        observation, _ = self._pool.reset()
        self._resetting = np.zeros(self.num_envs, np.bool_)
        self._steps = 0
        return arrivals.opening(self._flatten(observation), self.num_envs)

    def step(self, actions: np.ndarray) -> Timestep:
        self.send(actions)
        return self.receive()

    def send(self, actions: np.ndarray) -> None:
        """Let the simulator's threads go on with these actions."""
        self._pool.send(actions)

    def receive(self) -> Timestep:
        """Wait for the arrivals of the actions that were sent."""
        observation, score, terminated, truncated, _ = self._pool.recv()
        flat = self._flatten(observation)
        if self._stagger:
            truncated = truncated | self._cut(flat["observation"])
        timestep = arrivals.next_step(flat, score, terminated, truncated, resetting=self._resetting)
        self._resetting = timestep.ended
        return timestep

    def _cut(self, vectors: np.ndarray) -> np.ndarray:
        """Reset the environments that were cut a step ago, which EnvPool has stepped on, and name those to cut now."""
        was_cut = self._resetting & (self._first_limits == self._steps)
        if self._steps and was_cut.any():
            ids = np.flatnonzero(was_cut).astype(np.int32)
            observation, _ = self._pool.reset(ids)
            arrays = observation if isinstance(observation, dict) else {"": observation}
            for name, columns in self._columns.items():
                vectors[ids, columns] = arrays[name].reshape(len(ids), -1)
        self._steps += 1
        return self._first_limits == self._steps

    def _flatten(self, observation: np.ndarray | dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Copy what was delivered into the vector, cast to float32 on the way."""
        arrays = observation if isinstance(observation, dict) else {"": observation}
        for name, columns in self._columns.items():
            np.copyto(self._vector[:, columns], arrays[name].reshape(self.num_envs, -1), casting="same_kind")
        return {"observation": self._vector}

    def render(self) -> np.ndarray:
        if not self._render:
            raise UserError(f"{self._task} was not made for rendering; make it with render=True")
        if not _can_draw():
            raise UserError(
                "MuJoCo found no EGL to draw with; install it with: apt-get install libegl1, "
                "and import envpool only through vmpo"
            )
        return self._pool.render(0)[0]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def task_id(name: str) -> str:
    """EnvPool's name of a task from its usual spellings: ``humanoid-run``, ``cheetah_run``, ``halfcheetah-v4``."""
    registry = _envpool().registration.registry
    tasks: dict[str, list[str]] = {"gym": [], "dmc": []}
    for task, (module, _, _) in registry.specs.items():
        parent, _, kind = module.rpartition(".")
        if parent == "envpool.mujoco" and kind in tasks:
            tasks[kind].append(task)
    # The control suite's tasks have one version only, so it need not be given.
    known = {task: task for kind in tasks.values() for task in kind}
    return spelt("MuJoCo task", name, known | {task.removesuffix("-v1"): task for task in tasks["dmc"]})


def steps_per_second(task: str) -> float | None:
    """From EnvPool's name of a task; the longest body that it begins with counts (HumanoidCMU before Humanoid)."""
    module, _, _ = _envpool().registration.registry.specs[task]
    bodies = STEP_SECONDS[module.rpartition(".")[2]]
    body = max((body for body in bodies if task.startswith(body)), key=len, default=None)
    return None if body is None else 1.0 / bodies[body]


def _columns(task: str, space: Any) -> dict[str, slice]:
    """Where each array of the task stands in the vector; a task with a single array calls it by the empty name."""
    from gymnasium.spaces import Dict

    parts = dict(space.spaces) if isinstance(space, Dict) else {"": space}
    columns, start = {}, 0
    for name, part in parts.items():
        if name not in FOREIGN.get(task, ()):
            width = int(np.prod(part.shape or ()))
            columns[name] = slice(start, start + width)
            start += width
    return columns


def _envpool() -> Any:
    _can_draw()
    try:
        import envpool
        import envpool.registration
    except ImportError as error:
        raise missing_extra("envpool", "mujoco") from error
    return envpool


@functools.cache
def _can_draw() -> bool:
    """Load EGL for the whole process, and say whether MuJoCo will find it.

    MuJoCo looks for OpenGL when EnvPool is first imported, hence the call before every import. Asked to draw without
    having found it, it does not raise but ends the process.
    """
    if sys.platform != "linux":
        return True
    too_late = "envpool" in sys.modules
    try:
        ctypes.CDLL("libEGL.so.1", mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return not too_late
