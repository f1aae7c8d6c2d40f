"""The lab's adapter against a stand-in that refuses whatever the real lab would refuse or misread."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab_standin import COLOURS, Lab, instruction, read

from vmpo.cli import main
from vmpo.config import EnvConfig
from vmpo.errors import UserError
from vmpo.records import DiscreteActions, Timestep
from vmpo.suites import lab
from vmpo.suites import make as make_suite
from vmpo.suites.lab import ACTIONS, LabEnv, LabMaker, level_names, make_labs
from vmpo.suites.words import hash_words
from vmpo.suites.workers import WorkerEnv

WORDS = 32
TRAIN, TEST = "rooms_collect_good_objects_train", "rooms_collect_good_objects_test"
EXPLORE, LONG, SILENT = "explore_goal_locations_small", "language_execute_random_task", "rooms_watermaze"
STEPS = 8
"""Agent steps of an episode of 30 frames, the last of which is only half played."""

TABLE_3 = {
    "Forward (FW)": [0, 0, 0, 1, 0],
    "Backward (BW)": [0, 0, 0, -1, 0],
    "Strafe left": [0, 0, -1, 0, 0],
    "Strafe right": [0, 0, 1, 0, 0],
    "Small look left (LL)": [-10, 0, 0, 0, 0],
    "Small look right (LR)": [10, 0, 0, 0, 0],
    "Large look left (LL )": [-60, 0, 0, 0, 0],
    "Large look right (LR)": [60, 0, 0, 0, 0],
    "Look down": [0, 10, 0, 0, 0],
    "Look up": [0, -10, 0, 0, 0],
    "FW + small LL": [-10, 0, 0, 1, 0],
    "FW + small LR": [10, 0, 0, 1, 0],
    "FW + large LL": [-60, 0, 0, 1, 0],
    "FW + large LR": [60, 0, 0, 1, 0],
    "Fire": [0, 0, 0, 0, 1],
}

Make = Callable[..., WorkerEnv]


@pytest.fixture(scope="module")
def make() -> Iterator[Make]:
    """Environments of the suite in one worker, with the stand-in in the lab's place."""
    made: dict[Any, WorkerEnv] = {}
    patch = pytest.MonkeyPatch()
    patch.setattr(lab, "LAB", "lab_standin:Lab")

    def make_once(level: str, num_envs: int = 2, render: bool = False, **options: Any) -> WorkerEnv:
        config = EnvConfig(suite="lab", id=level, **{"simulator_threads": 1, **options})
        if (config, num_envs, render) not in made:
            env = make_suite(config, num_envs, seed=0, render=render)
            assert isinstance(env, WorkerEnv)
            made[config, num_envs, render] = env
        return made[config, num_envs, render]

    yield make_once
    patch.undo()
    for env in made.values():
        env.close()


def play(env: WorkerEnv, steps: int, seed: int = 0) -> list[Timestep]:
    """The arrivals of a reset and so many steps, of which step t takes action t modulo 15."""
    opening = copy(env.reset(seed))
    return [opening, *(copy(env.step(np.full((env.num_envs, 1), t % 15))) for t in range(steps))]


def copy(timestep: Timestep) -> Timestep:
    """Shared memory is overwritten by the next call."""
    return dataclasses.replace(timestep, observation={k: v.copy() for k, v in timestep.observation.items()})


def single(level: str = EXPLORE, cache: Path | None = None, repeat: int = 4, **settings: str) -> LabEnv:
    """One environment in this process."""
    maker = LabMaker(
        lab="lab_standin:Lab",
        levels={"task": f"contributed/dmlab30/{level}"},
        settings={"width": "96", "height": "72", **settings},
        native_actions=ACTIONS,
        action_repeat=repeat,
        level_cache=str(cache) if cache else None,
        enlarged=1,
    )
    return pickle.loads(pickle.dumps(maker))("task")


def test_the_actions_are_those_of_the_papers_table_padded_to_seven_entries() -> None:
    assert [list(action) for action in ACTIONS] == [[*row, 0, 0] for row in TABLE_3.values()]
    env = single(repeat=1)
    env.reset(0)
    taken = [read(env.step(np.array([index])).observation["pixels"]).action for index in range(15)]
    assert taken == [[*row, 0, 0] for row in TABLE_3.values()]


