"""The lab that runs here must keep deepmind_lab's rules, and its levels must ask for what they say they ask for."""

from __future__ import annotations

import functools
import importlib.util
import math
import sys
from collections.abc import Iterator

import miniworld_players
import numpy as np
import pytest

from vmpo.config import EnvConfig
from vmpo.errors import UserError
from vmpo.suites import make as make_suite
from vmpo.suites import miniworld, miniworld_drawing
from vmpo.suites.lab import ACTIONS
from vmpo.suites.miniworld_game import Game
from vmpo.suites.miniworld_levels import LEVELS, Thing, Trial
from vmpo.suites.words import hash_words


@functools.cache
def why_nothing_can_be_drawn() -> str:
    try:
        miniworld_drawing.open_context()
    except UserError as error:
        return str(error)
    return ""


@pytest.fixture
def _drawing() -> None:
    if why_nothing_can_be_drawn():
        pytest.skip(why_nothing_can_be_drawn())


needs_drawing = pytest.mark.usefixtures("_drawing")

FORWARD, TURN_RIGHT, NOTHING = (np.array(ACTIONS[i], np.intc) for i in (0, 5, 14))
SIZE = {"width": "96", "height": "72"}


@functools.cache
def lab(level: str) -> miniworld.Lab:
    return miniworld.Lab(level, ["RGB_INTERLEAVED", "INSTR"], config=SIZE)


def trials(level: str, count: int, seed: int = 0) -> list[Trial]:
    episode = LEVELS[level].trials(np.random.default_rng(seed))
    return [next(episode) for _ in range(count)]


def games(level: str, count: int) -> Iterator[Game]:
    for seed in range(count):
        game = Game(LEVELS[level])
        game.reset(np.random.default_rng(seed))
        yield game


def touch(game: Game, thing: Thing) -> float:
    game.x, game.z = thing.x, thing.z
    return game.frame(NOTHING.tolist())


@needs_drawing
def test_a_lab_refuses_what_deepmind_lab_refuses() -> None:
    with pytest.raises(UserError, match="did you mean 'choose_colour'"):
        miniworld.Lab("choose_color", ["INSTR"], config=SIZE)
    with pytest.raises(ValueError, match="unknown observation"):
        miniworld.Lab("choose_colour", ["DEPTH"], config=SIZE)
    with pytest.raises(TypeError, match="strings to strings"):
        miniworld.Lab("choose_colour", ["INSTR"], config={"width": 96})  # type: ignore[dict-item]
    with pytest.raises(RuntimeError, match="renderer"):
        miniworld.Lab("choose_colour", ["INSTR"], config=SIZE, renderer="fast")
    opened = miniworld.Lab("choose_colour", ["INSTR"], config=SIZE)
    assert not opened.is_running()
    with pytest.raises(RuntimeError, match="reset comes before"):
        opened.step(FORWARD)
    with pytest.raises(RuntimeError, match="nothing to observe"):
        opened.observations()
    opened.reset(seed=1)
    assert list(opened.observations()) == ["INSTR"]
    for wrong in (FORWARD.astype(np.int64), FORWARD[:5], 600 * FORWARD):
        with pytest.raises(ValueError, match="action"):
            opened.step(wrong)
    with pytest.raises(TypeError):
        opened.step(FORWARD.tolist())  # type: ignore[arg-type]
    assert opened.close()
    assert not opened.close()
    assert not opened.is_running()
    with pytest.raises(RuntimeError):
        opened.reset(seed=1)


@needs_drawing
@pytest.mark.parametrize("level", LEVELS)
def test_an_episode_has_a_fixed_length_and_shows_nothing_after_its_end(level: str) -> None:
    played = lab(level)
    played.reset(seed=3)
    steps = LEVELS[level].episode_frames // 4
    for _ in range(steps - 1):
        played.step(FORWARD, num_steps=4)
    assert played.is_running()
    played.step(FORWARD, num_steps=3)
    assert played.is_running()
    played.step(FORWARD, num_steps=4)
    assert not played.is_running()
    with pytest.raises(RuntimeError):
        played.observations()
    with pytest.raises(RuntimeError):
        played.step(FORWARD)
    assert 150 <= steps <= 450


