"""Episodes of a trained agent as a video: what it sees or does, with the return so far and the critic's value."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import UInt8

from vmpo import suites
from vmpo.callbacks import Callback
from vmpo.config import Config, EnvConfig
from vmpo.errors import UserError, unknown
from vmpo.learning import checkpoint
from vmpo.metrics import Interval
from vmpo.movie import FASTEST, Movie, check_format
from vmpo.overlay import Canvas, Caption, shown
from vmpo.policy import Policy
from vmpo.popart import PopArtStatistics, initial_statistics
from vmpo.records import VectorEnv, Weights
from vmpo.run_directory import RunDirectory
from vmpo.signals import Stopped

if TYPE_CHECKING:
    from vmpo.train import Run

PROGRESS_STEPS = 1_000
"""Agent steps of a video during training, which waits for it."""

UNKNOWN_SPEED = 30.0
"""Steps per second that are shown where the environment does not say what would be real time."""


@dataclass(frozen=True, kw_only=True)
class VideoOptions:
    episodes: int = 1
    """Episodes to record, of each task."""
    seed: int = 1_000_003
    """Seed of the first episode; the next ones count on from it."""
    sampled: bool = False
    """Sample actions as in training instead of taking the most likely ones."""
    max_steps: int = 5_000
    """Agent steps after which an episode is cut."""
    task: str | None = None
    """Record this task alone, of a run that has several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """An agent, by what a checkpoint holds of it."""

    config: Config
    weights: Weights
    statistics: PopArtStatistics
    learner_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """A recorded episode."""

    task: str
    episode_return: float
    steps: int
    ended: bool
    """False if it was cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    path: Path
    frames: int
    frames_per_second: float
    takes: tuple[Take, ...]

    def lines(self) -> list[str]:
        """What was recorded, for a reader."""
        return [
            *(
                f"{t.task}: return {t.episode_return:.2f} in {t.steps:,} steps{'' if t.ended else ' (cut)'}"
                for t in self.takes
            ),
            f"video: {self.path} ({self.frames:,} frames at {self.frames_per_second:.4g} per second)",
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A moment of an episode."""

    picture: UInt8[np.ndarray, "H W 3"]
    steps: int
    episode_return: float
    value: float | None
    """None at the end, of which a critic knows nothing."""


def video_name(learner_step: int) -> str:
    return f"step_{learner_step:010d}.mp4"


def watch(
    directory: str | Path,
    out: str | Path | None = None,
    options: VideoOptions | None = None,
    *,
    best: bool = False,
    trust: bool = False,
) -> Recorded:
    """Record episodes of a run's newest checkpoint, or of its best one; by default into the run's ``videos``."""
    options = options or VideoOptions()
    for name, least in (("episodes", 1), ("max_steps", 1), ("seed", 0)):
        if getattr(options, name) < least:
            raise UserError(f"--{name.replace('_', '-')} {getattr(options, name)} must be at least {least}")
    run_directory = RunDirectory(directory)
    config = run_directory.read_config(trust)
    check_format(Path(video_name(0) if out is None else out))
    saved = checkpoint.chosen(run_directory.checkpoints, best)
    learner_step = int(saved.progress["learner_step"])
    trained = Trained(
        config=config,
        weights=checkpoint.online_weights(saved),
        statistics=checkpoint.popart_statistics(
            saved, initial_statistics(len(suites.task_ids(config.env)), bounds=config.loss.popart_bounds)
        ),
        learner_step=learner_step,
    )
    path = run_directory.videos / video_name(learner_step) if out is None else Path(out)
    return record(trained, path, options)


def record(
    trained: Trained, path: Path, options: VideoOptions, safe_moment: Callable[[], None] = lambda: None
) -> Recorded:
    """Play episodes of each task and write them as one video. The caller's random numbers stay as they are.

    ``safe_moment`` is called before each step and may raise to give the recording up, which leaves no file.
    """
    check_format(path)
    film: Film | None = None
    takes: list[Take] = []
    names, tasks = suites.task_ids(trained.config.env), suites.each_task(trained.config.env)
    if options.task is not None and options.task not in names:
        raise unknown("task", options.task, names)
    with torch.random.fork_rng(devices=[]), ExitStack() as stack:
        torch.manual_seed(options.seed)
        for index, (name, task) in enumerate(zip(names, tasks, strict=True)):
            if options.task not in (None, name):
                continue
            with drawn_environment(task, options.seed) as env:
                speed = env.spec.steps_per_second or UNKNOWN_SPEED
                every = math.ceil(speed / FASTEST[path.suffix.lower()])
                if film is None:
                    film = Film(stack.enter_context(Movie(path, speed / every)))
                spec = replace(env.spec, tasks=names)
                policy = Policy(spec, trained.config, trained.weights, trained.statistics)
                player = Player(env=env, policy=policy, task=index, options=options, safe_moment=safe_moment)
                for episode in range(options.episodes):
                    title = f"{env.spec.tasks[0]}   episode {episode + 1} of {options.episodes}"
                    scenes = player.scenes(options.seed + episode, every)
                    takes.append(film.take(scenes, f"{title}   learner step {trained.learner_step:,}", env))
    assert film is not None
    return Recorded(
        path=path, frames=film.movie.frames, frames_per_second=film.movie.frames_per_second, takes=tuple(takes)
    )


