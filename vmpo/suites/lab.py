"""DeepMind Lab: first-person levels with pixels and instructions, of which the paper learns DMLab-30.

Written against the documented Python API of ``deepmind_lab`` (docs/users/python_api.md of google-deepmind/lab). It
uses this much, and any class with the same interface can take the lab's place, as ``vmpo.suites.miniworld`` does:

- ``Lab(level, observations, config, renderer, level_cache)``: a list of names, a dict of strings to strings;
- ``reset(seed=int)``; ``step(numpy intc vector of 7, num_steps=int)``, which returns the sum of the rewards;
- ``is_running()``; ``observations()``, a dict, which raises once the episode is over; ``close()``.

``make_labs(lab="module:Class", levels={task: level}, config=..., num_envs=...)`` builds the vector environment over
worker processes. ``native_actions`` replaces the paper's 15 actions by other rows of 7 entries, ``settings`` adds to
the lab's config, and ``render`` enlarges pictures for people. ``config.held_out`` adds ``allowHoldOutLevels`` and a
``mixerSeed`` of its own; the names of the levels are the caller's.

The end of an episode, which in the lab is its time limit, counts as termination (discount 0), as in IMPALA's public
code and in the lab's own dm_env module; the paper does not say. The lab shows nothing there, so that the last frame
serves as the final observation, whose value no return needs. ``max_episode_steps`` and ``stagger`` truncate.

Some psychlab levels show pictures that the lab does not bring along (data/brady_konkle_oliva2008 of its repository):
the environment variable ``DMLAB_DATASET_PATH`` names their folder.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import shutil
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from vmpo.config import EnvConfig
from vmpo.errors import UserError, unknown
from vmpo.records import ArraySpec, DiscreteActions, EnvSpec, Observation
from vmpo.scores import benchmarks
from vmpo.suites import arrivals
from vmpo.suites.words import VOCABULARY, hash_words
from vmpo.suites.workers import Outcome, WorkerEnv

LAB = "deepmind_lab:Lab"
"""Module and class of the lab itself."""

HEIGHT, WIDTH = 72, 96
"""Size of an observation in pixels (Table 5)."""

MAX_WORDS = 32
"""Words of an instruction that are kept: several sentences; a longer one loses its end."""

HELD_OUT_MIXER_SEED = 0x600D5EED
"""Mixed into every seed of a held-out level, so that none is a training level (the default is 0). IMPALA's number."""

FRAMES_PER_SECOND = 60
"""Of the lab."""

EPISODE_FRAMES = 90 * FRAMES_PER_SECOND
"""The lab's default episode of 90 seconds, over which staggered first ends are spread."""

ENLARGED = 4
"""Factor on the pictures that are drawn for people."""

NativeActions: TypeAlias = tuple[tuple[int, ...], ...]

ACTIONS: NativeActions = (
    (0, 0, 0, 1, 0, 0, 0),
    (0, 0, 0, -1, 0, 0, 0),
    (0, 0, -1, 0, 0, 0, 0),
    (0, 0, 1, 0, 0, 0, 0),
    (-10, 0, 0, 0, 0, 0, 0),
    (10, 0, 0, 0, 0, 0, 0),
    (-60, 0, 0, 0, 0, 0, 0),
    (60, 0, 0, 0, 0, 0, 0),
    (0, 10, 0, 0, 0, 0, 0),
    (0, -10, 0, 0, 0, 0, 0),
    (-10, 0, 0, 1, 0, 0, 0),
    (10, 0, 0, 1, 0, 0, 0),
    (-60, 0, 0, 1, 0, 0, 0),
    (60, 0, 0, 1, 0, 0, 0),
    (0, 0, 0, 0, 1, 0, 0),
)
"""The reduced action set of Table 3: look right, look down, strafe right, move forward and fire, then the lab's jump
and crouch, which the paper does not use. In order: forward, backward, strafe left and right, look a little left and
right, far left and right, down, up, forward while looking a little left and right, far left and right, fire."""


def make(config: EnvConfig, num_envs: int, seed: int, render: bool = False) -> WorkerEnv:
    """Build the DMLab-30 levels that ``config.id`` names, separated by commas; ``dmlab30`` is all of them.

    A task is called after its training level also where its test level is played, so that an agent finds its own.
    """
    pictures = os.environ.get("DMLAB_DATASET_PATH")
    return make_labs(
        lab=LAB,
        levels=level_names(config),
        config=config,
        num_envs=num_envs,
        settings={"datasetPath": pictures} if pictures else {},
        render=render,
    )


def task_ids(config: EnvConfig) -> tuple[str, ...]:
    return tuple(level_names(config))


def level_names(config: EnvConfig) -> dict[str, str]:
    """The lab's name of the level that each task plays, by the task's name."""
    test_levels = dmlab30()
    tasks: list[str] = []
    for name in config.id.split(","):
        name = name.strip()
        if name != "dmlab30" and name not in test_levels:
            raise unknown("DMLab level", name, ["dmlab30", *test_levels])
        tasks += test_levels if name == "dmlab30" else [name]
    return {task: f"contributed/dmlab30/{test_levels[task] if config.held_out else task}" for task in tasks}


def dmlab30() -> dict[str, str]:
    """The test level of each training level."""
    return {level: reference.test_level for level, reference in benchmarks()["dmlab30"].levels.items()}


