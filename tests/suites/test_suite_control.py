"""The adapter of dm_control must show what dm_control shows, and EnvPool's humanoid must be dm_control's.

dm_control itself is played in processes of its own, so that this one never loads OpenGL.
"""

from __future__ import annotations

import functools
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from simulators import Played, play_gaps, play_humanoid_run, play_suite

from vmpo.config import EnvConfig
from vmpo.errors import UserError
from vmpo.records import ContinuousActions, VectorEnv
from vmpo.suites import control
from vmpo.suites import make as make_suite
from vmpo.suites.arrivals import env_seeds, first_limits
from vmpo.suites.workers import WorkerEnv

pytest.importorskip("dm_control")

GAPS_STEPS = 24
"""Enough for a random humanoid to fall once and stand up in another corridor."""


@pytest.fixture(scope="module")
def make() -> Iterator[Callable[..., WorkerEnv]]:
    made: list[WorkerEnv] = []

    def make(task: str, num_envs: int = 1, render: bool = False, **options: Any) -> WorkerEnv:
        config = EnvConfig(suite="control", id=task, simulator_threads=1, **options)
        env = make_suite(config, num_envs, seed=0, render=render)
        assert isinstance(env, WorkerEnv)
        made.append(env)
        return env

    yield make
    for env in made:
        env.close()


@functools.cache
def need_opengl() -> None:
    try:
        control.describe("humanoid-gaps")
    except UserError as error:
        pytest.skip(str(error))


def play(env: VectorEnv, actions: np.ndarray, seed: int = 0) -> dict[str, np.ndarray]:
    """The fields and observations of a reset and of these actions ``[T, B, A]``, each ``[T + 1, B, ...]``."""
    rows = []
    for action in [None, *actions]:
        arrival = env.reset(seed) if action is None else env.step(action)
        fields = {name: getattr(arrival, name) for name in ("reward", "discount", "first", "valid", "ended", "score")}
        rows.append({name: value.copy() for name, value in (fields | arrival.observation).items()})
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def random_actions(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)


def episode_seeds(seed: int, num_envs: int, index: int, episodes: int) -> list[int]:
    """The seeds that a worker hands to the episodes of one environment."""
    generator = np.random.default_rng(env_seeds(seed, num_envs)[index])
    return [int(generator.integers(2**31)) for _ in range(episodes)]


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Callable[..., Played]]:
    """Call a function in a process of its own; what draws has another one than what does not."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as plain, ProcessPoolExecutor(1, mp_context=context) as drawing:
        yield lambda function, *given: (drawing if function is play_gaps else plain).submit(function, *given).result()


def assert_same(played: dict[str, np.ndarray], index: int, raw: Played, vectors: str) -> None:
    """The stream of one environment is dm_control's own: observations, rewards, discounts, ends and resets."""
    np.testing.assert_array_equal(played[vectors][:, index], raw.vectors.astype(np.float32))
    np.testing.assert_array_equal(played["reward"][:, index], np.float32(raw.rewards))
    np.testing.assert_array_equal(played["score"][:, index], np.float32(raw.rewards))
    np.testing.assert_array_equal(played["discount"][:, index], np.float32(raw.discounts))
    np.testing.assert_array_equal(played["ended"][:, index], raw.last)
    np.testing.assert_array_equal(played["first"][:, index], [True, *raw.last[:-1]])
    assert (played["valid"] == ~played["first"]).all()


@pytest.mark.parametrize(
    ("steps", "options", "time_limit"), [(1003, {}, None), (60, {"max_episode_steps": 25}, 0.25)], ids=["own", "given"]
)
def test_a_task_of_the_suite_is_dm_controls_to_its_time_limit_and_beyond(
    make: Callable[..., WorkerEnv],
    elsewhere: Callable[..., Played],
    steps: int,
    options: dict[str, Any],
    time_limit: float | None,
) -> None:
    before = set(sys.modules)
    env = make("cartpole-swingup", num_envs=2, **options)
    actions = random_actions(steps, 2, 1)
    played = play(env, actions, seed=3)
    assert not [name for name in set(sys.modules) - before if name.split(".")[0] in ("OpenGL", "mujoco", "dm_control")]
    seeds = episode_seeds(seed=3, num_envs=2, index=1, episodes=3)
    raw = elsewhere(play_suite, "cartpole-swingup", seeds, actions[:, 1], time_limit)
    assert_same(played, 1, raw, "observation")
    assert played["ended"].any()
    assert (played["discount"] == 1).all()
    with pytest.raises(UserError, match="make them with render=True"):
        env.render()


@pytest.fixture(scope="module")
def gaps(make: Callable[..., WorkerEnv]) -> dict[str, np.ndarray]:
    """A stream of humanoid-gaps with shadows."""
    need_opengl()
    return play(make("humanoid-gaps"), random_actions(GAPS_STEPS, 1, 56))


def test_humanoid_gaps_is_dm_controls_example_at_4_metres_per_second(
    gaps: dict[str, np.ndarray], elsewhere: Callable[..., Played]
) -> None:
    seeds = episode_seeds(seed=0, num_envs=1, index=0, episodes=3)
    actions = random_actions(GAPS_STEPS, 1, 56)[:, 0]
    raw = elsewhere(play_gaps, seeds, actions, control.PROPRIOCEPTION, control.CAMERA)
    assert_same(gaps, 0, raw, "proprioception")
    np.testing.assert_array_equal(gaps["pixels"][:, 0], raw.pixels)
    assert gaps["pixels"].shape == (GAPS_STEPS + 1, 1, 64, 64, 3)
    assert gaps["pixels"].std() > 1
    assert gaps["ended"].any()
    assert (gaps["discount"][gaps["ended"]] == 0).all(), "a fall terminates"