@needs_drawing
@pytest.mark.parametrize("level", LEVELS)
def test_a_seed_decides_the_episode_and_pictures_follow_the_agent(level: str) -> None:
    played, pictures, texts = lab(level), [], []
    actions = np.array(ACTIONS, np.intc)[np.random.default_rng(0).integers(len(ACTIONS), size=20)]
    for seed in (5, 5, 6):
        played.reset(seed=seed)
        seen = [played.observations()]
        rewards = []
        for action in actions:
            rewards.append(played.step(action, num_steps=4))
            seen.append(played.observations())
        pictures.append(np.stack([s["RGB_INTERLEAVED"] for s in seen]))
        texts.append(([s["INSTR"] for s in seen], rewards))
    assert pictures[0].shape == (21, 72, 96, 3)
    assert pictures[0].dtype == np.uint8
    np.testing.assert_array_equal(pictures[0], pictures[1])
    assert texts[0] == texts[1]
    assert (pictures[0] != pictures[2]).any()
    played.reset(seed=5)
    before = played.observations()["RGB_INTERLEAVED"]
    np.testing.assert_array_equal(before, played.observations()["RGB_INTERLEAVED"])
    played.step(TURN_RIGHT, num_steps=4)
    assert np.abs(before.astype(int) - played.observations()["RGB_INTERLEAVED"]).mean() > 1
    assert before.std() > 10


@needs_drawing
def test_levels_in_one_process_do_not_draw_into_each_other() -> None:
    alone = {}
    for level in LEVELS:
        lab(level).reset(seed=9)
        alone[level] = lab(level).observations()["RGB_INTERLEAVED"]
    twin = miniworld.Lab("choose_colour", ["RGB_INTERLEAVED"], config=SIZE)
    twin.close()
    for level in reversed(LEVELS):
        np.testing.assert_array_equal(lab(level).observations()["RGB_INTERLEAVED"], alone[level])
    assert len({picture.tobytes() for picture in alone.values()}) == len(LEVELS)


@needs_drawing
def test_a_held_out_lab_plays_other_episodes_of_the_same_seed() -> None:
    other = miniworld.Lab("choose_colour", ["INSTR"], config={**SIZE, "mixerSeed": "7"})
    lab("choose_colour").reset(seed=1)
    other.reset(seed=1)
    assert other.game.trial != lab("choose_colour").game.trial


def test_looking_and_walking_have_the_speed_of_a_lab() -> None:
    game = next(games("collect_balls", 1))
    game.things = []
    game.x, game.z, game.heading = 3.5, 3.5, math.pi / 2
    for _ in range(4):
        game.frame(ACTIONS[0])
    assert (game.x, game.z) == pytest.approx((3.5, 3.1))
    for action, degrees in ((5, 82.5), (7, 37.5), (4, 45.0), (6, 90.0)):
        for _ in range(4):
            game.frame(ACTIONS[action])
        assert math.degrees(game.heading) == pytest.approx(degrees)
    for _ in range(4):
        game.frame(ACTIONS[3])
    assert (game.x, game.z) == pytest.approx((3.9, 3.1))
    for _ in range(200):
        game.frame(ACTIONS[12])
        assert not game.level.blocked(game.x, game.z)


def columns(picture: np.ndarray, colour: str) -> np.ndarray:
    """Columns of a picture's pixels of this colour."""
    channel = ("red", "green", "blue").index(colour)
    others = np.delete(picture.astype(int), channel, axis=-1).max(-1)
    return np.nonzero(picture[..., channel] - others > 100)[1]


@needs_drawing
def test_pictures_agree_with_the_map_and_turn_with_the_agent() -> None:
    played = lab("choose_colour")
    for seed in range(6):
        played.reset(seed=seed)
        before = played.observations()["RGB_INTERLEAVED"]
        played.step(TURN_RIGHT, num_steps=4)
        after = played.observations()["RGB_INTERLEAVED"]
        left, right = sorted(played.game.things, key=lambda thing: thing.x)
        assert columns(before, left.colour).mean() < 48 < columns(before, right.colour).mean()
        # What is ahead moves to the left; a thing at the picture's edge is cut, hence the inner edges.
        assert columns(after, left.colour).max(initial=0) < columns(before, left.colour).max() - 3
        assert columns(after, right.colour).min() < columns(before, right.colour).min() - 3


