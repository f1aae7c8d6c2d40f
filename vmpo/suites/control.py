"""Continuous control on dm_control itself: the paper's humanoid gaps from pixels, and every task of its suite.

``humanoid-gaps`` is the CMU humanoid of 2019, position-controlled, in dm_control's own gaps corridor
(``cmu_humanoid_run_gaps``: platforms of 0.3 to 2.5 m, gaps of 0.5 to 1.25 m, 30 s), at the paper's target velocity of
4 m/s in place of 3. A contact of anything but the feet with the ground ends the episode. It observes ``pixels``, the
64x64 egocentric camera, and ``proprioception``, the list of the paper's figure (``PROPRIOCEPTION``). The example
observes more (height of the body, head position, touch, torque), which the paper does not list and which is left out.

A task of the suite is named ``domain-task`` (``humanoid-run``) and observes one vector: its arrays in their own order.

Environments live in worker processes, the parent never loads OpenGL. Drawing uses EGL unless MUJOCO_GL says otherwise.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import numpy as np

from vmpo.config import EnvConfig
from vmpo.errors import UserError, missing_extra, plain, spelt
from vmpo.records import ArraySpec, ContinuousActions, EnvSpec, Observation
from vmpo.suites import arrivals
from vmpo.suites.workers import Outcome, WorkerEnv

GAPS = "humanoid-gaps"
GAPS_SECONDS = 30.0
"""Time limit of an episode, from dm_control's example; the paper gives none."""

CAMERA = "walker/egocentric_camera"

PROPRIOCEPTION = (
    "walker/end_effectors_pos",
    "walker/joints_pos",
    "walker/joints_vel",
    "walker/sensors_accelerometer",
    "walker/sensors_gyro",
    "walker/sensors_velocimeter",
    "walker/world_zaxis",
)
"""Root to forearms and feet, joint angles and velocities, acceleration, rotational velocity and velocity in the root's
frame, and the z-axis in it: 136 numbers, in dm_control's order, not scaled."""

PICTURE = {"width": 320, "height": 240}

UNLIMITED = 1e10
"""MuJoCo's bound of a control that has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What the parent must know of a task, found out in a process of its own."""

    spec: EnvSpec
    episode_steps: int | None
    """Control steps of a whole episode; None where it has no limit."""


def make(config: EnvConfig, num_envs: int, seed: int, render: bool = False) -> WorkerEnv:
    """Start workers with ``num_envs`` environments of ``config.id``; ``reset`` seeds them."""
    if importlib.util.find_spec("dm_control") is None:
        raise missing_extra("dm_control", "control")
    description = describe(config.id, render)
    limits = [limit for limit in (description.episode_steps, config.max_episode_steps) if limit is not None]
    return WorkerEnv(
        functools.partial(make_env, render=render, shadows=config.shadows),
        description.spec,
        num_envs,
        workers=config.simulator_threads,
        max_episode_steps=config.max_episode_steps,
        first_limits=arrivals.first_limits(num_envs, min(limits)) if config.stagger and limits else None,
    )


@functools.cache
def describe(name: str, render: bool = False) -> Description:
    """Build the task once in a spawned process, so that this one loads neither MuJoCo nor OpenGL.

    All mistakes of a user appear here, before any worker starts: an unknown name, nothing to draw with.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(_describe, name, render).result()
        except BrokenProcessPool as error:
            raise UserError(f"dm_control ended its process while it made {name!r}; {_advice()}") from error


def _describe(name: str, render: bool) -> Description:
    drawn = render or plain(name) == plain(GAPS)
    _choose_opengl(drawn)
    if drawn:
        _try_to_draw()
    task = task_name(name)
    env = _load(task, shadows=False)
    action, arrays = env.action_spec(), env.observation_spec()
    if task == GAPS:
        observation = {
            "pixels": ArraySpec(shape=arrays[CAMERA].shape, dtype=np.dtype(np.uint8), kind="pixels", layout="HWC"),
            "proprioception": _vector([arrays[part] for part in PROPRIOCEPTION]),
        }
        steps = GAPS_SECONDS / env.control_timestep()
    else:
        observation = {"observation": _vector(arrays.values())}
        # No public name tells the limit of a suite's task.
        steps = env._step_limit
    low, high = (
        np.where(np.abs(bound) < UNLIMITED, bound, np.copysign(np.inf, bound)).astype(np.float32)
        for bound in (action.minimum, action.maximum)
    )
    return Description(
        spec=EnvSpec(
            observation=observation,
            action=ContinuousActions(low=low, high=high),
            tasks=(task,),
            steps_per_second=1.0 / env.control_timestep(),
        ),
        episode_steps=round(steps) if math.isfinite(steps) else None,
    )


def _vector(arrays: Any) -> ArraySpec:
    width = sum(int(np.prod(array.shape)) for array in arrays)
    return ArraySpec(shape=(width,), dtype=np.dtype(np.float32), kind="vector")


def task_name(name: str) -> str:
    """A task's name from its usual spellings: ``humanoid-run``, ``HumanoidRun``, ``humanoid_CMU-run``."""
    from dm_control import suite

    tasks = (GAPS, *("-".join(pair) for pair in suite.ALL_TASKS))
    return spelt("dm_control task", name, {task: task for task in tasks})


