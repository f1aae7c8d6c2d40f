"""Actors in processes of their own on this machine, which act while the learner works.

Unrolls and weights lie in shared memory. A pipe to each actor carries which slot to fill next, and what happened in it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from vmpo.acting.actor import Actor
from vmpo.acting.faults import Faults, Report
from vmpo.acting.local import WAIT_SECONDS, Collected, QueueingFleet
from vmpo.config import Config
from vmpo.errors import MAIN_HINT, RunFailed, UserCodeError, UserError, told
from vmpo.memory import keep_freed_memory
from vmpo.records import EpisodeResult, Trajectory, Weights, tree_map
from vmpo.shared_memory import SharedArrays, held
from vmpo.signals import Stopped, ignore, unheard

POLL_SECONDS = 0.5
"""How often a waiting learner looks for signals."""

NICENESS = 2
"""By how much an actor's process gives way to the learner's."""

CLOSE_SECONDS = 10.0
"""How long an actor may take to close its environments before it is killed."""

MakeActor: TypeAlias = Callable[..., Actor]
"""From a number that differs between restarts, with ``report`` and ``safe_moment`` as ``Actor`` has them; pickled,
hence a function of a module or a ``functools.partial`` of one."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What the learner and its actors share."""

    slots: list[SharedArrays[Trajectory]]
    weights: SharedArrays[dict[str, Any]]
    control: SharedArrays[dict[str, Any]]
    """The ``version`` of the weights, and whether the fleet is ``closing``."""
    lock: Any
    """Of the weights and their version."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What an actor says of a request."""

    episodes: list[EpisodeResult] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Tracebacks of environments that were made anew."""
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds by phase, ``rest`` being mostly for the request."""
    error: Exception | None = None
    """Why it ends."""


class ActorProcess:
    """The learner's end of one actor."""

    def __init__(self, index: int, make_actor: MakeActor, attempt: int, threads: int, memory: Memory) -> None:
        self.index = index
        self.requests: deque[tuple[int, int]] = deque()
        """Those without an answer: their numbers, and the slots to fill."""
        self.answered = False
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        # Not daemonic: those may not have children, and environments may.
        self._process = context.Process(target=_serve, args=(theirs, make_actor, attempt, threads, memory))
        with unheard():
            self._process.start()
        theirs.close()

    def ask(self, number: int, slot: int) -> None:
        self.requests.append((number, slot))
        # One that is gone is found so when its answer is waited for.
        _try_to_send(self.connection, slot)

    def answer(self) -> tuple[int, Answer] | None:
        """The slot of the oldest request and the answer to it; None if the process is gone."""
        try:
            answer = self.connection.recv()
        except (EOFError, OSError):
            return None
        self.answered = True
        return self.requests.popleft()[1], answer

    def code(self) -> int | None:
        """Its exit code, once it has gone."""
        self._process.join(timeout=CLOSE_SECONDS)
        return self._process.exitcode

    def leave(self) -> None:
        """Tell it to end."""
        _try_to_send(self.connection, None)

    def close(self, until: float) -> None:
        self._process.join(timeout=max(0.0, until - time.monotonic()))
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.connection.close()