@pytest.mark.parametrize("level", ["choose_colour", "choose_shape"])
def test_the_instruction_names_the_thing_that_pays(level: str) -> None:
    full = {"choose_colour": 1.0, "choose_shape": 10.0}[level]
    asked, sides = set(), []
    for game in games(level, 60):
        named = [
            t
            for t in game.things
            if (t.colour if level == "choose_colour" else t.shape) in game.trial.instruction.split()
        ]
        assert len(named) == 1
        other = next(t for t in game.things if t is not named[0])
        assert (other.shape == named[0].shape) == (level == "choose_colour")
        assert (other.colour == named[0].colour) == (level == "choose_shape")
        asked.add(game.trial.instruction)
        sides.append(named[0].x < other.x)
        first = game.trial
        assert touch(game, named[0]) == full
        assert game.trial is not first
        wrong = next(t for t in game.things if t.reward < 0)
        assert touch(game, wrong) == -full
    assert len(asked) == 3
    assert len({tuple(hash_words(text)) for text in asked}) == 3
    assert 0.3 < np.mean(sides) < 0.7


def test_the_sign_decides_the_arm_that_pays_and_nothing_else_does() -> None:
    seen = set()
    for trial in trials("remember_sign", 40):
        left, right, sign = trial.things
        assert left.x < right.x
        assert (left.shape, left.colour, left.z) == (right.shape, right.colour, right.z)
        assert trial.instruction == "follow the sign"
        assert (left.reward, right.reward) == ((5.0, -2.5) if sign.colour == "red" else (-2.5, 5.0))
        seen.add(sign.colour)
    assert seen == {"red", "blue"}
    for game in games("remember_sign", 4):
        first, sign = game.trial, game.things[2]
        assert touch(game, sign) == 0.0
        assert game.trial is first
        assert touch(game, game.things[0]) == first.things[0].reward
        assert game.trial is not first


@needs_drawing
def test_the_sign_is_seen_at_the_start_but_from_nowhere_at_the_junction() -> None:
    played = lab("remember_sign")
    played.reset(seed=0)
    game = played.game
    *boxes, sign = game.things

    def sign_shows() -> bool:
        pictures = []
        for game.things in ([*boxes, sign], boxes):
            pictures.append(played.observations()["RGB_INTERLEAVED"])
        return bool((pictures[0] != pictures[1]).any())

    assert sign_shows()
    size = game.level.cell
    for x in (3 * size + 0.25, 3.5 * size, 4 * size - 0.25):
        for z in (size + 0.25, 1.5 * size, 2 * size):
            assert not game.level.blocked(x, z)
            game.x, game.z = x, z
            for degrees in range(0, 360, 45):
                game.heading = math.radians(degrees)
                assert not sign_shows()
    game.x, game.z, game.heading = game.trial.x, game.trial.z, game.trial.heading
    assert sign_shows()


def test_balls_pay_or_cost_and_lie_anew_once_the_good_ones_are_gone() -> None:
    for game in games("collect_balls", 5):
        first = game.trial
        assert sorted(t.colour for t in game.things) == ["green"] * 4 + ["red"] * 3
        assert touch(game, next(t for t in game.things if t.colour == "red")) == -0.2
        assert len(game.things) == 6
        for ball in [t for t in game.things if t.colour == "green"]:
            assert game.trial is first
            assert touch(game, ball) == 0.2
        assert game.trial is not first


def test_the_goal_of_an_exploration_stays_where_it_is_for_the_episode() -> None:
    places = set()
    for seed in range(12):
        episode = trials("explore_rooms", 6, seed)
        assert len({trial.things[0] for trial in episode}) == 1
        assert len({(trial.x, trial.z) for trial in episode}) > 1
        goal = episode[0].things[0]
        assert goal.reward == 20.0
        assert all(math.dist((goal.x, goal.z), (trial.x, trial.z)) > 1.0 for trial in episode)
        places.add((goal.x, goal.z))
    assert len(places) > 3


@pytest.mark.parametrize(
    ("level", "full", "share"),
    [("choose_colour", 1.0, 0.0), ("choose_shape", 10.0, 0.0), ("remember_sign", 5.0, 0.25)],
)
def test_who_does_not_know_gets_little_of_what_is_to_be_had(level: str, full: float, share: float) -> None:
    """Half the choices pay; the others cost as much where an instruction tells, and half as much where a sign does."""
    informed = np.mean(miniworld_players.returns(level, miniworld_players.informed, 3))
    uninformed = np.mean(miniworld_players.returns(level, miniworld_players.uninformed, 12))
    assert informed > 20 * full
    assert uninformed == pytest.approx(share * informed, abs=0.17 * informed)


