"""Training, from a configuration to a trained agent. Read this file first.

A run alternates two things: the fleet *collects* a batch of unrolls with the target network's weights, and the learner
makes one *update* from it. When the learner replaces its target network, the new weights are published to the fleet.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vmpo import __version__, presets, suites
from vmpo.acting.actor import Actor
from vmpo.acting.evaluate import EvaluationResult, evaluate, num_evaluation_envs
from vmpo.acting.faults import Faults
from vmpo.acting.local import Fleet, make_fleet
from vmpo.config import Config, sampled, to_dict
from vmpo.display import Display, make_display
from vmpo.errors import RunFailed, UserError
from vmpo.learning import checkpoint
from vmpo.learning.learner import Learner
from vmpo.memory import keep_freed_memory
from vmpo.metrics import SKIPPED_UPDATES, EpisodeWindow, RunLog, Stopwatch
from vmpo.networks.agent import make_agent, policy_family
from vmpo.problems import problems
from vmpo.records import EnvSpec, EpisodeResult, VectorEnv, Weights
from vmpo.run_directory import RunDirectory
from vmpo.signals import Stopped, StopSignal
from vmpo.video import Trained, VideoOptions, check_format, record, video_name

VIDEO_STEPS = 1_000
"""Agent steps of a video during training, which waits for it."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    directory: Path
    learner_steps: int
    agent_steps: int
    frames: int
    seconds: float
    """Wall-clock of all sessions of the run."""
    return_mean: float
    """Mean return of the last 100 training episodes of each task."""
    evaluation: EvaluationResult | None
    finished: bool
    """False if a signal stopped it before its last frame."""


def train(config: Config, directory: str | Path, *, quiet: bool = False) -> RunResult:
    """Start a run in a new directory. Ranges of the preset are sampled here, and recorded with the configuration."""
    if config.preset in presets.PRESETS:
        config = sampled(config, presets.get(config.preset).ranges)
    check(config)
    run_directory = RunDirectory(directory)
    run_directory.check_new()
    run = Run(config, run_directory)
    with run_directory.lock():
        run_directory.create(config)
        run.save()
        return run.loop(quiet=quiet)


def resume(directory: str | Path, *, frames: int | None = None, quiet: bool = False, trust: bool = False) -> RunResult:
    """Continue a run from its newest checkpoint, to its last frame or to a new one.

    ``trust`` allows a run whose environment is a module's, ``my_module:MyEnv-v0``, to import that module.
    """
    run_directory = RunDirectory(directory)
    config = run_directory.read_config(trust)
    if frames is not None:
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, frames=frames))
    check(config)
    with run_directory.lock():
        saved = checkpoint.latest(run_directory.checkpoints)
        run = Run(config, run_directory, saved)
        run_directory.write(config)
        checkpoint.set_aside(run_directory.checkpoints, newer_than=saved.path)
        return run.loop(quiet=quiet, notes=[f"passed over: {damage}" for damage in saved.damaged])


def check(config: Config) -> None:
    found = problems(config)
    for where, device in (("learner.device", config.learner.device), ("actors.device", config.actors.device)):
        if device.startswith("cuda") and not torch.cuda.is_available():
            found.append(f"{where}={device}, but torch finds no CUDA device")
    if found:
        raise UserError("; ".join(found))
    if config.run.video_seconds is not None:
        check_format(Path(video_name(0)))


