"""A vector environment over worker processes, for simulators that are slow, are not thread-safe or need OpenGL.

Each worker is spawned (nothing of the parent's threads or GPU is inherited) and plays several environments one after
another. Observations, actions and outcomes lie in shared memory; a pipe per worker carries only the word to go on.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any, Protocol, TypeAlias

import numpy as np

from vmpo.errors import MAIN_HINT, RunFailed, UserError, told
from vmpo.records import ContinuousActions, EnvSpec, Observation, Timestep
from vmpo.shared_memory import SharedArrays
from vmpo.signals import ignore, unheard
from vmpo.suites import arrivals
from vmpo.suites.schedule import TaskSchedule

PATIENCE_SECONDS = 300.0
"""The longest wait for a step: it may reset an environment, and that may compile a level."""

START_SECONDS = 600.0
"""The longest wait for the first answer, which takes imports and the making of all environments."""

CLOSE_SECONDS = 5.0
"""How long a worker may take to close its environments before it is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one step of a single environment led to."""

    observation: Observation
    reward: float
    terminated: bool = False
    truncated: bool = False


class SingleEnv(Protocol):
    """One environment, as a worker plays it. It need not reset itself."""

    def reset(self, seed: int) -> Observation: ...

    def step(self, action: np.ndarray) -> Outcome: ...

    def render(self) -> np.ndarray: ...

    def close(self) -> None: ...


MakeEnv: TypeAlias = Callable[[str], SingleEnv]
"""From a task's name to an environment; pickled, hence a function of a module or a ``functools.partial`` of one."""


class WorkerEnv:
    """Environments of one or several tasks in worker processes.

    The parent decides when an episode ends and what is played next, the workers only obey: a time limit, staggered
    first episodes and the change of tasks need nothing of the simulator.
    """

    def __init__(
        self,
        make_env: MakeEnv,
        spec: EnvSpec,
        num_envs: int,
        *,
        workers: int = 0,
        max_episode_steps: int | None = None,
        first_limits: np.ndarray | None = None,
    ) -> None:
        """``workers`` 0 means one per core; ``first_limits`` cut the first episodes (``arrivals.first_limits``)."""
        self.spec, self.num_envs = spec, num_envs
        self._limit, self._first_limits = max_episode_steps, first_limits
        self._schedule = TaskSchedule(len(spec.tasks), num_envs)
        self._resetting = np.zeros(num_envs, np.bool_)
        self._episode_steps = np.zeros(num_envs, np.int64)
        self._steps = 0
        shared = SharedArrays(_arrays(spec, num_envs))
        self._arrays = shared.arrays()
        context = multiprocessing.get_context("spawn")
        self._workers: list[Worker] = []
        self._finish = Finalize(self, _close, (self._workers,), exitpriority=1)
        try:
            for slots in np.array_split(np.arange(num_envs), min(num_envs, workers or os.cpu_count() or 1)):
                self._workers.append(Worker(context, make_env, spec, shared, slots))
        except BaseException:
            self.close()
            raise

    def reset(self, seed: int) -> Timestep:
        """Start all episodes anew; the same seed gives the same stream."""
        self._schedule = TaskSchedule(len(self.spec.tasks), self.num_envs)
        self._resetting = np.zeros(self.num_envs, np.bool_)
        self._episode_steps = np.zeros(self.num_envs, np.int64)
        self._steps = 0
        arrays = self._arrays
        arrays.task[:] = self._schedule.assigned
        arrays.resetting[:] = True
        self._call("seed", arrivals.env_seeds(seed, self.num_envs))
        self._call("step")
        return arrivals.opening(dict(arrays.observation), self.num_envs, self._schedule.assigned.copy())

    def step(self, actions: np.ndarray) -> Timestep:
        self.send(actions)
        return self.receive()

    def send(self, actions: np.ndarray) -> None:
        """Let the workers go on with these actions."""
        arrays = self._arrays
        arrays.action[:] = actions
        for index in np.flatnonzero(self._resetting):
            self._schedule.next_task(int(index))
        arrays.task[:] = self._schedule.assigned
        arrays.resetting[:] = self._resetting
        for worker in self._workers:
            worker.send("step")

    def receive(self) -> Timestep:
        """Wait for the arrivals of the actions that were sent."""
        self._wait()
        arrays = self._arrays
        self._schedule.count()
        self._steps += 1
        self._episode_steps = np.where(self._resetting, 0, self._episode_steps + 1)
        truncated = arrays.truncated.copy()
        if self._limit is not None:
            truncated |= self._episode_steps >= self._limit
        if self._first_limits is not None:
            truncated |= (self._first_limits == self._steps) & ~arrays.terminated
        timestep = arrivals.next_step(
            dict(arrays.observation),
            arrays.reward,
            arrays.terminated,
            truncated,
            resetting=self._resetting,
            task=self._schedule.assigned.copy(),
        )
        self._resetting = timestep.ended
        return timestep

    def render(self) -> np.ndarray:
        self._workers[0].send("render")
        return self._workers[0].receive()

    def close(self) -> None:
        self._finish()

    def _call(self, command: str, seeds: Sequence[int] = ()) -> None:
        for worker in self._workers:
            worker.send(command, [seeds[slot] for slot in worker.slots] if seeds else None)
        self._wait()

    def _wait(self) -> None:
        """Take every worker's answer before the first error is raised: one left behind would answer the next call."""
        errors = []
        for worker in self._workers:
            try:
                worker.receive()
            except (UserError, WorkerFault, TimeoutError) as error:
                errors.append(error)
        if errors:
            raise errors[0]