def make_env(task: str, render: bool, shadows: bool) -> ControlEnv:
    """One environment, in a worker."""
    _choose_opengl(render or task == GAPS)
    return ControlEnv(_load(task, shadows), shadows, render or task == GAPS)


def _load(task: str, shadows: bool) -> Any:
    if task == GAPS:
        return _load_gaps(shadows)
    from dm_control import suite

    return suite.load(*task.split("-", 1))


def _load_gaps(shadows: bool) -> Any:
    from dm_control import composer
    from dm_control.composer.variation import distributions
    from dm_control.locomotion.arenas import corridors as arenas
    from dm_control.locomotion.tasks import corridors as tasks
    from dm_control.locomotion.walkers import cmu_humanoid

    walker = cmu_humanoid.CMUHumanoidPositionControlled()
    arena = arenas.GapsCorridor(
        platform_length=distributions.Uniform(0.3, 2.5),
        gap_length=distributions.Uniform(0.5, 1.25),
        corridor_width=10,
        corridor_length=100,
    )
    if not shadows:
        # In the model, which is compiled anew for each corridor, and not in what is compiled from it. No buffer of
        # 4096 x 4096 is allocated then.
        arena.mjcf_model.visual.quality.shadowsize = 0
    task = tasks.RunThroughCorridor(
        walker=walker,
        arena=arena,
        walker_spawn_position=(0.5, 0, 0),
        target_velocity=4.0,
        physics_timestep=0.005,
        control_timestep=0.03,
    )
    for name, observable in walker.observables.as_dict(fully_qualified=True).items():
        observable.enabled = name == CAMERA or name in PROPRIOCEPTION
    return composer.Environment(task=task, time_limit=GAPS_SECONDS, strip_singleton_obs_buffer_dim=True)


class ControlEnv:
    """One dm_control environment as a worker plays it; ``reset`` seeds its generator, so that the seed decides all."""

    def __init__(self, env: Any, shadows: bool, drawn: bool) -> None:
        from dm_control.rl.control import PhysicsError

        self._env, self._shadows, self._drawn = env, shadows, drawn
        self._diverged = PhysicsError
        # Locomotion keeps the generator in the environment, the suite in the task.
        self._random = env.random_state if hasattr(env, "random_state") else env.task.random
        self._observation: Observation = {}

    def reset(self, seed: int) -> Observation:
        self._random.seed(seed)
        self._observation = _observe(self._env.reset().observation)
        return self._observation

    def step(self, action: np.ndarray) -> Outcome:
        """Discount 0 on the last step is a termination, discount 1 the time limit.

        Where the simulation diverges, which dm_control raises, the episode terminates at the last sound observation
        without reward: NaN must not reach the learner, and one environment not end the run.
        """
        try:
            arrival = self._env.step(action.astype(np.float64))
        except self._diverged:
            return Outcome(observation=self._observation, reward=0.0, terminated=True)
        self._observation = _observe(arrival.observation)
        return Outcome(
            observation=self._observation,
            reward=arrival.reward,
            terminated=arrival.last() and arrival.discount == 0.0,
            truncated=arrival.last() and arrival.discount != 0.0,
        )

    def render(self) -> np.ndarray:
        """The humanoid of gaps from behind with the corridor before it; a task of the suite from its first camera."""
        if not self._drawn:
            raise UserError("the environments were not made for rendering; make them with render=True")
        physics = self._env.physics
        gaps = hasattr(self._env, "random_state")
        # The camera "side" looks along the corridor, because the humanoid's own x-axis is to its left.
        camera: int | str = "walker/side" if gaps else (0 if physics.model.ncam else -1)
        return physics.render(**PICTURE, camera_id=camera, render_flag_overrides={"shadow": self._shadows})

    def close(self) -> None:
        self._env.close()


def _observe(arrays: dict[str, np.ndarray]) -> Observation:
    if CAMERA in arrays:
        proprioception = np.concatenate([np.ravel(arrays[part]) for part in PROPRIOCEPTION])
        return {"pixels": arrays[CAMERA], "proprioception": proprioception}
    return {"observation": np.concatenate([np.ravel(array) for array in arrays.values()])}


def _choose_opengl(drawn: bool) -> None:
    """Say what dm_control shall draw with before it is imported: EGL without a display, nothing if not drawn."""
    if not drawn:
        os.environ.setdefault("MUJOCO_GL", "disable")
    elif sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("MUJOCO_GL", "egl")


def _try_to_draw() -> None:
    """Draw an empty scene, because each missing library fails at a place and with an exception of its own."""
    try:
        from dm_control import mujoco

        mujoco.Physics.from_xml_string("<mujoco/>").render(8, 8)
    except Exception as error:
        raise UserError(f"dm_control cannot draw ({error}); {_advice()}") from error


def _advice() -> str:
    chosen = os.environ.get("MUJOCO_GL", "egl")
    return (
        "it needs OpenGL, on Debian: apt-get install libegl1 libgl1 libopengl0 libgl1-mesa-dri, "
        f"and MUJOCO_GL=egl without a display (now {chosen})"
    )