class Run:
    """Environments, learner and fleet of one run, with its counters."""

    def __init__(self, config: Config, directory: RunDirectory, saved: checkpoint.Checkpoint | None = None) -> None:
        self.config, self.directory = config, directory
        set_threads(config)
        keep_freed_memory()
        torch.manual_seed(config.run.seed)
        self.stopwatch = Stopwatch()
        self.stop = StopSignal()
        self.agent_steps = 0
        self.seconds = 0.0
        self.resumed = saved is not None
        self.videos = 0
        self.window = EpisodeWindow()
        first_env = suites.make(config.env, config.actors.num_envs, config.run.seed)
        self.spec: EnvSpec = first_env.spec
        self.learner = Learner(self.spec, config)
        if saved is not None:
            checkpoint.restore(self.learner, saved)
            self.agent_steps = int(saved.progress["agent_steps"])
            self.seconds = float(saved.progress["seconds"])

        def make_actor(index: int) -> Actor:
            # A resumed run plays new episodes, not its first ones again.
            seed = (config.run.seed + 10_007 * index + 7_919 * self.learner.learner_step) % 2**31

            def make_env(env_seed: int) -> VectorEnv:
                return suites.make(config.env, config.actors.num_envs, env_seed)

            serial = config.actors.fleet == "serial"
            return new_actor(
                config,
                first_env if index == 0 else make_env(seed),
                self.learner.weights(),
                seed,
                stopwatch=self.stopwatch if serial else None,
                make_env=make_env,
                safe_moment=self.stop.check,
                faults=Faults(config.actors.max_faults, report=lambda text: self.log.write_fault(text)),
            )

        self.fleet: Fleet = make_fleet(config, make_actor)
        for index, actor in enumerate(self.fleet.actors):
            state = saved.tensors.get(f"extra.actor_random_state.{index}") if saved is not None else None
            if state is not None:
                actor.generator.set_state(state)

    @property
    def frames(self) -> int:
        return self.agent_steps * self.spec.action_repeat

    def save(self) -> Path:
        random_states = {f"actor_random_state.{i}": a.generator.get_state() for i, a in enumerate(self.fleet.actors)}
        return checkpoint.save(
            self.directory.checkpoints,
            self.learner,
            {
                "package": __version__,
                "agent_steps": self.agent_steps,
                "frames": self.frames,
                "seconds": self.seconds,
                "config": to_dict(self.config),
            },
            random_states,
            keep=self.config.run.keep_checkpoints,
            score=self.window.summary()["return_mean"],
        )

    def advance(self) -> tuple[dict[str, Tensor], list[EpisodeResult]]:
        """One learner step: collect a batch, learn from it, and hand out new weights if the target was replaced."""
        collected = self.fleet.collect()
        self.agent_steps += collected.agent_steps
        version = self.learner.version
        with self.stopwatch.phase("learn"):
            metrics = self.learner.update(collected.batch, safe_moment=self.stop.check)
        if self.learner.skipped_in_a_row:
            self.log.write_skipped(self.learner.diagnosis)
            if self.learner.skipped_in_a_row > self.config.learner.max_skipped:
                raise RunFailed(
                    f"{self.learner.skipped_in_a_row} updates in a row had a loss or gradient that is not finite; "
                    f"{self.directory.path / SKIPPED_UPDATES} describes their batches"
                )
        if self.learner.version != version:
            self.fleet.publish(self.learner.weights())
        return metrics, collected.episodes

    def loop(self, *, quiet: bool, notes: Sequence[str] = ()) -> RunResult:
        """Train to the last frame or a signal. A run that cannot go on is saved before the error is raised."""
        self.log = RunLog(self.directory.path, tensorboard=self.config.run.tensorboard, append=self.resumed)
        self.log.notes.extend(notes)
        title = f"{self.config.preset}: {self.config.env.id}"
        try:
            with self.log, make_display(self.config.run.frames, title, quiet=quiet) as display:
                try:
                    finished = self._loop(display)
                except Stopped:
                    finished = False
                except RunFailed:
                    self._try_to_save()
                    raise
                finally:
                    self._show_notes(display)
                display.note(f"checkpoint: {self.save()}")
        finally:
            self.fleet.close()
        evaluation = None
        if self.config.run.evaluation_episodes and finished:
            evaluation = evaluate_weights(self.config, self.learner_weights(), self.config.run.evaluation_episodes)
        return RunResult(
            directory=self.directory.path,
            learner_steps=self.learner.learner_step,
            agent_steps=self.agent_steps,
            frames=self.frames,
            seconds=self.seconds,
            return_mean=self.window.summary()["return_mean"],
            evaluation=evaluation,
            finished=finished,
        )

    def _loop(self, display: Display) -> bool:
        """Collect and update until the last frame (True) or a signal (False); log, and save, at intervals.

        It stops and saves only between unrolls, so that no collected batch is lost and targets stay in step with them;
        an unroll that takes long after a signal is given up.
        """
        settings, log = self.config.run, self.log
        if self.resumed:
            log.truncate_to(self.learner.learner_step, self.agent_steps)
            self.window.add(log.read_episodes())
        before, started = self.seconds, time.perf_counter()
        due_log, due_save = Interval(settings.log_seconds), Interval(settings.checkpoint_seconds)
        due_video = Interval(settings.video_seconds or math.inf)
        self.stopwatch.reset()
        logged_steps, logged_at, save_is_due = self.agent_steps, started, False

        with self.stop:
            while self.fleet.batches_waiting or (self.frames < settings.frames and not self.stop.requested()):
                metrics, episodes = self.advance()
                now = time.perf_counter()
                self.seconds = before + now - started
                self.window.add(episodes)
                log.write_episodes(episodes, self.agent_steps, self.frames, self.seconds)
                between_unrolls = not self.fleet.batches_waiting
                last = self.frames >= settings.frames and between_unrolls
                if last or (between_unrolls and due_log() if settings.log_steps is None else self._log_step()):
                    rate = (self.agent_steps - logged_steps) / (now - logged_at)
                    self._log(display, metrics, rate)
                    logged_steps, logged_at = self.agent_steps, now
                save_is_due = save_is_due or due_save()
                if save_is_due and between_unrolls:
                    self._try_to_save()
                    save_is_due = False
                if between_unrolls and due_video():
                    self._try_to_record()
                self._show_notes(display)
        return not self.stop.requested()

    def _try_to_save(self) -> None:
        """A full or read-only disk shall not end the training: the previous checkpoint stays, and the next may fit."""
        try:
            self.save()
        except OSError as error:
            self.log.note_disk_fault("a checkpoint", error)

    def _try_to_record(self) -> None:
        """A greedy episode with the current weights, of each task in turn. If it goes wrong, training goes on."""
        step, tasks = self.learner.learner_step, suites.task_ids(self.config.env)
        trained = Trained(
            config=self.config,
            weights=self.learner_weights(),
            statistics=self.learner.statistics,
            learner_step=step,
        )
        options = VideoOptions(max_steps=VIDEO_STEPS, task=tasks[self.videos % len(tasks)])
        self.videos += 1
        try:
            record(trained, self.directory.videos / video_name(step), options, self.stop.check)
        except Stopped:
            raise
        except Exception as error:
            self.log.notes.append(f"no video of learner step {step}: {' '.join(str(error).split())}")

    def _show_notes(self, display: Display) -> None:
        while self.log.notes:
            display.note(self.log.notes.pop(0))

    def learner_weights(self) -> Weights:
        """The online network's weights: the newest policy, for evaluation."""
        return Weights(version=self.learner.version, tensors=self.learner.online.state_dict())

    def _log_step(self) -> bool:
        return self.learner.learner_step % (self.config.run.log_steps or 1) == 0

    def _log(self, display: Display, metrics: dict[str, Any], rate: float) -> None:
        line = {
            "learner_step": self.learner.learner_step,
            "agent_steps": self.agent_steps,
            "frames": self.frames,
            "seconds": self.seconds,
            "steps_per_second": rate,
            **self.window.summary(),
            **{f"phase/{phase}": share for phase, share in self.stopwatch.shares().items()},
            "faults/environment": sum(actor.faults.count for actor in self.fleet.actors),
            "faults/disk": self.log.disk_faults,
            **metrics,
        }
        display.update(self.log.write_metrics(line))
        self.stopwatch.reset()


