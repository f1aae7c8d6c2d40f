"""Several tasks at once: who plays what, fairness, and the arrivals of environments that change their task."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gymnasium import spaces

from vmpo import suites
from vmpo.config import EnvConfig
from vmpo.errors import UserError
from vmpo.records import ArraySpec, DiscreteActions, EnvSpec
from vmpo.suites import arrivals
from vmpo.suites.multitask import MultiTaskEnv, _common_spec
from vmpo.suites.schedule import TaskSchedule
from vmpo.suites.spaces import action_spec, observation_spec


class Counting:
    """Episodes of a fixed length whose observation is (episode, step) and whose reward is the task's length."""

    def __init__(self, length: int, num_envs: int, width: int = 2, sizes: tuple[int, ...] = (2,)) -> None:
        self.length, self.num_envs = length, num_envs
        self.spec = EnvSpec(
            observation={"observation": ArraySpec(shape=(width,), dtype=np.dtype(np.float32), kind="vector")},
            action=DiscreteActions(sizes=sizes),
            tasks=(f"length-{length}",),
        )
        self.calls = 0
        self.closed = False

    def reset(self, seed):
        self.seed, self.episode, self.t = seed, 0, 0
        self.resetting = np.zeros(self.num_envs, np.bool_)
        return arrivals.opening({"observation": self._observation()}, self.num_envs)

    def step(self, actions):
        assert actions.shape == (self.num_envs, 1)
        self.calls += 1
        self.t += 1
        if self.resetting.any():
            self.episode, self.t = self.episode + 1, 0
        ended = np.full(self.num_envs, self.t == self.length)
        score = np.full(self.num_envs, float(self.length))
        arrival = arrivals.next_step(
            {"observation": self._observation()}, score, ended, np.zeros_like(ended), resetting=self.resetting
        )
        self.resetting = arrival.ended
        return arrival

    def _observation(self):
        return np.tile(np.array([self.episode, self.t], np.float32), (self.num_envs, 1))

    def render(self):
        return np.full((2, 2, 3), self.length, np.uint8)

    def close(self):
        self.closed = True


def make_counting(lengths, num_envs):
    made = []

    def make_task(name, count):
        made.append(Counting(int(name), count))
        return made[-1]

    return MultiTaskEnv(make_task, tuple(map(str, lengths)), num_envs), made


def play(env, steps, seed=0):
    timesteps = [env.reset(seed)]
    history = [(timesteps[0].task.copy(), timesteps[0])]
    for _ in range(steps):
        arrival = env.step(np.zeros((env.num_envs, 1), np.int64))
        history.append((arrival.task.copy(), arrival))
    return history


def test_a_multiple_of_the_tasks_is_dealt_out_and_never_changes():
    env, made = make_counting((3, 5), 4)
    assert env.spec.tasks == ("length-3", "length-5")
    assert len(made) == 2
    for task, _ in play(env, 30):
        assert task.tolist() == [0, 1, 0, 1]


def test_rows_hold_the_arrivals_of_their_own_task():
    env, _ = make_counting((3, 5), 4)
    env.reset(0)
    for t in range(1, 4):
        arrival = env.step(np.zeros((4, 1), np.int64))
        assert arrival.observation["observation"][:, 1].tolist() == [t] * 4
    assert arrival.ended.tolist() == [True, False, True, False]
    assert arrival.reward.tolist() == [3.0, 5.0, 3.0, 5.0]
    assert arrival.discount.tolist() == [0.0, 1.0, 0.0, 1.0]
    arrival = env.step(np.zeros((4, 1), np.int64))
    assert arrival.first.tolist() == [True, False, True, False]
    assert arrival.valid.tolist() == [False, True, False, True]
    assert arrival.reward.tolist() == [0.0, 5.0, 0.0, 5.0]


@pytest.mark.parametrize(("lengths", "num_envs"), [((3, 40), 3), ((2, 7, 31, 5), 3), ((2, 30, 4), 7)])
def test_tasks_get_equal_agent_steps_however_long_their_episodes_are(lengths, num_envs):
    env, _ = make_counting(lengths, num_envs)
    counts = np.zeros(len(lengths))
    for task, _ in play(env, 3000)[1:]:
        counts += np.bincount(task, minlength=len(lengths))
    # Equal up to an episode of each environment.
    assert counts.max() - counts.min() <= 2 * max(lengths)
    assert counts.sum() == 3000 * num_envs


def test_a_task_changes_only_between_episodes():
    env, _ = make_counting((2, 9, 4), 2)
    history = play(env, 200)
    changes = 0
    for (before, last), (after, arrival) in itertools.pairwise(history):
        changed = before != after
        changes += changed.sum()
        assert last.ended[changed].all()
        assert arrival.first[changed].all()
        assert not arrival.valid[changed].any()
        assert (arrival.reward[changed] == 0.0).all()
    assert changes > 20