def test_the_specification_is_that_of_the_paper(make: Make) -> None:
    spec = make(EXPLORE).spec
    pixels, text = spec.observation["pixels"], spec.observation["instruction"]
    assert (pixels.shape, pixels.dtype, pixels.kind, pixels.layout) == ((72, 96, 3), np.uint8, "pixels", "HWC")
    assert (text.shape, text.dtype, text.kind, text.vocabulary) == ((WORDS,), np.int64, "text", 1000)
    assert spec.action == DiscreteActions(sizes=(15,))
    assert spec.action_repeat == 4
    assert spec.tasks == (EXPLORE,)


def test_pixels_and_instructions_arrive_as_the_lab_gives_them(make: Make) -> None:
    env = make(EXPLORE)
    opening = env.reset(0)
    level = f"contributed/dmlab30/{EXPLORE}"
    for index in range(2):
        seen = read(opening.observation["pixels"][index])
        other = Lab(level, ["RGB_INTERLEAVED"], {"width": "96", "height": "72"})
        other.reset(seed=seen.seed)
        np.testing.assert_array_equal(opening.observation["pixels"][index], other.observations()["RGB_INTERLEAVED"])
        expected = hash_words(f"Find the {COLOURS[seen.seed % 4]} box of {level}", length=WORDS)
        assert opening.observation["instruction"][index].tolist() == expected.tolist()


def test_an_instruction_longer_than_the_limit_loses_its_end_and_none_is_all_zeros() -> None:
    text = instruction(LONG, 0)
    assert len(text.split()) == 100
    codes = single(LONG).reset(0)["instruction"]
    assert codes.shape == (WORDS,)
    assert codes.tolist() == hash_words(text, length=100)[:WORDS].tolist()
    assert (codes > 0).all()
    assert not single(SILENT).reset(0)["instruction"].any()


def test_four_frames_are_one_step_and_the_lab_sums_their_rewards(make: Make) -> None:
    arrivals = play(make(EXPLORE), STEPS)
    rewards = [arrival.reward[0] for arrival in arrivals]
    assert rewards == [0, 1 + 2 + 3 + 4, 26, 42, 58, 74, 90, 106, 29 + 30]
    assert [arrival.score[0] for arrival in arrivals] == rewards
    assert [read(arrival.observation["pixels"][0]).frame for arrival in arrivals] == [*range(0, 29, 4), 28]
    thrice = single(repeat=3)
    thrice.reset(0)
    assert thrice.step(np.array([0])).reward == 1 + 2 + 3


def test_the_end_has_discount_0_and_the_last_frame_as_its_observation(make: Make) -> None:
    arrivals = play(make(EXPLORE), STEPS + 2)
    assert [arrival.ended.tolist() for arrival in arrivals] == [[t == STEPS] * 2 for t in range(STEPS + 3)]
    assert [arrival.discount[0] for arrival in arrivals] == [float(t != STEPS) for t in range(STEPS + 3)]
    assert [arrival.first[0] for arrival in arrivals] == [t in (0, STEPS + 1) for t in range(STEPS + 3)]
    assert [arrival.valid[0] for arrival in arrivals] == [t not in (0, STEPS + 1) for t in range(STEPS + 3)]
    before, last, first = (arrivals[t].observation["pixels"] for t in (STEPS - 1, STEPS, STEPS + 1))
    np.testing.assert_array_equal(last, before)
    assert read(first[0]).frame == 0


def test_a_limit_of_steps_truncates(make: Make) -> None:
    arrivals = play(make(EXPLORE, max_episode_steps=3), 4)
    assert [arrival.ended[0] for arrival in arrivals] == [False, False, False, True, False]
    assert [arrival.discount[0] for arrival in arrivals] == [1] * 5
    assert read(arrivals[3].observation["pixels"][0]).frame == 12
    assert read(arrivals[4].observation["pixels"][0]).frame == 0


def test_every_episode_and_environment_has_a_seed_of_its_own_and_the_stream_repeats(make: Make) -> None:
    def seeds(seed: int) -> list[int]:
        arrivals = play(make(EXPLORE), 3 * (STEPS + 1), seed)
        return [read(a.observation["pixels"][i]).seed for a in arrivals if a.first.all() for i in range(2)]

    assert len(seeds(0)) == len(set(seeds(0))) == 8
    assert seeds(0) == seeds(0)
    assert not set(seeds(0)) & set(seeds(1))