def new_actor(config: Config, env: VectorEnv, weights: Weights, seed: int, **options: Any) -> Actor:
    """An actor with its own copy of the network; the options are those of ``Actor``."""
    network = make_agent(env.spec, config)
    checkpoint.check_fit(network.state_dict(), weights.tensors)
    actor = Actor(
        env,
        network,
        policy_family(env.spec, config),
        seed=seed,
        device=config.actors.device,
        **options,
    )
    actor.load(weights)
    return actor


def evaluate_weights(
    config: Config, weights: Weights, episodes: int, *, greedy: bool = True, seed: int = 1_000_003
) -> EvaluationResult:
    """Play episodes of each task on fresh environments whose seed the training never used."""
    whole_episodes = dataclasses.replace(config.env, stagger=False)
    num_tasks = len(suites.task_ids(config.env))
    env = suites.make(whole_episodes, num_evaluation_envs(config.actors.num_envs, num_tasks, episodes), seed)
    try:
        return evaluate(new_actor(config, env, weights, seed, greedy=greedy), episodes)
    finally:
        env.close()


def evaluate_run(
    directory: str | Path,
    episodes: int,
    *,
    greedy: bool = True,
    seed: int = 1_000_003,
    held_out: bool = False,
    best: bool = False,
    trust: bool = False,
) -> EvaluationResult:
    """Evaluate the online network of a run's newest checkpoint, or of the one with the best training return.

    ``held_out`` plays the test versions of the levels that it learned.
    """
    run_directory = RunDirectory(directory)
    config = run_directory.read_config(trust)
    if held_out:
        if config.env.suite not in ("lab", "miniworld"):
            raise UserError(f"the suite {config.env.suite} has no held-out levels; lab and miniworld have")
        config = dataclasses.replace(config, env=dataclasses.replace(config.env, held_out=True))
    saved = checkpoint.chosen(run_directory.checkpoints, best)
    set_threads(config)
    return evaluate_weights(config, checkpoint.online_weights(saved), episodes, greedy=greedy, seed=seed)


def set_threads(config: Config) -> None:
    if config.run.threads:
        torch.set_num_threads(config.run.threads)


class Interval:
    """True once in every so many seconds, starting from now."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = time.perf_counter() + seconds

    def __call__(self) -> bool:
        now = time.perf_counter()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True
