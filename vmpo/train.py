"""Training, from a configuration to a trained agent. Read this file first.

A run alternates two things: the fleet *collects* a batch of unrolls with the target network's weights, and the learner
makes one *update* from it. When the learner replaces its target network, the new weights are published to the fleet.
Several learner processes do so side by side, each on its share; the first of them keeps the run's files.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from vmpo import __version__, saved_spec
from vmpo.acting.local import Fleet
from vmpo.actors import actor_seed, environment_spec, make_fleet, set_threads, training_env
from vmpo.callbacks import Callback, Callbacks, listed
from vmpo.config import Config, RunConfig, to_dict
from vmpo.display import Display, make_display
from vmpo.errors import RunFailed, UserError
from vmpo.evaluation import final_evaluation
from vmpo.learning import checkpoint
from vmpo.learning.learner import Learner
from vmpo.learning.replicas import ReplicaLost, Replicas, joined, share_of
from vmpo.memory import keep_freed_memory
from vmpo.metrics import SKIPPED_UPDATES, EpisodeWindow, Interval, RunLog, Stopwatch
from vmpo.news import News
from vmpo.presets import settled
from vmpo.problems import check
from vmpo.records import EnvSpec, Weights
from vmpo.result import RunResult, of_finished
from vmpo.run_directory import RunDirectory
from vmpo.signals import Stopped
from vmpo.surroundings import Surroundings
from vmpo.video import ProgressVideos
from vmpo.weights_and_biases import WeightsAndBiases


def train(
    config: Config | str,
    directory: str | Path,
    *,
    quiet: bool = False,
    callbacks: Callbacks = (),
    around: Surroundings | None = None,
) -> RunResult:
    """Start a run, of a preset by its name too, in a new directory. Ranges are sampled here, and recorded."""
    config, callbacks, around = settled(config), listed(callbacks), around or Surroundings()
    with joined() as replicas, ExitStack() as held:
        replicas.together(lambda: check(config, replicas.count))
        run_directory = RunDirectory(replicas.from_first(lambda: str(directory)))
        replicas.from_first(run_directory.check_new)
        run = replicas.together(lambda: Run(config, run_directory, replicas=replicas, around=around))

        def begin() -> None:
            held.enter_context(run_directory.lock(around.patience))
            run_directory.create(config)
            run.save()

        replicas.from_first(begin)
        return run.loop(quiet=quiet, callbacks=callbacks)


def resume(
    directory: str | Path,
    *,
    frames: int | None = None,
    quiet: bool = False,
    trust: bool = False,
    callbacks: Callbacks = (),
    around: Surroundings | None = None,
) -> RunResult:
    """Continue a run from its newest checkpoint, to its last frame or to a later one.

    ``trust`` allows a run whose environment is a module's, ``my_module:MyEnv-v0``, to import that module.
    """
    run_directory, callbacks, around = RunDirectory(directory), listed(callbacks), around or Surroundings()
    with joined() as replicas, ExitStack() as held:
        config = replicas.from_first(lambda: run_directory.read_config(trust))
        planned = config.run.frames
        if frames is not None:
            config = dataclasses.replace(config, run=dataclasses.replace(config.run, frames=frames))
        replicas.together(lambda: check(config, replicas.count))
        replicas.from_first(lambda: held.enter_context(run_directory.lock(around.patience)))
        saved = replicas.from_first(lambda: checkpoint.latest(run_directory.checkpoints))
        done = int(saved.progress.get("frames", 0))
        if frames not in (None, planned) and config.run.frames <= done:
            raise UserError(f"{run_directory.path} has {done:,} frames already; --frames {frames} must be more")
        if config.run.frames <= done:
            return of_finished(config, run_directory, saved, evaluate=replicas.first)
        run = replicas.together(lambda: Run(config, run_directory, saved, replicas=replicas, around=around))

        def begin() -> None:
            run_directory.write(config)
            checkpoint.set_aside(run_directory.checkpoints, newer_than=saved.path)

        replicas.from_first(begin)
        notes = [f"passed over: {damage}" for damage in saved.damaged]
        return run.loop(quiet=quiet, callbacks=callbacks, notes=notes)


def own_callbacks(settings: RunConfig) -> list[Callback]:
    """Those that the configuration asks for."""
    wandb = [] if settings.wandb is None else [WeightsAndBiases(settings.wandb)]
    videos = [] if settings.video_seconds is None else [ProgressVideos(settings.video_seconds)]
    return [*wandb, *videos]


class Run:
    """Environments, learner and fleet of one run, with its counters; one of several where there are replicas."""

    log: RunLog
    """Of the first process alone."""
    logged: tuple[int, int, float]
    """Learner step, agent steps and moment of the last line of metrics."""

    def __init__(
        self,
        config: Config,
        directory: RunDirectory,
        saved: checkpoint.Checkpoint | None = None,
        *,
        replicas: Replicas | None = None,
        around: Surroundings | None = None,
    ) -> None:
        self.config, self.directory = config, directory
        self.around = around or Surroundings()
        self.replicas = replicas or Replicas()
        self.share = share_of(config, self.replicas)
        """What this process does of the run."""
        set_threads(config)
        keep_freed_memory()
        torch.manual_seed(config.run.seed)
        self.stopwatch = Stopwatch()
        self.stop = self.around.stop
        self.agent_steps = 0
        self.seconds = 0.0
        self.resumed = saved is not None
        self.environment_faults = 0
        self.fleet_counts: Counter[str] = Counter()
        """Of the fleets of all processes, as last heard."""
        self.window = EpisodeWindow()
        self.news = News()
        self.metrics: dict[str, Tensor] = {}
        """Of the last update."""
        self.callbacks: list[Callback] = []
        self.first_actor = self.replicas.rank * config.actors.num_actors
        """Number, among the actors of all processes, of the first one here."""
        crew, serial = self.around.crew, config.actors.fleet == "serial"
        env = training_env(self.share, actor_seed(config, self.first_actor, 0)) if serial and not crew else None
        self.spec: EnvSpec = env.spec if env else crew.spec if crew else environment_spec(self.share)
        self.learner = Learner(self.spec, self.share, self.replicas)
        if saved is not None:
            checkpoint.restore(self.learner, saved)
            self.agent_steps = int(saved.progress["agent_steps"])
            self.seconds = float(saved.progress["seconds"])
        self.learner.agree()
        self.outgoing = deque([self.learner.weights()], maxlen=config.actors.lag + 1)
        """The last target networks, newest last; the oldest of them acts."""
        learner, stop = self.learner, self.stop.check
        self.fleet: Fleet = (
            crew.fleet(self.share, learner.weights(), self._report, stop)
            if crew
            else make_fleet(self.share, learner, env, self.first_actor, self._report, self.stopwatch, stop)
        )
        for name, generator in self._generators().items():
            state = saved.tensors.get(f"extra.{name}") if saved is not None else None
            # A generator of another kind of device has no use for it.
            if state is not None and state.shape == generator.get_state().shape:
                generator.set_state(state)

    def _report(self, fault: str) -> None:
        self.news.faults.append(fault)

    @property
    def frames(self) -> int:
        return self.agent_steps * self.spec.action_repeat

    def _generators(self) -> dict[str, torch.Generator]:
        actors = enumerate(self.fleet.actors, self.first_actor)
        return {f"actor_random_state.{index}": actor.generator for index, actor in actors}

    def save(self) -> Path:
        path = self._save()
        self._tell(lambda callback: callback.on_checkpoint(self, path))
        return path

    def _save(self) -> Path:
        return checkpoint.save(
            self.directory.checkpoints,
            self.learner,
            {
                "package": __version__,
                "agent_steps": self.agent_steps,
                "frames": self.frames,
                "seconds": self.seconds,
                "config": to_dict(self.config),
                "spec": saved_spec.to_json(self.spec),
            },
            {name: generator.get_state() for name, generator in self._generators().items()},
            keep=self.config.run.keep_checkpoints,
            score=self.window.summary()["return_mean"],
        )

    def _tell(self, event: Callable[[Callback], None]) -> None:
        """Let the callbacks hear of something. One that fails ends the run, which is saved."""
        for callback in self.callbacks:
            try:
                event(callback)
            except Stopped:
                raise
            except Exception:
                # One that hears of a line of metrics may be called within an unroll.
                self.learner.give_up_unroll()
                self._save()
                raise

    def advance(self) -> dict[str, Tensor]:
        """One learner step: collect a batch, learn from it, and hand out new weights if the target was replaced."""
        # Actors of this process measure their time themselves.
        with self.stopwatch.phase("rest" if self.fleet.actors else "wait"):
            collected = self.fleet.collect()
        self.news.episodes += collected.episodes
        self.news.faults += collected.faults
        # All processes take as many steps.
        self.agent_steps += collected.agent_steps * self.replicas.count
        version = self.learner.version
        with self.stopwatch.phase("learn"):
            metrics = self.learner.update(collected.batch, self.frames / self.config.run.frames, self.stop.check)
        if self.learner.skipped_in_a_row:
            self.news.skipped.append(self.learner.diagnosis)
            if self.learner.skipped_in_a_row > self.config.learner.max_skipped:
                raise RunFailed(
                    f"{self.learner.skipped_in_a_row} updates in a row had a loss or gradient that is not finite; "
                    f"{self.directory.path / SKIPPED_UPDATES} describes their batches"
                )
        if self.learner.version != version:
            self.outgoing.append(self.learner.weights())
            self.fleet.publish(self.outgoing[0])
        return metrics

    def loop(self, *, quiet: bool, callbacks: Sequence[Callback] = (), notes: Sequence[str] = ()) -> RunResult:
        """Train to the last frame or a signal. A run that cannot go on is saved before the error is raised."""
        first = self.replicas.first
        if first:
            self.callbacks = [*own_callbacks(self.config.run), *callbacks]
        title = f"{self.directory.path} ({self.config.preset}: {self.config.env.id})"
        with ExitStack() as open_until_the_end:
            open_until_the_end.callback(self.fleet.close)
            if first:
                log = RunLog(self.directory.path, tensorboard=self.config.run.tensorboard, append=self.resumed)
                self.log = open_until_the_end.enter_context(log)
                self.log.notes.extend(notes)
            display = self.around.display or make_display(self.config.run.frames, title, quiet=quiet or not first)
            open_until_the_end.enter_context(display)
            try:
                self._tell(lambda callback: callback.on_start(self))
                finished = self._loop(display)
            except Stopped:
                finished = False
            except ReplicaLost:
                # After a signal a slow process gives its unroll up and leaves; the others find it gone. Otherwise the
                # last checkpoint stands: within an unroll the learner is out of step with its targets.
                if not self.stop.requested():
                    raise
                finished = False
            except RunFailed:
                if first:
                    self.learner.give_up_unroll()
                    self._try_to_save()
                raise
            finally:
                if first:
                    self._write([self.news])
                    self._show_notes(display)
            if first:
                self.learner.give_up_unroll()
                if self.learner.learner_step != self.logged[0]:
                    self._log(display)
                display.note(f"checkpoint: {self.save()}")
        evaluation, step = None, self.learner.learner_step
        if finished and first:
            weights = self.learner_weights()
            evaluation = final_evaluation(self.config, self.directory, weights, step, self.agent_steps, display.note)
        result = RunResult(
            directory=self.directory.path,
            learner_steps=step,
            agent_steps=self.agent_steps,
            frames=self.frames,
            seconds=self.seconds,
            return_mean=self.window.summary()["return_mean"],
            evaluation=evaluation,
            finished=finished,
        )
        self._tell(lambda callback: callback.on_end(self, result))
        return result

    def _loop(self, display: Display) -> bool:
        """Collect and update until the last frame (True) or a signal (False); log, and save, at intervals.

        It stops and saves only between unrolls, so that no collected batch is lost and targets stay in step with them;
        an unroll that takes long after a signal is given up.
        """
        settings = self.config.run
        if self.resumed and self.replicas.first:
            self.log.truncate_to(self.learner.learner_step, self.agent_steps)
            self.window.add(self.log.read_episodes())
        before, started = self.seconds, time.perf_counter()
        due_log, due_save = Interval(settings.log_seconds), Interval(settings.checkpoint_seconds)
        self.stopwatch.reset()
        self.logged, save_is_due, stopping = (self.learner.learner_step, self.agent_steps, started), False, False

        with self.stop:
            while self.fleet.batches_waiting or (self.frames < settings.frames and not stopping):
                self.metrics = self.advance()
                self.seconds = before + time.perf_counter() - started
                between_unrolls = not self.fleet.batches_waiting
                if between_unrolls:
                    stopping = self._hear()
                if not self.replicas.first:
                    continue
                steps = settings.log_steps
                if between_unrolls and due_log() if steps is None else self.learner.learner_step % steps == 0:
                    self._log(display)
                save_is_due = save_is_due or due_save()
                if save_is_due and between_unrolls:
                    self._try_to_save()
                    save_is_due = False
                if between_unrolls:
                    self._tell(lambda callback: callback.on_unroll(self))
                self._show_notes(display)
        return not stopping

    def _hear(self) -> bool:
        """Take in the news of all processes; whether any of them was told to stop."""
        stop, counts = self.stop.requested(), self.fleet.counts()
        mine, self.news = dataclasses.replace(self.news, stop=stop, counts=counts), News()
        everything = self.replicas.exchange(mine)
        self.fleet_counts.clear()
        for news in everything:
            self.window.add(news.episodes)
            self.fleet_counts.update(news.counts)
        if self.replicas.first:
            self._write(everything)
        return any(news.stop for news in everything)

    def _write(self, everything: Sequence[News]) -> None:
        for news in everything:
            self.log.write_episodes(news.episodes, self.agent_steps, self.frames, self.seconds)
            self.environment_faults += len(news.faults)
            for text in news.faults:
                self.log.write_fault(text)
            for diagnosis in news.skipped:
                self.log.write_skipped(diagnosis)
        if episodes := [episode for news in everything for episode in news.episodes]:
            self._tell(lambda callback: callback.on_episodes(self, episodes))

    def _try_to_save(self) -> None:
        """A full or read-only disk shall not end the training: the previous checkpoint stays, and the next may fit."""
        try:
            self.save()
        except OSError as error:
            self.log.note_disk_fault("a checkpoint", error)

    def _show_notes(self, display: Display) -> None:
        while self.log.notes:
            display.note(self.log.notes.pop(0))

    def learner_weights(self) -> Weights:
        """A copy of the online network's tensors: the newest policy, for evaluation."""
        return self.learner.online_weights()

    def _log(self, display: Display) -> None:
        _, steps, moment = self.logged
        self.logged = self.learner.learner_step, self.agent_steps, time.perf_counter()
        line = {
            "learner_step": self.learner.learner_step,
            "agent_steps": self.agent_steps,
            "frames": self.frames,
            "seconds": self.seconds,
            "steps_per_second": (self.agent_steps - steps) / (self.logged[2] - moment),
            **self.window.summary(),
            **{f"phase/{phase}": share for phase, share in self.stopwatch.shares().items()},
            "faults/environment": self.environment_faults,
            "faults/disk": self.log.disk_faults,
            **self.fleet_counts,
            **self.metrics,
        }
        written = self.log.write_metrics(line)
        display.update(written)
        self._tell(lambda callback: callback.on_log(self, written))
        self.stopwatch.reset()
