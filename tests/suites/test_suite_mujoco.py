"""EnvPool's MuJoCo tasks must end and reset as the contract says, and observe what dm_control's observe."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vmpo.config import EnvConfig
from vmpo.errors import UserError
from vmpo.records import ContinuousActions, Timestep
from vmpo.suites import make as make_suite
from vmpo.suites.arrivals import env_seeds
from vmpo.suites.mujoco import FOREIGN, MujocoEnv, task_id

envpool = pytest.importorskip("envpool")


def make(task: str, num_envs: int = 2, render: bool = False, **options: Any) -> MujocoEnv:
    env = make_suite(EnvConfig(suite="mujoco", id=task, **options), num_envs, seed=0, render=render)
    assert isinstance(env, MujocoEnv)
    return env


def play(env: MujocoEnv, steps: int, seed: int = 0) -> tuple[list[Timestep], np.ndarray]:
    """The arrivals of a reset and so many random steps, and their observations ``[steps + 1, B, D]``."""
    generator = np.random.default_rng(0)
    arrivals = [env.reset(seed)]
    observations = [arrivals[0].observation["observation"].copy()]
    for _ in range(steps):
        raw = generator.normal(size=(env.num_envs, env.spec.action.width))
        arrivals.append(env.step(env.spec.action.executable(raw)))
        observations.append(arrivals[-1].observation["observation"].copy())
    return arrivals, np.stack(observations)


def stack(arrivals: list[Timestep], field: str) -> np.ndarray:
    return np.stack([getattr(arrival, field) for arrival in arrivals])


@pytest.mark.parametrize(
    ("spelling", "task"),
    [
        ("HalfCheetah-v4", "HalfCheetah-v4"),
        ("ant-v5", "Ant-v5"),
        ("HumanoidRun-v1", "HumanoidRun-v1"),
        ("humanoid-run", "HumanoidRun-v1"),
        ("cheetah_run", "CheetahRun-v1"),
        ("ball_in_cup-catch", "BallInCupCatch-v1"),
        ("humanoid_CMU-run", "HumanoidCMURun-v1"),
    ],
)
def test_tasks_are_known_by_their_usual_spellings(spelling: str, task: str) -> None:
    assert task_id(spelling) == task


@pytest.mark.parametrize(("given", "close"), [("HalfCheeta-v4", "HalfCheetah-v4"), ("humanoid-runn", "HumanoidRun-v1")])
def test_an_unknown_task_is_answered_by_the_closest(given: str, close: str) -> None:
    with pytest.raises(UserError, match=rf"unknown MuJoCo task '{given}'; did you mean '{close}'\?"):
        make(given)


def test_a_fall_terminates_and_the_call_after_it_resets() -> None:
    env = make("Hopper-v4", num_envs=4)
    arrivals, observations = play(env, 150)
    ended, discount, first = (stack(arrivals, field) for field in ("ended", "discount", "first"))
    assert ended.sum() >= 4
    assert (discount == np.where(ended, 0.0, 1.0)).all()
    height, angle = observations[..., 0], observations[..., 1]
    unhealthy = (height < 0.7) | (np.abs(angle) > 0.2)
    assert unhealthy[ended].all(), "the final observation is the fallen one"
    assert (first[1:] == ended[:-1]).all()
    assert (stack(arrivals, "valid") == ~first).all()
    assert (np.abs(height[first] - 1.25) < 0.02).all(), "a first observation is near the start"
    assert (stack(arrivals, "score")[first] == 0).all()
    assert (stack(arrivals, "score")[1:][~first[1:]] != 0).all()


@pytest.mark.parametrize("task", ["HalfCheetah-v4", "CheetahRun-v1"])
def test_a_time_limit_of_1000_steps_truncates(task: str) -> None:
    arrivals, _ = play(make(task), 1003)
    ended = stack(arrivals, "ended")
    assert np.flatnonzero(ended[:, 0]).tolist() == [1000]
    assert ended[1000].all()
    assert (stack(arrivals, "discount") == 1).all()
    assert np.flatnonzero(stack(arrivals, "first")[:, 0]).tolist() == [0, 1001]
    assert np.flatnonzero(~stack(arrivals, "valid")[:, 0]).tolist() == [0, 1001]


@pytest.mark.parametrize("task", ["HalfCheetah-v5", "WalkerWalk-v1"])
def test_the_reset_earns_nothing(task: str) -> None:
    # EnvPool repeats the last reward of a control-suite episode when it resets.
    arrivals, _ = play(make(task, max_episode_steps=5), 7)
    assert arrivals[6].first.all()
    assert (arrivals[5].reward != 0).all()
    assert (arrivals[6].reward == 0).all()
    assert (arrivals[6].score == 0).all()
    assert (arrivals[7].reward != 0).all()


@pytest.mark.parametrize("task", ["Ant-v4", "CartpoleSwingup-v1"])
def test_max_episode_steps_truncates(task: str) -> None:
    arrivals, _ = play(make(task, max_episode_steps=7), 8)
    assert [bool(a.ended.all()) for a in arrivals] == [False] * 7 + [True, False]
    assert (arrivals[7].discount == 1).all()


@pytest.mark.parametrize(
    "domain_and_task", ["humanoid-run", "humanoid-run_pure_state", "finger-spin", "quadruped-fetch"]
)
def test_a_task_observes_what_it_does_in_dm_control(domain_and_task: str) -> None:
    suite = pytest.importorskip("dm_control.suite")
    spec = suite.load(*domain_and_task.split("-")).observation_spec()
    env = make(domain_and_task)
    assert env._columns.keys() == spec.keys()
    assert env.spec.observation["observation"].shape == (sum(int(np.prod(a.shape)) for a in spec.values()),)


@pytest.mark.parametrize("task", FOREIGN)
def test_what_is_left_out_exists(task: str) -> None:
    arrays = envpool.make_spec(task).observation_space.spaces
    assert set(FOREIGN[task]) < set(arrays)


def test_observations_are_the_simulators_arrays_one_after_another_in_float32() -> None:
    env = make("HumanoidWalk-v1")
    arrivals, observations = play(env, 3, seed=5)
    pool = envpool.make_gymnasium("HumanoidWalk-v1", num_envs=2, seed=env_seeds(5, 2))
    raw, _ = pool.reset()
    parts = [raw[name].reshape(2, -1) for name in raw if name != "position"]
    np.testing.assert_array_equal(observations[0], np.concatenate(parts, axis=1).astype(np.float32))
    assert arrivals[0].observation["observation"].dtype == np.float32
    assert observations.shape[2] == env.spec.observation["observation"].shape[0] == 67


def test_actions_have_the_bounds_of_the_task() -> None:
    action = make("Humanoid-v4").spec.action
    assert isinstance(action, ContinuousActions)
    assert action.width == 17
    np.testing.assert_allclose(action.high, 0.4)
    np.testing.assert_allclose(action.low, -0.4)


def test_seeds_repeat_a_stream_and_differ_between_environments_and_neighbours() -> None:
    env = make("HalfCheetah-v4", num_envs=3)
    first, again, other = (play(env, 5, seed=seed)[1] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert len(np.unique(np.concatenate([first[0, :, 0], other[0, :, 0]]))) == 6


def test_the_opening_belongs_to_no_action() -> None:
    opening = make("HalfCheetah-v4").reset(0)
    assert opening.first.all()
    assert not opening.valid.any()
    assert not opening.ended.any()
    assert (opening.discount == 1).all()
    assert (opening.score == 0).all()


def test_drawing_must_be_asked_for() -> None:
    env = make("HalfCheetah-v4")
    env.reset(0)
    with pytest.raises(UserError, match="make it with render=True"):
        env.render()


@pytest.mark.parametrize("envpool_first", [False, True])
def test_a_picture_is_drawn_or_an_error_says_why_not(envpool_first: bool, tmp_path: Path) -> None:
    # In a process of its own: MuJoCo ends the process when it finds no OpenGL, and that must never happen.
    program = f"""