def make_labs(
    *,
    lab: str,
    levels: Mapping[str, str],
    config: EnvConfig,
    num_envs: int,
    native_actions: NativeActions = ACTIONS,
    settings: Mapping[str, str] | None = None,
    render: bool = False,
) -> WorkerEnv:
    """Build environments of the class ``lab`` ("module:Class"), whose tasks play ``levels`` (task to level name)."""
    _check_installed(lab)
    if config.action_repeat < 1:
        raise UserError(f"env.action_repeat={config.action_repeat} must be at least 1")
    whole = {"width": str(WIDTH), "height": str(HEIGHT), "logLevel": "ERROR", **(settings or {})}
    if config.held_out:
        whole |= {"allowHoldOutLevels": "true", "mixerSeed": str(HELD_OUT_MIXER_SEED)}
    maker = LabMaker(
        lab=lab,
        levels=dict(levels),
        settings=whole,
        native_actions=native_actions,
        action_repeat=config.action_repeat,
        level_cache=_cache_folder(config.level_cache),
        enlarged=ENLARGED if render else 1,
    )
    spread = config.max_episode_steps or EPISODE_FRAMES // config.action_repeat
    return WorkerEnv(
        maker,
        spec(levels, config.action_repeat, len(native_actions)),
        num_envs,
        workers=config.simulator_threads,
        max_episode_steps=config.max_episode_steps,
        first_limits=arrivals.first_limits(num_envs, spread) if config.stagger else None,
    )


def spec(tasks: Iterable[str], action_repeat: int, num_actions: int = len(ACTIONS)) -> EnvSpec:
    """What an agent sees of any lab."""
    return EnvSpec(
        observation={
            "pixels": ArraySpec(shape=(HEIGHT, WIDTH, 3), dtype=np.dtype(np.uint8), kind="pixels", layout="HWC"),
            "instruction": ArraySpec(shape=(MAX_WORDS,), dtype=np.dtype(np.int64), kind="text", vocabulary=VOCABULARY),
        },
        action=DiscreteActions(sizes=(num_actions,)),
        tasks=tuple(tasks),
        action_repeat=action_repeat,
        steps_per_second=FRAMES_PER_SECOND / action_repeat,
    )


@dataclass(frozen=True, kw_only=True)
class LabMaker:
    """Makes the environment of a task, in the worker that it is pickled to."""

    lab: str
    levels: dict[str, str]
    settings: dict[str, str]
    native_actions: NativeActions
    action_repeat: int
    level_cache: str | None
    enlarged: int

    def __call__(self, task: str) -> LabEnv:
        module, _, name = self.lab.partition(":")
        try:
            lab_class = getattr(importlib.import_module(module), name)
        except ImportError as error:
            raise UserError(f"{module} is installed but cannot be imported: {' '.join(str(error).split())}") from error
        lab = lab_class(
            self.levels[task],
            ["RGB_INTERLEAVED", "INSTR"],
            config=dict(self.settings),
            renderer="software",
            level_cache=LevelCache(self.level_cache) if self.level_cache else None,
        )
        return LabEnv(lab, self.native_actions, self.action_repeat, self.enlarged)


class LabEnv:
    """One lab with a table of actions, as a worker plays it."""

    def __init__(self, lab: Any, native_actions: NativeActions, action_repeat: int, enlarged: int = 1) -> None:
        self._lab, self._action_repeat, self._enlarged = lab, action_repeat, enlarged
        self._actions = np.array(native_actions, np.intc)
        self._observation: Observation = {}

    def reset(self, seed: int) -> Observation:
        self._lab.reset(seed=int(seed))
        self._observe()
        return self._observation

    def step(self, action: np.ndarray) -> Outcome:
        reward = self._lab.step(self._actions[int(action[0])], num_steps=self._action_repeat)
        running = self._lab.is_running()
        if running:
            self._observe()
        return Outcome(observation=self._observation, reward=float(reward), terminated=not running)

    def _observe(self) -> None:
        seen = self._lab.observations()
        self._observation = {
            # A copy: this may become the final frame, and the lab is free to draw into its own.
            "pixels": np.array(seen["RGB_INTERLEAVED"], np.uint8),
            "instruction": hash_words(seen["INSTR"], length=MAX_WORDS),
        }

    def render(self) -> np.ndarray:
        """What the agent sees, enlarged where it was made for rendering."""
        return self._observation["pixels"].repeat(self._enlarged, axis=0).repeat(self._enlarged, axis=1)

    def close(self) -> None:
        self._lab.close()


class LevelCache:
    """Compiled levels by the lab's key, in a folder that any number of processes share.

    A level whose map is drawn anew for each episode is compiled for each, which takes seconds; it is found again where
    the same seeds are played again. Nothing is ever deleted.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def fetch(self, key: str, pk3_path: str) -> bool:
        """Copy the level to ``pk3_path`` if it is here."""
        try:
            source = open(self._path(key), "rb")  # noqa: SIM115
        except FileNotFoundError:
            return False
        with source, open(pk3_path, "wb") as destination:
            shutil.copyfileobj(source, destination)
        return True

    def write(self, key: str, pk3_path: str) -> None:
        """Keep the level at ``pk3_path``; readers see all of it or nothing."""
        path = self._path(key)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            shutil.copyfile(pk3_path, temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        """A hash, because a key may be too long for a file's name or lead out of the folder."""
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()}.pk3"


def _check_installed(lab: str) -> None:
    """Fail here and not in every worker."""
    module = lab.partition(":")[0]
    try:
        found = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package that the module would be in
        found = False
    if found:
        return
    if lab != LAB:
        raise UserError(f"there is no module {module!r}, from which {lab} should come")
    raise UserError(
        "deepmind_lab is not installed and has no wheel to download; build it from source "
        "(github.com/google-deepmind/lab, python/pip_package/README.md) and pip install the wheel that this makes; "
        "without it, try a lab that runs here: vmpo train lab-demo (suite miniworld)"
    )


def _cache_folder(folder: str | None) -> str | None:
    if folder is None:
        return None
    path = Path(folder).expanduser().absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"env.level_cache={folder!r} cannot be made a folder: {error.strerror}") from error
    return str(path)
