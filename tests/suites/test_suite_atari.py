"""Atari must follow the paper's protocol exactly: what ends, what is discounted, what is clipped, what is counted."""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vmpo
from vmpo.config import EnvConfig
from vmpo.errors import UserError
from vmpo.records import DiscreteActions, Timestep
from vmpo.suites import make as make_suite
from vmpo.suites.arrivals import env_seeds
from vmpo.suites.atari import AtariEnv, rom_name

pytest.importorskip("ale_py")

NOOP, FIRE = 0, 1


@functools.cache
def make(game: str = "breakout", num_envs: int = 2, render: bool = False, **options: Any) -> AtariEnv:
    """Environments are kept and reset: the ALE takes a tenth of a second to load one."""
    env = make_suite(EnvConfig(suite="atari", id=game, **options), num_envs, seed=0, render=render)
    assert isinstance(env, AtariEnv)
    return env


def play(env: AtariEnv, steps: int, seed: int = 0, action: int | None = None) -> list[Timestep]:
    """The arrivals of a reset and so many steps of random play, or of one action over and over."""
    assert isinstance(env.spec.action, DiscreteActions)
    generator = np.random.default_rng(0)
    chosen = generator.integers(env.spec.action.sizes[0], size=(steps, env.num_envs, 1))
    if action is not None:
        chosen[:] = action
    return [env.reset(seed), *(env.step(actions) for actions in chosen)]


def stack(arrivals: list[Timestep], field: str) -> np.ndarray:
    return np.stack([getattr(arrival, field) for arrival in arrivals])


def frames(arrival: Timestep) -> np.ndarray:
    return arrival.observation["pixels"]


def test_all_57_games_of_the_paper_are_known_by_their_names_in_the_table() -> None:
    with open(Path(vmpo.__file__).parent / "data" / "atari57.csv", newline="") as file:
        games = [row["game"] for row in csv.DictReader(file)]
    assert len(games) == 57
    assert [rom_name(game) for game in games] == games


@pytest.mark.parametrize(
    ("spelling", "game"),
    [("Pong", "pong"), ("ms_pacman", "ms_pacman"), ("MsPacman", "ms_pacman"), ("UpNDown", "up_n_down")],
)
def test_games_are_known_by_their_usual_spellings(spelling: str, game: str) -> None:
    assert rom_name(spelling) == game


def test_an_unknown_game_is_answered_by_the_closest() -> None:
    with pytest.raises(UserError, match=r"unknown Atari game 'Brekout'; did you mean 'breakout'\?"):
        make("Brekout")


def test_the_specification_is_that_of_the_paper() -> None:
    env = make("MsPacman", num_envs=2)
    pixels = env.spec.observation["pixels"]
    assert (pixels.shape, pixels.dtype, pixels.kind, pixels.layout) == ((4, 84, 84), np.uint8, "pixels", "CHW")
    assert env.spec.tasks == ("ms_pacman",)
    assert env.spec.action_repeat == 4
    opening = env.reset(0)
    assert frames(opening).shape == (2, 4, 84, 84)
    assert opening.first.all()
    assert not opening.valid.any()
    assert not opening.ended.any()
    assert (opening.discount == 1).all()
    assert (opening.reward == 0).all()


def test_the_full_action_set_has_18_actions_and_the_minimal_one_those_of_the_game() -> None:
    assert make("breakout").spec.action == DiscreteActions(sizes=(4,))
    assert make("breakout", full_action_set=True).spec.action == DiscreteActions(sizes=(18,))


@pytest.mark.parametrize(("action", "without_fire"), [(1, 0), (11, 3), (17, 9)])
def test_the_full_action_set_of_skiing_which_has_no_fire_moves_without_it(action: int, without_fire: int) -> None:
    env = make("skiing", full_action_set=True)
    assert env.spec.action == DiscreteActions(sizes=(18,))
    fired, moved, stood = (stack(play(env, 20, action=a), "observation") for a in (action, without_fire, 0))
    for one, other in zip(fired, moved, strict=True):
        assert np.array_equal(one["pixels"], other["pixels"])
    assert without_fire == 0 or not np.array_equal(moved[-1]["pixels"], stood[-1]["pixels"])


def test_the_frame_limit_counts_frames_and_truncates() -> None:
    arrivals = play(make(max_frames=40), 12)
    ended = stack(arrivals, "ended")
    assert np.flatnonzero(ended[:, 0]).tolist() == [10], "40 frames are 10 steps of 4 frames"
    assert ended[10].all()
    assert (arrivals[10].discount == 1).all()
    assert arrivals[10].valid.all()
    assert not arrivals[10].first.any()
    assert arrivals[11].first.all()
    assert not arrivals[11].valid.any()
    assert not arrivals[12].first.any()


def test_max_episode_steps_counts_agent_steps() -> None:
    ended = stack(play(make(max_episode_steps=7), 8), "ended")
    assert np.flatnonzero(ended[:, 0]).tolist() == [7]


def test_a_final_observation_is_delivered_before_the_reset() -> None:
    arrivals = play(make(max_frames=40), 11)
    final, first = frames(arrivals[10]), frames(arrivals[11])
    assert (final[:, :3] == frames(arrivals[9])[:, 1:]).all(), "the stack slides by one frame up to the end"
    assert not (first[:, :3]).any(), "a new episode has no frames before its first"
    assert first[:, 3].any()