def test_shadows_change_the_pictures_and_nothing_else(
    make: Callable[..., WorkerEnv], gaps: dict[str, np.ndarray]
) -> None:
    env = make("humanoid-gaps", shadows=False)
    plain = play(env, random_actions(GAPS_STEPS, 1, 56))
    for name in plain.keys() - {"pixels"}:
        np.testing.assert_array_equal(plain[name], gaps[name], err_msg=name)
    changed = (plain["pixels"] != gaps["pixels"]).any(axis=(1, 2, 3, 4))
    second = int(np.flatnonzero(gaps["first"])[1])
    assert changed[:second].any()
    assert changed[second:].any(), "also in the corridor of the next episode"
    brightness = [float(stream["pixels"].mean()) for stream in (plain, gaps)]
    assert brightness[0] > brightness[1]
    picture = env.render()
    assert (picture.shape, picture.dtype) == ((240, 320, 3), np.uint8)
    assert picture.std() > 1


def test_the_paper_s_observations_and_actions_are_described() -> None:
    need_opengl()
    spec = control.describe("humanoid-gaps").spec
    assert spec.observation["pixels"].shape == (64, 64, 3)
    assert spec.observation["pixels"].layout == "HWC"
    # 4 limbs of 3, 56 joints twice, acceleration, rotation, velocity and the z-axis.
    assert spec.observation["proprioception"].shape == (12 + 56 + 56 + 4 * 3,)
    assert isinstance(spec.action, ContinuousActions)
    assert spec.action.width == 56
    assert (spec.action.low == -1).all()
    assert (spec.action.high == 1).all()
    assert spec.tasks == ("humanoid-gaps",)


def test_options_reach_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(control, "WorkerEnv", lambda *positional, **named: given.update(named, num_envs=positional[2]))
    spec: Any = None
    for limit, asked, expected in ((1000, None, 1000), (1000, 40, 40), (30, 40, 30), (None, 40, 40)):
        described = control.Description(spec=spec, episode_steps=limit)
        monkeypatch.setattr(control, "describe", lambda name, render, described=described: described)
        config = EnvConfig(suite="control", id="x", max_episode_steps=asked, stagger=True, simulator_threads=3)
        control.make(config, 4, seed=0)
        assert given["workers"] == 3
        assert given["num_envs"] == 4
        assert given["max_episode_steps"] == asked
        np.testing.assert_array_equal(given["first_limits"], first_limits(4, expected))
    monkeypatch.setattr(control, "describe", lambda name, render: control.Description(spec=spec, episode_steps=None))
    control.make(EnvConfig(suite="control", id="x", stagger=True), 4, seed=0)
    assert given["first_limits"] is None


def test_a_simulation_that_diverges_terminates_at_its_last_sound_observation() -> None:
    errors = pytest.importorskip("dm_control.rl.control")

    def diverge(action: np.ndarray) -> None:
        raise errors.PhysicsError("mjWARN_BADQACC")

    opening = SimpleNamespace(observation={"a": np.ones(2), "b": np.array(3.0)})
    task = SimpleNamespace(random=np.random.RandomState(0))
    stub = SimpleNamespace(task=task, reset=lambda: opening, step=diverge)
    env = control.ControlEnv(stub, shadows=True, drawn=False)
    env.reset(0)
    outcome = env.step(np.zeros(1, np.float32))
    assert outcome.terminated
    assert outcome.reward == 0.0
    assert outcome.observation["observation"].tolist() == [1, 1, 3]


def test_envpools_humanoid_run_is_dm_controls_from_the_same_state(elsewhere: Callable[..., Played]) -> None:
    """60 steps through falls and contacts, from three starts. EnvPool's draws of a start are its own, and not compared.

    Only its twin HumanoidRunPureState tells the whole state; it has the same physics and, for the same seed, start.
    """
    envpool = pytest.importorskip("envpool")
    seed, num_envs = 5, 3
    pool = envpool.make_gymnasium("HumanoidRunPureState-v1", num_envs=num_envs, seed=env_seeds(seed, num_envs))
    state, _ = pool.reset()
    env = make_suite(EnvConfig(suite="mujoco", id="humanoid-run"), num_envs, seed=0)
    actions = random_actions(60, num_envs, 21)
    played = play(env, actions, seed)
    for index in range(num_envs):
        raw = elsewhere(play_humanoid_run, state["position"][index], state["velocity"][index], actions[:, index])
        np.testing.assert_allclose(played["observation"][:, index], raw.vectors, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(played["reward"][:, index], raw.rewards, rtol=1e-5, atol=1e-7)
        assert (played["discount"][:, index] == raw.discounts).all()
        assert max(raw.rewards) > 0.01, "something was earned"


def test_an_unknown_task_is_answered_by_the_closest() -> None:
    with pytest.raises(UserError, match=r"^unknown dm_control task 'humanoid-rnu'; did you mean 'humanoid-run'\?$"):
        control.describe("humanoid-rnu")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[control\]'"):
        control.make(EnvConfig(suite="control", id="humanoid-run"), 1, seed=0)


@pytest.mark.skipif(sys.platform != "linux", reason="a library is hidden as Linux finds it")
def test_missing_opengl_is_answered_by_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libEGL.so.1").write_bytes(b"")
    (tmp_path / "libEGL.so").write_bytes(b"")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("MUJOCO_GL", "egl")
    with pytest.raises(UserError, match=r"(?s)^dm_control cannot draw .*apt-get install libegl1 libgl1") as caught:
        control.describe.__wrapped__("humanoid-gaps")
    assert "\n" not in str(caught.value)