def test_levels_are_named_alone_together_or_all_at_once() -> None:
    assert level_names(EnvConfig(id=EXPLORE)) == {EXPLORE: f"contributed/dmlab30/{EXPLORE}"}
    assert list(level_names(EnvConfig(id=f"{SILENT}, {EXPLORE}"))) == [SILENT, EXPLORE]
    names = level_names(EnvConfig(id="dmlab30"))
    assert len(names) == 30
    assert list(names)[:2] == [TRAIN, "rooms_exploit_deferred_effects_train"]
    assert list(names)[-1] == "explore_object_rewards_many"
    assert all(level == f"contributed/dmlab30/{task}" for task, level in names.items())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("rooms_collect_good_objects", f"'rooms_collect_good_objects'; did you mean '{TRAIN}'"),
        (f"{SILENT},dmlab_30", "'dmlab_30'; did you mean 'dmlab30'"),
        ("", "''; known: dmlab30, explore"),
    ],
)
def test_an_unknown_level_is_answered_by_the_closest(given: str, message: str) -> None:
    with pytest.raises(UserError, match=f"unknown DMLab level {message}"):
        level_names(EnvConfig(id=given))


def test_several_levels_are_the_tasks_of_one_agent(make: Make) -> None:
    env = make(f"{EXPLORE},{TRAIN},{LONG}", num_envs=4)
    assert env.spec.tasks == (EXPLORE, TRAIN, LONG)
    opening = env.reset(0)
    assert opening.task.tolist() == [0, 1, 2, 0]
    codes = opening.observation["instruction"]
    for index, task in enumerate((EXPLORE, TRAIN)):
        name = hash_words(f"contributed/dmlab30/{task}", length=1)[0]
        assert codes[index][codes[index] > 0][-1] == name
    assert (codes[2] > 0).all()


def test_held_out_levels_are_played_under_the_names_of_the_training_ones(make: Make) -> None:
    names = level_names(EnvConfig(id="dmlab30", held_out=True))
    assert list(names) == list(level_names(EnvConfig(id="dmlab30")))
    assert names[TRAIN] == f"contributed/dmlab30/{TEST}"
    assert names["rooms_exploit_deferred_effects_train"].endswith("rooms_exploit_deferred_effects_test")
    assert names[EXPLORE] == f"contributed/dmlab30/{EXPLORE}"

    env = make(f"{TRAIN},{EXPLORE}", held_out=True)
    assert env.spec.tasks == (TRAIN, EXPLORE)
    opening = env.reset(0)
    level = hash_words(f"contributed/dmlab30/{TEST}", length=1)[0]
    assert level in opening.observation["instruction"][0]
    for pixels in opening.observation["pixels"]:
        assert read(pixels).mixed_seed == read(pixels).seed | 0x600D5EED << 32


def test_training_has_no_mixer_seed_and_may_not_play_a_held_out_level(make: Make) -> None:
    seen = read(make(EXPLORE).reset(0).observation["pixels"][0])
    assert seen.mixed_seed == seen.seed
    with pytest.raises(RuntimeError, match="hold-out"):
        single(TEST)


def test_pictures_for_psychlab_are_found_through_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(lab, "make_labs", lambda **arguments: given.append(arguments))
    lab.make(EnvConfig(id=EXPLORE), 1, 0)
    monkeypatch.setenv("DMLAB_DATASET_PATH", "/pictures")
    lab.make(EnvConfig(id=EXPLORE), 1, 0)
    assert [arguments["settings"] for arguments in given] == [{}, {"datasetPath": "/pictures"}]


def test_a_level_is_compiled_once_for_all_episodes_and_processes(make: Make, tmp_path: Path) -> None:
    cache = tmp_path / "deep" / "cache"
    env = make(TRAIN, level_cache=str(cache), simulator_threads=2)
    env.reset(0)
    pictures = env.reset(1).observation["pixels"]
    counts = [(read(pixels).compiled, read(pixels).fetched) for pixels in pictures]
    assert all(sum(count) == 2 for count in counts)
    assert all(fetched >= 1 for _, fetched in counts), "the second episode finds the level of the first"
    assert [path.suffix for path in cache.iterdir()] == [".pk3"], "one level, and nothing half-written"

    again = single(TRAIN, cache=cache)
    assert read(again.reset(5)["pixels"]).fetched == 1


def test_a_map_that_is_drawn_anew_is_found_again_with_its_seed(tmp_path: Path) -> None:
    env = single(EXPLORE, cache=tmp_path)
    counts = [read(env.reset(seed)["pixels"]) for seed in (1, 2, 1)]
    assert [(seen.compiled, seen.fetched) for seen in counts] == [(1, 0), (2, 0), (2, 1)]
    uncached = single(EXPLORE)
    assert [read(uncached.reset(1)["pixels"]).compiled for _ in range(2)] == [1, 2]


