"""Environments in worker processes must keep the contract of arrivals, share tasks fairly and fail with their cause."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulators import Ticking, ticking_spec

from vmpo.errors import MAIN_HINT, UserError
from vmpo.records import Timestep
from vmpo.suites.arrivals import first_limits
from vmpo.suites.schedule import TaskSchedule
from vmpo.suites.workers import WorkerEnv, WorkerFault

Make = Callable[..., WorkerEnv]


@pytest.fixture
def make() -> Iterator[Make]:
    """Build environments that are closed after the test."""
    made: list[WorkerEnv] = []

    def make(*tasks: str, num_envs: int = 0, workers: int = 1, **options: Any) -> WorkerEnv:
        env = WorkerEnv(Ticking, ticking_spec(tasks), num_envs or len(tasks), workers=workers, **options)
        made.append(env)
        return env

    yield make
    for env in made:
        env.close()


def play(env: WorkerEnv, steps: int, seed: int = 0, action: int = 0) -> dict[str, np.ndarray]:
    """The fields of a reset and so many steps, each ``[steps + 1, B]``; clock, number and draw are observed."""
    arrivals = [_copy(env.reset(seed))]
    for _ in range(steps):
        arrivals.append(_copy(env.step(np.full((env.num_envs, 1), action))))
    return {name: np.stack([arrival[name] for arrival in arrivals]) for name in arrivals[0]}


def _copy(arrival: Timestep) -> dict[str, np.ndarray]:
    clock, number, draw = arrival.observation["clock"].T.copy()
    fields = ("reward", "discount", "first", "valid", "task", "score", "ended")
    return {"clock": clock, "number": number, "draw": draw} | {name: getattr(arrival, name) for name in fields}


def children() -> set[int]:
    return {process.pid for process in multiprocessing.active_children() if process.pid is not None}


def test_a_final_observation_is_a_timestep_of_its_own_and_the_call_after_it_resets(make: Make) -> None:
    env = make("terminate 3", "truncate 2", "both 4", workers=2)
    played = play(env, 8, action=1)
    columns = {name: values.T.tolist() for name, values in played.items()}
    assert columns["clock"] == [[0, 1, 2, 3, 0, 1, 2, 3, 0], [0, 1, 2, 0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 4, 0, 1, 2, 3]]
    ends = [[3, 7], [2, 5, 8], [4]]
    assert [np.flatnonzero(column).tolist() for column in played["ended"].T] == ends
    assert [np.flatnonzero(column).tolist() for column in played["first"].T] == [[0, 4, 8], [0, 3, 6], [0, 5]]
    assert (played["valid"] == ~played["first"]).all()
    assert [np.flatnonzero(column == 0).tolist() for column in played["discount"].T] == [[3, 7], [], [4]]
    # The action reaches the simulator, and a reset earns nothing.
    assert (played["score"] == np.where(played["first"], 0, played["clock"] + 10)).all()
    assert (played["reward"] == played["score"]).all()
    assert played["reward"].dtype == played["discount"].dtype == np.float32
    np.testing.assert_array_equal(env.render(), np.zeros((4, 5, 3)), err_msg="a picture of environment 0")


def test_a_time_limit_truncates_and_leaves_a_termination_in_its_step_alone(make: Make) -> None:
    played = play(make("terminate 99", "terminate 4", "truncate 3", max_episode_steps=4), 9)
    assert [np.flatnonzero(column).tolist() for column in played["ended"].T] == [[4, 9], [4, 9], [3, 7]]
    assert [np.flatnonzero(column == 0).tolist() for column in played["discount"].T] == [[], [4, 9], []]
    assert played["clock"].max() == 4


def test_staggered_environments_are_spread_over_the_episode(make: Make) -> None:
    env = make("truncate 8", num_envs=4, first_limits=first_limits(4, 8))
    for _ in range(2):
        played = play(env, 27)
        ends = [np.flatnonzero(column).tolist() for column in played["ended"].T]
        assert ends == [[8, 17, 26], [4, 13, 22], [2, 11, 20], [6, 15, 24]]
        assert (played["discount"] == 1).all()


def test_a_stagger_does_not_make_a_truncation_of_a_termination(make: Make) -> None:
    played = play(make("terminate 2", first_limits=np.array([2])), 2)
    assert played["ended"][2, 0]
    assert played["discount"][2, 0] == 0


def test_the_same_seed_gives_the_same_stream_whatever_the_workers(make: Make) -> None:
    one, two = make("terminate 3", "truncate 5", num_envs=3), make("terminate 3", "truncate 5", num_envs=3, workers=2)
    first, other, again, apart = (play(env, 12, seed) for env, seed in ((one, 0), (one, 1), (one, 0), (two, 0)))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name], err_msg=name)
        np.testing.assert_array_equal(first[name], apart[name], err_msg=name)
    draws = np.concatenate([played["draw"][played["first"]] for played in (first, other)])
    assert len(np.unique(draws)) == len(draws), "every episode of every environment has a draw of its own"


@pytest.mark.parametrize(
    ("lengths", "num_envs"),
    [
        ((10, 100), 1),
        ((10, 100), 3),
        ((10, 30, 100), 2),
        ((100, 10, 10, 10), 7),
        (tuple(10 if task % 2 else 100 for task in range(57)), 8),
    ],
)
def test_rotating_tasks_get_the_same_agent_steps_though_their_episodes_differ(
    lengths: tuple[int, ...], num_envs: int
) -> None:
    schedule = TaskSchedule(len(lengths), num_envs)
    remaining = np.array([lengths[task] for task in schedule.assigned])
    counted = np.zeros(len(lengths), np.int64)
    for _ in range(30_000):
        for env_index in np.flatnonzero(remaining == 0):
            remaining[env_index] = lengths[schedule.next_task(int(env_index))]
        schedule.count()
        np.add.at(counted, schedule.assigned, 1)
        remaining -= 1
    assert (schedule.agent_steps == counted).all()
    # No task is ahead by more than the longest episodes that two environments may just have played.
    assert np.ptp(counted) <= 2 * max(lengths)
    assert counted.sum() == 30_000 * num_envs


@pytest.mark.parametrize("num_envs", [3, 6])
def test_nothing_changes_where_the_environments_are_a_multiple_of_the_tasks(num_envs: int) -> None:
    schedule = TaskSchedule(3, num_envs)
    for step in range(50):
        schedule.count()
        assert schedule.next_task(step % num_envs) == step % num_envs % 3
    assert (schedule.agent_steps == 50 * num_envs // 3).all()


def test_a_worker_plays_the_task_that_it_is_given(make: Make) -> None:
    played = play(make("terminate 2", "terminate 20", num_envs=3, workers=2), 400)
    assert (played["number"] == np.array([2, 20])[played["task"]]).all()
    assert (played["task"][:, :2] == [0, 1]).all(), "the first two keep their task"
    changes = np.flatnonzero(np.diff(played["task"][:, 2]))
    assert len(changes) > 10
    assert played["first"][changes + 1, 2].all(), "a task changes at the start of an episode only"
    assert abs(np.sum(played["task"][1:] == 0) - np.sum(played["task"][1:] == 1)) <= 2 * 20


def test_an_exception_arrives_with_its_cause_and_other_workers_stay_in_step(make: Make) -> None:
    env = make("raise 2", "terminate 9", workers=2)
    env.reset(0)
    env.step(np.zeros((2, 1)))
    with pytest.raises(WorkerFault, match=r"(?s)environments 0 to 0 failed.*RuntimeError: the spring broke at step 2"):
        env.step(np.zeros((2, 1)))
    assert not any(worker._connection.poll(0.2) for worker in env._workers), "no answer is left for the next call"
    opening = env.reset(0)
    assert opening.observation["clock"][:, 0].tolist() == [0, 0]
    assert env.step(np.zeros((2, 1))).observation["clock"][:, 0].tolist() == [1, 1]


def test_a_users_mistake_stays_one(make: Make) -> None:
    with pytest.raises(UserError, match=r"^step 0 is not allowed$"):
        make("complain 0").reset(0)


def test_a_killed_worker_is_named_by_its_environments_and_close_leaves_no_process(make: Make) -> None:
    before = children()
    env = make("terminate 9", num_envs=3, workers=2)
    env.reset(0)
    started = children() - before
    assert len(started) == 2
    killed = env._workers[1]._process.pid
    assert killed in started
    os.kill(killed, signal.SIGKILL)
    with pytest.raises(WorkerFault, match="the process of environments 2 to 2 ended with code -9"):
        env.step(np.zeros((3, 1)))
    env.close()
    env.close()
    assert not children() & started
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_worker_that_hangs_is_named_and_close_still_ends_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make("terminate 9", "hang 2", workers=2)
    env.reset(0)
    env.step(np.zeros((2, 1)))
    monkeypatch.setattr("vmpo.suites.workers.PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr("vmpo.suites.workers.CLOSE_SECONDS", 0.5)
    with pytest.raises(TimeoutError, match="environments 1 to 1 did not answer within 1 s"):
        env.step(np.zeros((2, 1)))
    started = [worker._process for worker in env._workers]
    env.close()
    assert not any(process.is_alive() for process in started)


def test_a_script_without_a_main_guard_is_told_what_to_do(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from vmpo import suites\n"
        "from vmpo.config import EnvConfig\n"
        "suites.make(EnvConfig(id='CartPole-v1', simulator_threads=2), 2, seed=0).reset(0)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(MAIN_HINT)