class OverlappingFleet(QueueingFleet):
    """Actor processes fill slots ahead of the learner, as many as there are. Data may lag by some versions."""

    def __init__(
        self,
        config: Config,
        make_actors: Sequence[MakeActor],
        slot: Trajectory,
        weights: Weights,
        *,
        report: Report,
        safe_moment: Callable[[], None] = lambda: None,
        since: int = 0,
    ) -> None:
        """``slot`` is like the unrolls that the actors will make; ``since`` tells a run that goes on from its start."""
        super().__init__(config, config.actors.num_envs)
        self.actors: list[Actor] = []
        count, ahead = len(make_actors), config.actors.queue_size
        arrays, tensors = tree_map(Tensor.numpy, slot), {k: x.cpu().numpy() for k, x in weights.tensors.items()}
        self._memory = Memory(
            # One in the hands of each actor, those that wait, and one batch with the learner.
            slots=[SharedArrays(arrays) for _ in range(count + ahead + self._unrolls_together)],
            weights=SharedArrays(tensors),
            control=SharedArrays({"version": np.zeros(1, np.int64), "closing": np.zeros(1, np.bool_)}),
            lock=multiprocessing.get_context("spawn").Lock(),
        )
        if config.learner.device.startswith("cuda"):
            for memory in self._memory.slots:
                memory.pin()
        self._slots = [memory.tensors() for memory in self._memory.slots]
        self._weights, self._control = self._memory.weights.tensors(), self._memory.control.arrays()
        self._free, self._lent = list(range(len(self._slots))), list[int]()
        self._ahead = 1 + -(-ahead // count)
        """Requests that each actor has: none is idle while the learner works."""
        self._asked = self._lost = 0
        self._make_actors, self._report, self._safe_moment = make_actors, report, safe_moment
        self._faults = Faults(config.actors.max_faults, report)
        self._since, self._threads_before = since, torch.get_num_threads()
        self._threads, learner_threads = share_of_threads(config)
        torch.set_num_threads(learner_threads)
        self._processes: list[ActorProcess] = []
        self.publish(weights)

    def publish(self, weights: Weights) -> None:
        with held(self._memory.lock):
            for name, tensor in weights.tensors.items():
                self._weights[name].copy_(tensor)
            self._control["version"][0] = weights.version

    def counts(self) -> dict[str, float]:
        return {"actors/lost_unrolls": self._lost, **super().counts()}

    def close(self) -> None:
        self._control["closing"][0] = True
        for process in self._processes:
            process.leave()
        until = time.monotonic() + CLOSE_SECONDS
        for process in self._processes:
            process.close(until)
        self._processes = []
        for memory in self._memory.slots:
            memory.unpin()
        torch.set_num_threads(self._threads_before)

    def _release(self) -> None:
        # Not before the first batch is asked for: until then a resumed run sets weights.
        if not self._processes:
            self._processes = [self._start(index) for index in range(len(self._make_actors))]
        self._free += self._lent
        self._lent = []

    def _start(self, index: int) -> ActorProcess:
        attempt = self._since + 104_729 * self._faults.count
        return ActorProcess(index, self._make_actors[index], attempt, self._threads, self._memory)

    def _take(self) -> Collected:
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            self._safe_moment()
            self._ask()
            ready = wait([process.connection for process in self._processes], timeout=POLL_SECONDS)
            if not ready:
                continue
            # In the order in which they were asked: nothing waits until it is old.
            process = min((p for p in self._processes if p.connection in ready), key=lambda p: p.requests)
            received = process.answer()
            if received is None:
                self._replace(process)
                continue
            slot, answer = received
            for text in answer.faults:
                self._report(text)
            if answer.error is not None:
                raise answer.error
            self._faults.unrolled()
            self._lent.append(slot)
            # It goes on while the learner learns.
            self._ask()
            batch = self._slots[slot]
            steps = batch.behaviour[..., 0].numel()
            return Collected(batch=batch, episodes=answer.episodes, agent_steps=steps, spent=answer.spent)
        raise RunFailed(f"no actor finished an unroll within {WAIT_SECONDS:.0f} s")

    def _ask(self) -> None:
        """Hand out the free slots, to those first who have the fewest."""
        while self._free:
            process = min(self._processes, key=lambda p: len(p.requests))
            if len(process.requests) == self._ahead:
                return
            self._asked += 1
            process.ask(self._asked, self._free.pop())

    def _replace(self, process: ActorProcess) -> None:
        """Start a lost actor again; what it had been asked for is asked anew."""
        code = process.code()
        if code == 1 and not process.answered:
            raise UserError(f"an actor's process ended at its start; {MAIN_HINT}")
        self._lost += len(process.requests)
        self._free += [slot for _, slot in process.requests]
        process.close(until=0.0)
        self._processes.remove(process)
        lost = ActorLost(f"the process of actor {process.index} ended with code {code}")
        self._faults.survive(lost, learned=bool(self._control["version"][0] > 0))
        self._processes.append(self._start(process.index))


class ActorLost(RunFailed):
    """An actor's process ended, or its work went wrong in a way that no restart would mend."""


def share_of_threads(config: Config) -> tuple[int, int]:
    """Threads of torch for each actor and for the learner: together as many as there are, if there are enough."""
    available, count = torch.get_num_threads(), config.actors.num_actors
    if config.learner.device != "cpu":
        return max(1, available // count), available
    each = max(1, available // (count + 1))
    return each, max(1, available - count * each)


def _serve(connection: Connection, make_actor: MakeActor, attempt: int, threads: int, memory: Memory) -> None:
    """The inside of an actor's process: fill slots until told to end, or until the learner is gone."""
    # The learner hears signals, and ends its actors itself.
    ignore()
    # Where cores are short the learner goes first: an actor that is ahead of it can wait.
    os.nice(NICENESS)
    torch.set_num_threads(threads)
    keep_freed_memory()
    slots = [shared.tensors() for shared in memory.slots]
    weights, control = memory.weights.tensors(), memory.control.arrays()
    version, closing = control["version"], control["closing"]
    faults: list[str] = []

    def safe_moment() -> None:
        if closing[0]:
            raise Stopped

    actor = None
    try:
        for slot in _requests(connection):
            if actor is None:
                actor = make_actor(attempt, report=faults.append, safe_moment=safe_moment)
            if actor.version != version[0]:
                with held(memory.lock):
                    actor.load(Weights(version=int(version[0]), tensors=weights))
            episodes = actor.unroll(slots[slot])
            _try_to_send(connection, Answer(episodes=episodes, faults=list(faults), spent=actor.stopwatch.take()))
            faults.clear()
    except Stopped:
        pass
    except Exception as error:
        if isinstance(error, UserCodeError) or not isinstance(error, UserError | RunFailed):
            faults.append(traceback.format_exc())
            error = ActorLost(f"an actor failed with {told(error)}; faults.log has the traceback")
        _try_to_send(connection, Answer(faults=faults, error=error))
    finally:
        if actor is not None:
            actor.env.close()


def _requests(connection: Connection) -> Iterator[int]:
    while True:
        try:
            slot = connection.recv()
        except (EOFError, OSError):
            return
        if slot is None:
            return
        yield slot


def _try_to_send(connection: Connection, message: Any) -> None:
    """Nothing is left to say to a process that has gone."""
    with contextlib.suppress(ConnectionError):
        connection.send(message)
