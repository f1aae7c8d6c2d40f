"""Gymnasium's environments must arrive exactly as the contract in ``records.Timestep`` says, however they reset."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import probes
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from vmpo import suites
from vmpo.config import EnvConfig
from vmpo.errors import UserError
from vmpo.records import Timestep, VectorEnv
from vmpo.suites.gymnasium import GymnasiumEnv
from vmpo.suites.words import hash_words
from vmpo.suites.workers import WorkerEnv

ENDS = [(2, None), (None, 3)]
"""Environment 0 terminates after 2 steps, environment 1 is truncated after 3."""


def make(name: str, num_envs: int = 2, render: bool = False, **options: Any) -> VectorEnv:
    return suites.make(EnvConfig(id=name, **options), num_envs, seed=0, render=render)


def play(env: VectorEnv, steps: int) -> list[Timestep]:
    """The arrivals of a reset and so many steps; observations copied, because the next call may overwrite them."""
    action = np.zeros((env.num_envs, env.spec.action.width), np.int64)
    arrivals = [env.reset(0)]
    copies = [{k: v.copy() for k, v in arrivals[0].observation.items()}]
    for _ in range(steps):
        arrivals.append(env.step(action))
        copies.append({k: v.copy() for k, v in arrivals[-1].observation.items()})
    for arrival, copy in zip(arrivals, copies, strict=True):
        arrival.observation.update(copy)
    return arrivals


def rows(arrivals: list[Timestep], index: int) -> list[tuple[float, ...]]:
    """Observation, reward, discount, first, valid, ended and score of one environment, a row per arrival."""

    def row(arrival: Timestep) -> tuple[float, ...]:
        fields = ("reward", "discount", "first", "valid", "ended", "score")
        seen = float(arrival.observation["observation"][index, 0])
        return (seen, *(float(getattr(arrival, field)[index]) for field in fields))

    return [row(arrival) for arrival in arrivals]


# Columns: observation, reward, discount, first, valid, ended, score.
TERMINATES_AFTER_2 = [
    (0, 0, 1, 1, 0, 0, 0),
    (1, 1, 1, 0, 1, 0, 1),
    (2, 2, 0, 0, 1, 1, 2),
    (0, 0, 1, 1, 0, 0, 0),
    (1, 1, 1, 0, 1, 0, 1),
    (2, 2, 0, 0, 1, 1, 2),
    (0, 0, 1, 1, 0, 0, 0),
    (1, 1, 1, 0, 1, 0, 1),
]
TRUNCATED_AFTER_3 = [
    (0, 0, 1, 1, 0, 0, 0),
    (1, 1, 1, 0, 1, 0, 1),
    (2, 2, 1, 0, 1, 0, 2),
    (3, 3, 1, 0, 1, 1, 3),
    (0, 0, 1, 1, 0, 0, 0),
    (1, 1, 1, 0, 1, 0, 1),
    (2, 2, 1, 0, 1, 0, 2),
    (3, 3, 1, 0, 1, 1, 3),
]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_final_observation_is_its_own_timestep_and_the_next_call_resets(
    mode: AutoresetMode, asynchronous: bool
) -> None:
    env = GymnasiumEnv(probes.counting_vector(mode, ENDS, asynchronous), "probe")
    arrivals = play(env, 7)
    env.close()
    assert rows(arrivals, 0) == TERMINATES_AFTER_2
    assert rows(arrivals, 1) == TRUNCATED_AFTER_3


def test_resetting_some_environments_leaves_the_others_observations_alone() -> None:
    arrivals = play(GymnasiumEnv(probes.ForgetfulVector(ENDS), "probe"), 7)
    assert rows(arrivals, 0) == TERMINATES_AFTER_2
    assert rows(arrivals, 1) == TRUNCATED_AFTER_3


def test_nested_observations_survive_resets_that_the_environment_leaves_to_us() -> None:
    envs = SyncVectorEnv([probes.Nested, lambda: probes.Nested(terminate_after=2)], autoreset_mode="Disabled")
    arrivals = play(GymnasiumEnv(envs, "probe"), 3)
    assert arrivals[3].first.tolist() == [False, True]
    assert arrivals[3].observation["camera"][:, 0, 0, 0].tolist() == [21, 0]
    assert arrivals[3].observation["mission"][1].tolist() == hash_words("wait", length=20).tolist()


def test_an_episode_reset_in_its_last_step_arrives_at_the_next_first_observation() -> None:
    env = GymnasiumEnv(probes.counting_vector(AutoresetMode.SAME_STEP, [*ENDS, (2, 2)]), "probe")
    arrivals = play(env, 4)
    terminated = [(0, 0, 1, 1, 0, 0, 0), (1, 1, 1, 0, 1, 0, 1), (0, 2, 0, 1, 1, 1, 2)]
    assert rows(arrivals, 0) == [*terminated, *terminated[1:]]
    assert rows(arrivals, 1) == [
        (0, 0, 1, 1, 0, 0, 0),
        (1, 1, 1, 0, 1, 0, 1),
        (2, 2, 1, 0, 1, 0, 2),
        (0, 0, 1, 1, 0, 1, 3),
        (1, 1, 1, 0, 1, 0, 1),
    ]
    assert rows(arrivals, 2) == rows(arrivals, 0), "terminated and truncated at once is a termination"


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_terminated_and_truncated_at_once_is_a_termination(mode: AutoresetMode) -> None:
    env = GymnasiumEnv(probes.counting_vector(mode, [(2, 2)]), "probe")
    assert rows(play(env, 7), 0) == TERMINATES_AFTER_2


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_scores_between_ends_add_up_to_the_returns(mode: AutoresetMode) -> None:
    env = GymnasiumEnv(probes.counting_vector(mode, ENDS), "probe")
    arrivals = play(env, 20)
    running, returns = np.zeros(2), {0: set(), 1: set()}  # type: ignore[var-annotated]
    for arrival in arrivals:
        running += arrival.score
        for index in np.flatnonzero(arrival.ended):
            returns[int(index)].add(running[index])
            running[index] = 0.0
    assert returns == {0: {1 + 2}, 1: {1 + 2 + 3}}


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_the_call_after_an_end_ignores_its_action(mode: AutoresetMode) -> None:
    executed: list[Any] = []
    recording = probes.Recording(spaces.Discrete(9), executed)
    env = GymnasiumEnv(SyncVectorEnv([lambda: recording], autoreset_mode=mode), "probe")
    env.reset(0)
    for action in range(8):
        arrival = env.step(np.array([[action]]))
        if action in (3, 7):
            assert arrival.first[0]
            assert arrival.observation["observation"][0, 0] == 0
    if mode is AutoresetMode.NEXT_STEP:
        assert executed == [0, 1, 2, 4, 5, 6]


def test_reset_within_an_episode_starts_anew() -> None:
    env = GymnasiumEnv(probes.counting_vector(AutoresetMode.NEXT_STEP, ENDS), "probe")
    play(env, 2)
    assert rows(play(env, 7), 0) == TERMINATES_AFTER_2


def test_rewards_and_flags_have_the_contracts_types() -> None:
    arrival = play(make("probes:Counting-v0"), 1)[1]
    assert (arrival.reward.dtype, arrival.discount.dtype, arrival.score.dtype) == (np.float32,) * 3
    assert (arrival.first.dtype, arrival.valid.dtype, arrival.ended.dtype) == (np.bool_,) * 3
    assert arrival.task.dtype == np.int64
    assert arrival.observation["observation"].dtype == np.float32


@pytest.mark.parametrize("name", ["probes:Counting-v0", "probes:Counting", "probes:Vectorised-v0", "probes:Limited-v0"])
def test_max_episode_steps_truncates(name: str) -> None:
    arrivals = play(make(name, max_episode_steps=2), 2)
    assert arrivals[2].ended.all()
    assert (arrivals[2].discount == 1).all()


def test_the_registered_limit_holds_without_an_override() -> None:
    arrivals = play(make("probes:Limited-v0"), 5)
    assert [bool(a.ended.all()) for a in arrivals] == [False] * 5 + [True]


def test_cartpole_runs_vectorised_and_obeys_the_limit() -> None:
    env = make("CartPole-v1", num_envs=4, max_episode_steps=6)
    assert type(env._envs).__name__ == "CartPoleVectorEnv"  # type: ignore[attr-defined]
    arrivals = play(env, 8)
    assert [bool(a.ended.all()) for a in arrivals] == [False] * 6 + [True, False, False]
    assert arrivals[7].first.all()
    assert not arrivals[7].valid.any()
    assert (arrivals[6].discount == 1).all()


def test_an_ids_own_vector_version_is_preferred_where_it_says_how_it_resets() -> None:
    assert isinstance(make("probes:Vectorised-v0")._envs, probes.CountingVector)  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="AutoresetMode"):
        silent = make("probes:Silent-v0")
    assert type(silent._envs) is SyncVectorEnv  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="AutoresetMode"), pytest.raises(UserError, match="autoreset_mode"):
        make("probes:OnlySilent-v0")


def test_worker_processes_play_as_this_process_does() -> None:
    here, there = (make("probes:Counting-v0", simulator_threads=threads) for threads in (1, 2))
    assert isinstance(there, WorkerEnv)
    assert there.spec == here.spec
    assert rows(play(here, 9), 1) == rows(play(there, 9), 1)
    there.close()


def test_worker_processes_repeat_a_stream_for_the_same_seed() -> None:
    streams = []
    for _ in range(2):
        env = make("probes:Noise-v0", simulator_threads=2)
        streams.append(rows(play(env, 8), 1))
        env.close()
    assert streams[0] == streams[1]


def test_seeds_repeat_a_stream_and_differ_between_environments_and_neighbours() -> None:
    def numbers(seed: int) -> np.ndarray:
        env = make("probes:Noise-v0", num_envs=3)
        first = env.reset(seed).observation["observation"].copy()
        later = [env.step(np.zeros((3, 1), np.int64)).observation["observation"].copy() for _ in range(6)]
        return np.stack([first, *later])

    np.testing.assert_array_equal(numbers(0), numbers(0))
    both = np.concatenate([numbers(0)[0], numbers(1)[0]])
    assert len(np.unique(both)) == 6, "an environment of seed 1 repeats one of seed 0"


def test_only_an_environment_made_for_rendering_gives_pictures() -> None:
    env = make("probes:Counting-v0", render=True)
    play(env, 2)
    assert env.render().shape == (4, 5, 3)
    assert (env.render() == 2).all()
    assert make("CartPole-v1", num_envs=1, render=True)._envs.envs[0].render_mode == "rgb_array"  # type: ignore[attr-defined]
    blind = make("probes:Undrawable-v0", render=True)
    blind.reset(0)
    with pytest.raises(UserError, match="gives no picture"):
        blind.render()


def test_a_module_is_found_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_envs.py").write_text(
        "import gymnasium, probes\n"
        "class Mine(probes.Counting):\n    pass\n"
        "gymnasium.register('Mine-v0', entry_point=Mine)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    for name in ("my_own_envs:Mine-v0", "my_own_envs:Mine"):
        env = make(name)
        assert env.spec.tasks == (name,)
        assert rows(play(env, 1), 0) == TERMINATES_AFTER_2[:2]


def test_a_factory_needs_no_registration() -> None:
    ended = [bool(a.ended[0]) for a in play(make("probes:make_counting"), 4)]
    assert ended == [False] * 4 + [True]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CartPol-v1", r"unknown environment 'CartPol-v1'; did you mean 'CartPole-v1'\?"),
        ("probes:Countin-v0", r"did you mean 'Counting-v0'\?"),
        ("probes:Recordin", r"did you mean 'Recording'\?"),
        ("no_such_module:Env-v0", "cannot import 'no_such_module'"),
        ("probes:make_nothing", r"made a str; it must make a gymnasium\.Env"),
        ("probes:NeedsPackage-v0", "needs the package 'simulator'; install it with: pip install simulator"),
        ("probes:NeedsExtra-v0", r'cannot be made: simulator is missing, run `pip install "gymnasium\[simulator\]"`'),
    ],
)
def test_mistakes_are_explained_in_one_line(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        make(name)
    assert "\n" not in str(caught.value)


def test_suites_are_found_by_name_and_can_be_registered() -> None:
    with pytest.raises(UserError, match=r"unknown suite 'gymnasum'; did you mean 'gymnasium'\?"):
        suites.make(EnvConfig(suite="gymnasum"), 1, 0)
    assert suites.parse_env("atari:Pong") == ("atari", "Pong")
    assert suites.parse_env("mujoco:HalfCheetah-v4") == ("mujoco", "HalfCheetah-v4")
    assert suites.parse_env("CartPole-v1") == ("gymnasium", "CartPole-v1")
    assert suites.parse_env("my_module:MyEnv-v0") == ("gymnasium", "my_module:MyEnv-v0")
    mine = make("probes:Counting-v0")
    for name in ("mine", "lab"):
        suites.register(name, lambda config, num_envs, seed: mine)
        try:
            assert suites.parse_env(f"{name}:anything") == (name, "anything")
            assert suites.make(EnvConfig(suite=name, id="anything"), 1, 0) is mine
        finally:
            del suites._FACTORIES[name]


def test_staggered_environments_are_spread_over_the_episode():
    env = suites.make(EnvConfig(id="Pendulum-v1", max_episode_steps=40, stagger=True), 4, 0)
    env.reset(0)
    ends = {index: [] for index in range(4)}
    for step in range(1, 125):
        for index in np.flatnonzero(env.step(np.zeros((4, 1), np.float32)).ended):
            ends[int(index)].append(step)
    env.close()
    assert ends == {0: [40, 81, 122], 1: [20, 61, 102], 2: [10, 51, 92], 3: [30, 71, 112]}
