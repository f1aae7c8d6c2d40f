"""Fleets of actors: one in the learner's process, which alternates with it, and what those elsewhere have in common.

A batch is made of whole unrolls. Several unrolls of the environments make one batch, or one unroll of many environments
makes several batches, which the learner then takes one after another; with ``learner.passes`` it takes them again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from vmpo.acting.actor import Actor, allocate
from vmpo.config import Config
from vmpo.records import EpisodeResult, Trajectory, Weights, concatenate, split

WAIT_SECONDS = 3600.0
"""The longest wait for an actor before the run stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    batch: Trajectory
    """Owned by the fleet and overwritten after the next call of ``collect``."""
    episodes: list[EpisodeResult]
    agent_steps: int
    """Steps that were taken for it: none if the batch was waiting from an earlier unroll."""
    faults: list[str] = field(default_factory=list)
    """Tracebacks of environments in other processes that were made anew."""
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds that actors in other processes spent on it, by phase."""


class Fleet(Protocol):
    actors: list[Actor]

    @property
    def batches_waiting(self) -> bool:
        """Whether the learner has not yet had all batches of the last unrolls."""
        ...

    def collect(self) -> Collected: ...

    def publish(self, weights: Weights) -> None: ...

    def counts(self) -> dict[str, float]:
        """What the fleet counts of itself; those of all learner processes are added up."""
        ...

    def close(self) -> None: ...


class SerialFleet:
    """Acts, then lets the learner work, each with all cores. An unroll is always made by the newest target."""

    def __init__(self, config: Config, actor: Actor) -> None:
        self.actors = [actor]
        columns = max(config.learner.batch_size, config.actors.num_envs)
        length, pin = config.learner.unroll_length, config.learner.device.startswith("cuda")
        slot = allocate(actor.env.spec, actor.family, actor.network, length, columns, pin)
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

    def counts(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self.actors[0].env.close()


class QueueingFleet:
    """Makes batches of the unrolls of actors elsewhere. How those arrive is up to its subclasses."""

    def __init__(self, config: Config, envs_of_each: int) -> None:
        """``envs_of_each`` are the environments of one actor."""
        columns = max(config.learner.batch_size, config.actors.num_envs)
        self._unrolls_together = columns // envs_of_each
        self._batches_together = columns // config.learner.batch_size
        self._passes = config.learner.passes
        self._waiting: list[Trajectory] = []
        self._spent: Counter[str] = Counter()

    @property
    def batches_waiting(self) -> bool:
        return bool(self._waiting)

    def collect(self) -> Collected:
        if self._waiting:
            return Collected(batch=self._waiting.pop(0), episodes=[], agent_steps=0)
        self._release()
        unrolls = [self._take() for _ in range(self._unrolls_together)]
        for unroll in unrolls:
            self._spent.update(unroll.spent)
        self._waiting = split(concatenate([u.batch for u in unrolls]), self._batches_together) * self._passes
        return Collected(
            batch=self._waiting.pop(0),
            episodes=[episode for unroll in unrolls for episode in unroll.episodes],
            agent_steps=sum(unroll.agent_steps for unroll in unrolls),
            faults=[text for unroll in unrolls for text in unroll.faults],
        )

    def counts(self) -> dict[str, float]:
        return {f"actors/{phase}_seconds": self._spent[phase] for phase in ("simulate", "infer", "rest")}

    def _release(self) -> None:
        """The learner needs the unrolls of the last batches no more."""

    def _take(self) -> Collected:
        """Wait for the next unroll."""
        raise NotImplementedError