@pytest.mark.parametrize("level", ["choose_colour", "choose_shape"])
def test_an_instruction_alone_tells_something_and_a_picture_alone_nothing(level: str) -> None:
    read: dict[str, list[bool]] = {}
    seen: dict[tuple[str, str], list[bool]] = {}
    for game in games(level, 900):
        left, right = sorted(game.things, key=lambda thing: thing.x)
        names = (left.colour, right.colour) if level == "choose_colour" else (left.shape, right.shape)
        read.setdefault(game.trial.instruction, []).append(left.reward > 0)
        seen.setdefault(names, []).append(left.reward > 0)
    assert sorted(float(np.mean(sides)) for sides in read.values()) == pytest.approx([0.2, 0.5, 0.8], abs=0.1)
    assert len(seen) == 6
    assert [float(np.mean(sides)) for sides in seen.values()] == pytest.approx([0.5] * 6, abs=0.2)


@pytest.mark.parametrize("level", ["choose_colour", "choose_shape"])
def test_who_strays_stands_before_the_next_choice_soon(level: str) -> None:
    [game] = games(level, 1)
    first = game.trial
    while game.trial is first and game.frames < 100:
        game.frame(ACTIONS[6])
    assert game.frames == 48
    assert (game.x, game.z, game.heading) == (game.trial.x, game.trial.z, game.trial.heading)


def test_levels_by_name() -> None:
    assert miniworld.level_names("all") == {name: name for name in LEVELS}
    assert miniworld.level_names("choose_shape, explore_rooms:blank") == {
        "choose_shape": "choose_shape",
        "explore_rooms": "explore_rooms:blank",
    }
    assert set(miniworld.level_names("all:blank")) == set(LEVELS)
    for wrong in ("explore", "choose_shape:quiet", "", "all,"):
        with pytest.raises(UserError, match="unknown miniworld level"):
            miniworld.level_names(wrong)


@needs_drawing
def test_a_blank_level_says_nothing_and_is_otherwise_the_same() -> None:
    silent = lab("choose_colour:blank")
    for opened in (silent, lab("choose_colour")):
        opened.reset(seed=2)
    assert silent.observations()["INSTR"] == ""
    assert lab("choose_colour").observations()["INSTR"].startswith("go to the")
    assert silent.game.trial == lab("choose_colour").game.trial


@needs_drawing
def test_several_levels_play_in_worker_processes() -> None:
    config = EnvConfig(suite="miniworld", id="choose_colour,remember_sign:blank", simulator_threads=2)
    env = make_suite(config, 8, seed=0)
    try:
        assert env.spec.tasks == ("choose_colour", "remember_sign")
        first = env.reset(0)
        assert first.observation["pixels"].shape == (8, 72, 96, 3)
        assert first.task.tolist() == [0, 1] * 4
        instructions = first.observation["instruction"].copy()
        assert (instructions[1::2] == 0).all()
        assert {tuple(row[row > 0]) for row in instructions[::2]} <= {
            tuple(hash_words(f"go to the {colour} box", length=5)) for colour in ("red", "green", "blue")
        }
        pixels = first.observation["pixels"].copy()
        assert len({picture.tobytes() for picture in pixels}) == 8
        ends = np.zeros(8, int)
        for _ in range(151):
            arrival = env.step(np.zeros((8, 1), np.int64))
            ends += arrival.ended
        assert ends.tolist() == [1, 0] * 4
        assert arrival.first.tolist() == [True, False] * 4
        np.testing.assert_array_equal(env.reset(0).observation["pixels"], pixels)
    finally:
        env.close()


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[miniworld\]'"):
        make_suite(EnvConfig(suite="miniworld", id="all"), 2, seed=0)


def test_missing_opengl_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyglet")
    # An entry of None makes the import fail, as a missing library does.
    monkeypatch.setitem(sys.modules, "pyglet.gl", None)
    with pytest.raises(UserError, match="apt install libegl1"):
        miniworld_drawing.open_context.__wrapped__()