def test_the_call_after_an_end_ignores_its_action() -> None:
    def last_frames(step: int, action: int) -> np.ndarray:
        env = make("pong", max_frames=40)
        env.reset(0)
        for t in range(1, 20):
            arrival = env.step(np.full((2, 1), action if t == step else NOOP))
        return frames(arrival)

    right = 2
    assert (last_frames(11, right) == last_frames(11, NOOP)).all(), "step 11 resets"
    assert (last_frames(13, right) != last_frames(13, NOOP)).any(), "step 13 plays"


def test_a_game_over_has_discount_0_and_ends_the_episode() -> None:
    arrivals = play(make(), 400)
    ended, discount = stack(arrivals, "ended"), stack(arrivals, "discount")
    assert ended.sum() >= 2, "random play loses five balls within 400 steps"
    assert (discount == np.where(ended, 0.0, 1.0)).all()
    first, valid = stack(arrivals, "first"), stack(arrivals, "valid")
    assert (first[1:] == ended[:-1]).all()
    assert (valid == ~first).all()


@pytest.mark.parametrize("life_loss_discount", [0.0, 0.5])
def test_a_lost_life_is_discounted_while_the_game_goes_on(life_loss_discount: float) -> None:
    plain, lossy = play(make(), 400), play(make(life_loss_discount=life_loss_discount), 400)
    for field in ("score", "reward", "first", "valid", "ended"):
        np.testing.assert_array_equal(stack(plain, field), stack(lossy, field))
    ended, discount = stack(lossy, "ended"), stack(lossy, "discount")
    assert (discount[ended] == 0).all()
    for index in range(2):
        end = np.flatnonzero(ended[:, index])[0]
        lost = (discount[: end + 1, index] == life_loss_discount) & ~ended[: end + 1, index]
        assert lost.sum() == 4, "the fifth ball of Breakout is the end of the game"


def test_rewards_are_clipped_on_request_and_scores_never() -> None:
    clipped, plain = play(make("asterix", clip_rewards=True), 150), play(make("asterix"), 150)
    score = stack(clipped, "score")
    assert score.max() >= 50
    np.testing.assert_array_equal(score, stack(plain, "reward"))
    np.testing.assert_array_equal(stack(clipped, "reward"), np.minimum(score, 1.0))


def test_episodes_start_by_up_to_30_random_no_ops() -> None:
    def counts(episodes: int, **options: Any) -> set[int]:
        """No-ops of so many episodes of one step of 4 frames each; only the simulator's info tells them."""
        env = make(max_frames=4, **options)
        env.reset(0)
        infos = [env._ale.step(np.zeros(2, np.int64))[4] for _ in range(2 * episodes)]
        return {int(number) - 4 for info in infos[::2] for number in info["episode_frame_number"]}

    some = counts(100)
    assert (min(some), max(some)) == (0, 30)
    assert counts(3, noop_max=0) == {0}


def test_neighbouring_seeds_share_no_environments() -> None:
    starts = [frames(make("ms_pacman", num_envs=4).reset(seed)) for seed in (0, 1)]
    assert (starts[0][1:] != starts[1][:-1]).any()
    assert not set(env_seeds(0, 64)) & set(env_seeds(1, 64))


def test_the_same_seed_and_actions_give_the_same_stream() -> None:
    first, second, other = (play(make("ms_pacman", sticky_actions=0.25), 60, seed=seed) for seed in (3, 3, 4))
    assert (frames(first[-1]) == frames(second[-1])).all()
    np.testing.assert_array_equal(stack(first, "score"), stack(second, "score"))
    assert (frames(first[-1]) != frames(other[-1])).any()
    assert (frames(first[-1])[0] != frames(first[-1])[1]).any()


def test_sticky_actions_repeat_what_was_done_before() -> None:
    plain, sticky = (frames(play(make("pong", sticky_actions=p), 30)[-1]) for p in (0.0, 0.9))
    assert (plain != sticky).any()


def test_no_fire_is_pressed_for_the_agent() -> None:
    waiting = make(life_loss_discount=0.0)
    assert (stack(play(waiting, 150, action=NOOP), "discount") == 1).all(), "without FIRE no ball is ever lost"
    assert (stack(play(waiting, 150, action=FIRE), "discount") == 0).any()


def test_observations_stay_untouched_by_the_next_call() -> None:
    env = make()
    before = frames(env.reset(0))
    copy = before.copy()
    env.step(np.full((2, 1), FIRE))
    assert (before == copy).all()


def test_the_picture_is_the_game_of_environment_0_in_colour() -> None:
    env = make("breakout", max_frames=120, render=True)
    for arrival in play(env, 70)[-1:]:
        picture = env.render()
        assert picture.shape == (210, 160, 3)
        assert picture.dtype == np.uint8
        assert picture.std(axis=2).any(), "no colours"
        # The same scene as the agent's, row by row, up to the resizing.
        rows = np.interp(np.linspace(0, 1, 84), np.linspace(0, 1, 210), picture.mean(axis=(1, 2)))
        assert np.corrcoef(rows, frames(arrival)[0, -1].mean(axis=1))[0, 1] > 0.95
    colour, gray = env._colour.step(np.zeros(1, np.int64))[4], env._ale.step(np.zeros(2, np.int64))[4]
    assert colour["episode_frame_number"][0] == gray["episode_frame_number"][0]


def test_without_rendering_the_picture_is_what_the_agent_sees() -> None:
    env = make()
    newest = frames(env.reset(0))[0, -1]
    assert (env.render() == newest[:, :, None]).all()
    assert env.render().shape == (84, 84, 3)
