"""Fleets of actors in this process: one that alternates with the learner, one that overlaps with it.

A batch is made of whole unrolls. Several unrolls of the environments make one batch, or one unroll of many environments
makes several batches, which the learner then takes one after another; with ``learner.passes`` it takes them again.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from vmpo.acting.actor import Actor, allocate
from vmpo.config import Config
from vmpo.records import EpisodeResult, Trajectory, Weights, concatenate, split

MakeActor = Callable[[int], Actor]
"""Builds the actor of the given index."""

WAIT_SECONDS = 3600.0
"""The longest wait for an actor before the run stops."""

CLOSE_SECONDS = 10.0
"""The longest wait for an actor thread when the fleet closes; it ends with the process in any case."""

POLL_SECONDS = 0.1
"""How often a waiting actor looks whether the fleet is closing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    batch: Trajectory
    """Owned by the fleet and overwritten after the next call of ``collect``."""
    episodes: list[EpisodeResult]
    agent_steps: int
    """Steps that were taken for it: none if the batch was waiting from an earlier unroll."""
    faults: list[str] = field(default_factory=list)
    """Tracebacks of environments in other processes that were made anew."""


class Fleet(Protocol):
    actors: list[Actor]

    @property
    def batches_waiting(self) -> bool:
        """Whether the learner has not yet had all batches of the last unrolls."""
        ...

    def collect(self) -> Collected: ...

    def publish(self, weights: Weights) -> None: ...

    def counts(self) -> dict[str, int]:
        """What the fleet counts of itself; those of all learner processes are added up."""
        ...

    def close(self) -> None: ...


class SerialFleet:
    """Acts, then lets the learner work, each with all cores. An unroll is always made by the newest target."""

    def __init__(self, config: Config, make_actor: MakeActor) -> None:
        self.actors = [make_actor(0)]
        columns = max(config.learner.batch_size, config.actors.num_envs)
        slot = _slot(config, self.actors[0], columns)
        self._unrolls = split(slot, columns // config.actors.num_envs)
        self._batches = split(slot, columns // config.learner.batch_size) * config.learner.passes
        self._agent_steps = columns * config.learner.unroll_length
        self._waiting: list[Trajectory] = []

    @property
    def batches_waiting(self) -> bool:
        return bool(self._waiting)

    def collect(self) -> Collected:
        episodes: list[EpisodeResult] = []
        taken = 0
        if not self._waiting:
            episodes = [episode for unroll in self._unrolls for episode in self.actors[0].unroll(unroll)]
            self._waiting = list(self._batches)
            taken = self._agent_steps
        return Collected(batch=self._waiting.pop(0), episodes=episodes, agent_steps=taken)

    def publish(self, weights: Weights) -> None:
        self.actors[0].load(weights)

    def counts(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        self.actors[0].env.close()


class QueueingFleet:
    """Makes batches of the unrolls that its actors finish meanwhile. How those arrive is up to its subclasses."""

    def __init__(self, config: Config) -> None:
        columns = max(config.learner.batch_size, config.actors.num_envs)
        self._unrolls_together = columns // config.actors.num_envs
        self._batches_together = columns // config.learner.batch_size
        self._passes = config.learner.passes
        self._waiting: list[Trajectory] = []

    @property
    def batches_waiting(self) -> bool:
        return bool(self._waiting)

    def collect(self) -> Collected:
        if self._waiting:
            return Collected(batch=self._waiting.pop(0), episodes=[], agent_steps=0)
        self._release()
        unrolls = [self._take() for _ in range(self._unrolls_together)]
        self._waiting = split(concatenate([u.batch for u in unrolls]), self._batches_together) * self._passes
        return Collected(
            batch=self._waiting.pop(0),
            episodes=[episode for unroll in unrolls for episode in unroll.episodes],
            agent_steps=sum(unroll.agent_steps for unroll in unrolls),
            faults=[text for unroll in unrolls for text in unroll.faults],
        )

    def counts(self) -> dict[str, int]:
        return {}

    def _release(self) -> None:
        """The learner needs the unrolls of the last batches no more."""

    def _take(self) -> Collected:
        """Wait for the next unroll."""
        raise NotImplementedError


class OverlappingFleet(QueueingFleet):
    """Actor threads fill slots while the learner works, held back by a bounded queue. Data may lag by some versions."""

    def __init__(self, config: Config, make_actor: MakeActor) -> None:
        super().__init__(config)
        self.actors = [make_actor(index) for index in range(config.actors.num_actors)]
        self._ready: queue.Queue[Collected | Exception] = queue.Queue(maxsize=config.actors.queue_size)
        self._free: queue.Queue[Trajectory] = queue.Queue()
        # One slot in the hands of each actor, the queue full, and one batch with the learner.
        for _ in range(len(self.actors) + config.actors.queue_size + self._unrolls_together):
            self._free.put(_slot(config, self.actors[0], config.actors.num_envs))
        self._lent: list[Trajectory] = []
        self._weights: Weights | None = None
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._act, args=(actor,), daemon=True) for actor in self.actors]

    def publish(self, weights: Weights) -> None:
        self._weights = weights

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout=CLOSE_SECONDS)
        for actor in self.actors:
            actor.env.close()

    def _act(self, actor: Actor) -> None:
        try:
            while (slot := self._take_free()) is not None:
                weights = self._weights
                if weights is not None and weights.version != actor.version:
                    actor.load(weights)
                episodes = actor.unroll(slot)
                self._hand_over(Collected(batch=slot, episodes=episodes, agent_steps=slot.behaviour[..., 0].numel()))
        except Exception as error:
            self._hand_over(error)

    def _release(self) -> None:
        for thread in self._threads:
            # Not before the first batch is asked for: a resumed run sets weights and random states until then.
            if thread.ident is None:
                thread.start()
        while self._lent:
            self._free.put(self._lent.pop())

    def _take(self) -> Collected:
        try:
            unroll = self._ready.get(timeout=WAIT_SECONDS)
        except queue.Empty:
            raise TimeoutError(f"no actor finished an unroll within {WAIT_SECONDS:.0f} s") from None
        if isinstance(unroll, Exception):
            raise unroll
        self._lent.append(unroll.batch)
        return unroll

    def _take_free(self) -> Trajectory | None:
        """Wait for a free slot; None once the fleet closes."""
        while not self._stop.is_set():
            with contextlib.suppress(queue.Empty):
                return self._free.get(timeout=POLL_SECONDS)
        return None

    def _hand_over(self, item: Collected | Exception) -> None:
        """Wait for a place in the queue, unless the fleet closes."""
        while not self._stop.is_set():
            with contextlib.suppress(queue.Full):
                self._ready.put(item, timeout=POLL_SECONDS)
                return


def make_fleet(config: Config, make_actor: MakeActor) -> Fleet:
    return SerialFleet(config, make_actor) if config.actors.fleet == "serial" else OverlappingFleet(config, make_actor)


def _slot(config: Config, actor: Actor, batch: int) -> Trajectory:
    pin = config.learner.device.startswith("cuda")
    return allocate(actor.env.spec, actor.family, actor.network, config.learner.unroll_length, batch, pin)