if {envpool_first}: import envpool
from vmpo.config import EnvConfig
from vmpo.errors import UserError
from vmpo.suites import make
env = make(EnvConfig(suite="mujoco", id="HalfCheetah-v4"), 2, 0, render=True)
env.reset(0)
try:
    picture = env.render()
    print(picture.shape, picture.dtype, picture.std() > 1)
except UserError as error:
    print(error)
"""
    # MuJoCo logs its errors into the working directory.
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    drawn = done.stdout.strip() == "(240, 320, 3) uint8 True"
    assert drawn if has_egl() and not envpool_first else "found no EGL" in done.stdout


def has_egl() -> bool:
    try:
        ctypes.CDLL("libEGL.so.1")
    except OSError:
        return False
    return True


def test_staggered_environments_are_spread_over_the_episode():
    env = make_suite(EnvConfig(suite="mujoco", id="HalfCheetah-v4", max_episode_steps=40, stagger=True), 4, 0)
    env.reset(0)
    ends = {index: [] for index in range(4)}
    for step in range(1, 125):
        timestep = env.step(np.zeros((4, 6), np.float32))
        for index in np.flatnonzero(timestep.ended):
            ends[int(index)].append(step)
        assert (timestep.discount == 1.0).all()
        assert (timestep.first == ~timestep.valid).all()
    env.close()
    # A reset takes a call of its own, so that whole episodes end 41 calls apart.
    assert ends == {0: [40, 81, 122], 1: [20, 61, 102], 2: [10, 51, 92], 3: [30, 71, 112]}