class ProgressVideos(Callback):
    """A greedy episode at intervals, of each task in turn. If that goes wrong, training goes on."""

    def __init__(self, seconds: float) -> None:
        self._due, self._count = Interval(seconds), 0

    def on_unroll(self, run: Run) -> None:
        if not self._due():
            return
        step, tasks = run.learner.learner_step, suites.task_ids(run.config.env)
        trained = Trained(
            config=run.config,
            weights=run.learner_weights(),
            statistics=run.learner.statistics,
            learner_step=step,
        )
        options = VideoOptions(max_steps=PROGRESS_STEPS, task=tasks[self._count % len(tasks)])
        self._count += 1
        try:
            record(trained, run.directory.videos / video_name(step), options, run.stop.check)
        except Stopped:
            raise
        except Exception as error:
            run.log.notes.append(f"no video of learner step {step}: {' '.join(str(error).split())}")


class Film:
    """Scenes drawn on frames of one size, and these written to a file."""

    def __init__(self, movie: Movie) -> None:
        self.movie = movie
        self._canvas: Canvas | None = None

    def take(self, scenes: Iterator[Scene], title: str, env: VectorEnv) -> Take:
        """Film an episode to its last scene."""
        for scene in scenes:
            self._canvas = self._canvas or Canvas(*scene.picture.shape[:2])
            numbers = {"return": shown(scene.episode_return), "step": f"{scene.steps:,}"}
            numbers["value"] = "(end)" if scene.value is None else shown(scene.value)
            self.movie.add(self._canvas.frame(scene.picture, Caption(title=title, numbers=numbers)))
        return Take(
            task=env.spec.tasks[0],
            episode_return=scene.episode_return,
            steps=scene.steps,
            ended=scene.value is None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """Plays single episodes of one task."""

    env: VectorEnv
    """One environment of that task alone, made for rendering."""
    policy: Policy
    task: int
    """Which of the policy's values counts."""
    options: VideoOptions
    safe_moment: Callable[[], None]

    def scenes(self, seed: int, every: int) -> Iterator[Scene]:
        """Every so many steps a scene, the first and the last one in any case."""
        timestep = self.env.reset(seed)
        state, picture, episode_return, steps = None, self._draw(), 0.0, 0
        while True:
            self.safe_moment()
            decision = self.policy.decide(
                timestep.observation, state, previous_reward=timestep.reward, greedy=not self.options.sampled
            )
            cut = steps >= self.options.max_steps
            if cut or steps % every == 0:
                picture = self._draw() if steps else picture
                value = float(decision.value[0, self.task])
                yield Scene(picture=picture, steps=steps, episode_return=episode_return, value=value)
            if cut:
                return
            timestep, state = self.env.step(decision.action), decision.state
            steps += 1
            episode_return += float(timestep.score[0])
            if timestep.ended[0]:
                # An environment that has reset itself already shows the next episode.
                picture = picture if timestep.first[0] else self._draw()
                yield Scene(picture=picture, steps=steps, episode_return=episode_return, value=None)
                return

    def _draw(self) -> UInt8[np.ndarray, "H W 3"]:
        name = self.env.spec.tasks[0]
        with _drawing(name):
            picture = np.asarray(self.env.render())
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or not picture.size:
            raise UserError(
                f"{name} draws an array of shape {picture.shape} and type {picture.dtype}; "
                "a picture has the shape (height, width, 3) and the type uint8"
            )
        return picture


@contextmanager
def drawn_environment(config: EnvConfig, seed: int) -> Iterator[VectorEnv]:
    """One environment that can be drawn, also without a display."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("MUJOCO_GL", "egl")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    with _drawing(config.id):
        env = suites.make(config, 1, seed, render=True)
    try:
        yield env
    finally:
        env.close()


@contextmanager
def _drawing(name: str) -> Iterator[None]:
    """Whatever an environment raises that was never meant to be drawn, as one line."""
    try:
        yield
    except UserError:
        raise
    except NotImplementedError as error:
        raise UserError(f"{name} cannot be drawn: it has no render(), which must return a picture") from error
    except Exception as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"{name} cannot be drawn: {said[-1]}; it must support render_mode='rgb_array'") from error