def test_a_cache_that_cannot_be_a_folder_is_a_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = EnvConfig(level_cache=str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match=r"env\.level_cache=.*cannot be made a folder: Not a directory"):
        make_labs(lab="lab_standin:Lab", levels={"a": "a"}, config=config, num_envs=1)


def test_other_actions_and_other_labs_are_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(lab, "WorkerEnv", lambda maker, spec, *_, **__: made.append((maker, spec)))
    config = EnvConfig(action_repeat=2)
    make_labs(
        lab="lab_standin:Lab",
        levels={"short": f"contributed/dmlab30/{EXPLORE}"},
        config=config,
        num_envs=1,
        native_actions=ACTIONS[:4],
        settings={"episodeLengthSeconds": "7"},
    )
    maker, spec = made[0]
    assert spec.tasks == ("short",)
    assert spec.action == DiscreteActions(sizes=(4,))
    assert spec.action_repeat == 2
    assert maker.settings["episodeLengthSeconds"] == "7"
    with pytest.raises(UserError, match=r"no module 'nowhere\.at_all'"):
        make_labs(lab="nowhere.at_all:Lab", levels={"a": "a"}, config=config, num_envs=1)
    with pytest.raises(UserError, match=r"env\.action_repeat=0 must be at least 1"):
        make_labs(lab="lab_standin:Lab", levels={"a": "a"}, config=EnvConfig(action_repeat=0), num_envs=1)


def test_first_episodes_are_staggered_over_the_usual_length(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[Any] = []
    monkeypatch.setattr(lab, "WorkerEnv", lambda *_, first_limits, **__: limits.append(first_limits))
    for options in ({}, {"stagger": True}, {"stagger": True, "max_episode_steps": 8}):
        make_labs(lab="lab_standin:Lab", levels={"a": "a"}, config=EnvConfig(**options), num_envs=4)
    assert limits[0] is None
    assert sorted(limits[1]) == [0, 337, 675, 1012], "90 seconds of 60 frames are 1350 steps of 4"
    assert sorted(limits[2]) == [0, 2, 4, 6]


def test_the_picture_is_what_the_agent_sees_enlarged_for_people(make: Make) -> None:
    env = make(EXPLORE, render=True, num_envs=1)
    seen = env.reset(0).observation["pixels"][0]
    picture = env.render()
    assert picture.shape == (288, 384, 3)
    np.testing.assert_array_equal(picture[::4, ::4], seen)
    plain = single()
    np.testing.assert_array_equal(plain.reset(0)["pixels"], plain.render())


@pytest.fixture
def no_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without the package, on which no worker may be started."""
    find_spec = lab.importlib.util.find_spec

    def without_lab(name: str, *arguments: Any) -> Any:
        return None if name == "deepmind_lab" else find_spec(name, *arguments)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(lab, "LAB", "deepmind_lab:Lab")
    monkeypatch.setattr(lab.importlib.util, "find_spec", without_lab)
    monkeypatch.setattr(lab, "WorkerEnv", refuse)


@pytest.mark.usefixtures("no_lab")
def test_without_the_package_the_user_learns_how_to_get_it_before_a_worker_starts() -> None:
    with pytest.raises(UserError) as raised:
        make_suite(EnvConfig(suite="lab", id="dmlab30"), 30, seed=0)
    message = str(raised.value)
    for part in (
        "deepmind_lab is not installed",
        "no wheel",
        "github.com/google-deepmind/lab",
        "lab-demo",
        "miniworld",
    ):
        assert part in message
    assert "\n" not in message


@pytest.mark.usefixtures("no_lab")
def test_without_the_package_training_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["train", "--env", "lab:dmlab30", "--directory", str(tmp_path / "run")])
    captured = capsys.readouterr()
    assert code == 2
    assert len(captured.err.strip().splitlines()) == 1
    assert "deepmind_lab is not installed" in captured.err


def test_a_package_that_cannot_be_loaded_is_a_users_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_lab.py").write_text("raise ImportError('libOSMesa.so.8:\\n cannot open')")
    monkeypatch.syspath_prepend(tmp_path)
    maker = LabMaker(
        lab="broken_lab:Lab",
        levels={"a": "a"},
        settings={},
        native_actions=ACTIONS,
        action_repeat=4,
        level_cache=None,
        enlarged=1,
    )
    with pytest.raises(UserError, match=r"broken_lab is installed but cannot be imported: libOSMesa.so.8: cannot open"):
        maker("a")