def test_a_sleeping_environment_goes_on_with_its_next_episode():
    env, _ = make_counting((2, 3), 1)
    episodes = {0: [], 1: []}
    for task, arrival in play(env, 60):
        if arrival.first[0]:
            episodes[int(task[0])].append(int(arrival.observation["observation"][0, 0]))
    for played in episodes.values():
        assert len(played) > 5


def test_every_group_has_a_seed_of_its_own():
    env, made = make_counting((3, 5, 7), 4)
    play(env, 30, seed=7)
    seeds = [task.seed for task in made if hasattr(task, "seed")]
    assert len(set(seeds)) == len(seeds) >= 5


def test_environments_that_differ_are_refused_by_name():
    def make_task(name, count):
        return Counting(int(name), count, width=2 if name == "3" else 4)

    with pytest.raises(UserError, match="length-3 and length-5 differ in their observations"):
        MultiTaskEnv(make_task, ("3", "5"), 2)

    def make_other_actions(name, count):
        return Counting(int(name), count, sizes=(2,) if name == "3" else (3,))

    with pytest.raises(UserError, match="full-action-set"):
        MultiTaskEnv(make_other_actions, ("3", "5"), 2)


def test_a_refused_group_leaves_nothing_open():
    made = []

    def make_task(name, count):
        made.append(Counting(int(name), count, width=int(name)))
        return made[-1]

    with pytest.raises(UserError):
        MultiTaskEnv(make_task, ("3", "5"), 2)
    assert all(task.closed for task in made)


def test_a_task_named_twice_is_refused():
    with pytest.raises(UserError, match="named twice"):
        make_counting((3, 3), 2)


def test_environments_that_reset_in_their_last_step_may_not_rotate():
    class SameStep(Counting):
        def step(self, actions):
            arrival = super().step(actions)
            return arrivals.same_step(arrival.observation, arrival.score, arrival.ended, np.zeros_like(arrival.ended))

    env = MultiTaskEnv(lambda name, count: SameStep(int(name), count), ("2", "3"), 1)
    with pytest.raises(UserError, match="multiple of 2 tasks"):
        play(env, 10)


def test_the_schedule_counts_what_was_played():
    schedule = TaskSchedule(2, 3)
    for _ in range(5):
        schedule.count()
    assert schedule.agent_steps.tolist() == [10, 5]
    assert schedule.next_task(2) == 1
    assert schedule.next_task(0) == 0


def test_ids_are_split_at_commas_and_suites_are_known_by_name():
    def ids(suite, name):
        return suites.task_ids(EnvConfig(suite=suite, id=name))

    assert ids("atari", "pong, breakout") == ("pong", "breakout")
    assert len(ids("atari", "atari57")) == 57
    assert len(ids("lab", "dmlab30")) == 30
    assert ids("miniworld", "all:blank") == ids("miniworld", "all")
    with pytest.raises(UserError, match="comma too many"):
        ids("atari", "pong,")


def test_two_games_are_played_as_the_simulator_plays_them():
    pytest.importorskip("ale_py")
    config = EnvConfig(suite="atari", id="pong,breakout", full_action_set=True, max_frames=400)
    env = suites.make(config, 4, seed=0)
    try:
        assert env.spec.tasks == ("pong", "breakout")
        seeds = arrivals.env_seeds(3, 2)
        alone = []
        for name, seed in zip(("pong", "breakout"), seeds, strict=True):
            single = EnvConfig(suite="atari", id=name, full_action_set=True, max_frames=400)
            alone.append(suites.make(single, 2, seed=0))
            alone[-1].reset(seed)
        env.reset(3)
        actions = np.random.default_rng(0).integers(18, size=(120, 4, 1))
        for step in actions:
            both = env.step(step)
            for task, single in enumerate(alone):
                arrival = single.step(step[task::2])
                np.testing.assert_array_equal(both.observation["pixels"][task::2], arrival.observation["pixels"])
                for name in ("reward", "discount", "first", "valid", "ended", "score"):
                    np.testing.assert_array_equal(getattr(both, name)[task::2], getattr(arrival, name))
                assert (both.task[task::2] == task).all()
    finally:
        env.close()
        for single in alone:
            single.close()


def test_tasks_that_differ_only_in_what_their_environments_give_and_take_have_no_common_form() -> None:
    def spec(name: str, start: int) -> EnvSpec:
        choices = spaces.Discrete(3, start=start)
        return EnvSpec(observation=observation_spec(choices), action=action_spec(choices), tasks=(name,))

    alike = _common_spec([spec("a", 1), spec("b", 1)])
    assert alike.action.form == spec("a", 1).action.form is not None
    assert alike.observation["observation"].form is not None
    other = _common_spec([spec("a", 1), spec("b", 2)])
    assert (other.action.form, other.observation["observation"].form) == (None, None)
    assert other.tasks == ("a", "b")