def _close(workers: list[Worker]) -> None:
    """At the latest at the end of the process, before multiprocessing ends its children by a signal they ignore."""
    for worker in workers:
        worker.close()
    workers.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrays:
    """Views of the shared memory, one row per environment."""

    observation: Observation
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    task: np.ndarray
    resetting: np.ndarray


def _arrays(spec: EnvSpec, num_envs: int) -> Arrays:
    def empty(*shape: int, dtype: Any) -> np.ndarray:
        return np.zeros((num_envs, *shape), dtype)

    continuous = isinstance(spec.action, ContinuousActions)
    return Arrays(
        observation={name: empty(*part.shape, dtype=part.dtype) for name, part in spec.observation.items()},
        action=empty(spec.action.width, dtype=np.float32 if continuous else np.int64),
        reward=empty(dtype=np.float32),
        terminated=empty(dtype=np.bool_),
        truncated=empty(dtype=np.bool_),
        task=empty(dtype=np.int64),
        resetting=empty(dtype=np.bool_),
    )


class Worker:
    """The parent's end of one worker process."""

    def __init__(
        self, context: Any, make_env: MakeEnv, spec: EnvSpec, shared: SharedArrays[Arrays], slots: np.ndarray
    ) -> None:
        self.slots = [int(slot) for slot in slots]
        self._command, self._started, self._answered = "", False, False
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, make_env, spec.tasks, shared, self.slots), daemon=True
        )
        with unheard():
            self._process.start()
        theirs.close()

    def send(self, command: str, argument: Any = None) -> None:
        self._command = command
        try:
            self._connection.send((command, argument))
        except (BrokenPipeError, OSError) as error:
            raise self._died() from error

    def receive(self) -> Any:
        """Wait for the answer to the last command; an exception in the worker is raised here, with its traceback."""
        patience = PATIENCE_SECONDS if self._started else START_SECONDS
        if not self._connection.poll(patience):
            raise TimeoutError(f"environments {self._names()} did not answer within {patience:.0f} s")
        self._started = self._command == "step"
        try:
            kind, value = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._died() from error
        self._answered = True
        if kind == "error":
            what, text = value
            mistaken = isinstance(what, UserError)
            fault = what if mistaken else WorkerFault(f"environments {self._names()} failed: {what}")
            raise fault from WorkerTraceback(text)
        return value

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.send(("close", None))
        self._process.join(timeout=CLOSE_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._connection.close()

    def _died(self) -> WorkerFault:
        self._process.join(timeout=1.0)
        code = self._process.exitcode
        hint = "" if self._answered or code != 1 else f"; {MAIN_HINT}"
        return WorkerFault(f"the process of environments {self._names()} ended with code {code}{hint}")

    def _names(self) -> str:
        return f"{self.slots[0]} to {self.slots[-1]}"


class WorkerFault(RunFailed):
    """A worker raised, or its process ended."""


class WorkerTraceback(Exception):
    """Where in its process a worker raised, in words: the cause of what is raised for it here."""


def _serve(
    connection: Connection, make_env: MakeEnv, tasks: tuple[str, ...], shared: SharedArrays[Arrays], slots: list[int]
) -> None:
    """The worker's loop: obey until told to close or the parent is gone."""
    # The parent still needs its environments after a signal, and closes them itself.
    ignore()
    arrays = shared.arrays()
    players = {slot: Player(make_env, tasks) for slot in slots}
    try:
        while True:
            command, argument = connection.recv()
            if command == "close":
                break
            try:
                answer = None
                if command == "seed":
                    for slot, seed in zip(slots, argument, strict=True):
                        players[slot].seed(seed)
                elif command == "step":
                    for slot in slots:
                        players[slot].play(arrays, slot)
                else:
                    answer = players[slots[0]].render()
                connection.send(("done", answer))
            except Exception as error:
                # Ours can be pickled; what others raise is told.
                what = error if isinstance(error, UserError) else told(error)
                connection.send(("error", (what, traceback.format_exc())))
    except (EOFError, OSError):
        pass
    finally:
        for player in players.values():
            player.close()


class Player:
    """One environment in a worker, made anew where its task changes."""

    def __init__(self, make_env: MakeEnv, tasks: tuple[str, ...]) -> None:
        self._make_env, self._tasks = make_env, tasks
        self._env: SingleEnv | None = None
        self._task = -1
        self._random = np.random.default_rng()

    def seed(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def play(self, arrays: Arrays, slot: int) -> None:
        """Take the step or the reset that stands in the slot, and write what it led to."""
        if arrays.resetting[slot]:
            outcome = Outcome(observation=self._reset(int(arrays.task[slot])), reward=0.0)
        else:
            assert self._env is not None
            outcome = self._env.step(arrays.action[slot])
        for name, value in outcome.observation.items():
            arrays.observation[name][slot] = value
        arrays.reward[slot] = outcome.reward
        arrays.terminated[slot] = outcome.terminated
        arrays.truncated[slot] = outcome.truncated

    def _reset(self, task: int) -> Observation:
        if self._env is None or task != self._task:
            self.close()
            self._env, self._task = self._make_env(self._tasks[task]), task
        return self._env.reset(int(self._random.integers(2**31)))

    def render(self) -> np.ndarray:
        assert self._env is not None
        return self._env.render()

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None
