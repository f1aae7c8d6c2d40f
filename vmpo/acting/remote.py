"""Actors in processes of their own, on this machine or on others, which Ray starts and restarts.

The learner asks its actors for unrolls, either in turns with its updates or some ahead of them. A request names the
newest weights, one array in Ray's object store, which the actor fetches if it has others.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayError, RayTaskError
from torch import Tensor

from vmpo.acting.actor import Actor, allocate
from vmpo.acting.faults import Report
from vmpo.acting.local import WAIT_SECONDS, Collected, QueueingFleet
from vmpo.config import Config
from vmpo.errors import RunFailed, UserError
from vmpo.records import EnvSpec, EpisodeResult, Trajectory, Weights, num_bytes, tree_map

POLL_SECONDS = 0.5
"""How often a waiting learner looks for signals and for actors to ask."""

REST_SECONDS = 1.0
"""How long a lost actor is left alone before it is asked again."""

BORROW_SECONDS = 10.0
"""How long a learner waits, beyond what is usual, for its own actors before it asks those of other learners."""


@dataclass(frozen=True, kw_only=True)
class Unroll:
    """What an actor sends: a trajectory of numpy arrays, which the learner reads in place, and what happened in it."""

    arrays: Trajectory
    episodes: list[EpisodeResult]
    faults: list[str]
    spent: dict[str, float]
    """Seconds by phase."""
    fetched: int
    """Bytes of weights that were fetched for it."""


@dataclass(frozen=True, kw_only=True)
class GivenUp:
    """What an actor sends that cannot go on: why, and the faults that it had not told yet."""

    error: UserError | RunFailed
    faults: list[str]


class RemoteActor:
    """The inside of an actor's process. Its environments start with the first request."""

    def __init__(
        self,
        config: Config,
        make_actor: Callable[[int, Report], Actor],
        make_spec: Callable[[], EnvSpec],
        begins: bool = False,
    ) -> None:
        """``make_actor`` is given a number: 0 where a run ``begins``, so that it plays what an actor in the learner's
        own process would, and one that differs between starts where run or actor go on: it then plays new episodes."""
        self._config, self._make_actor, self._make_spec, self._begins = config, make_actor, make_spec, begins
        self._actor: Actor | None = None
        self._held = ""
        """Name of the array that the actor's weights came from: learners that start again repeat their versions."""
        self._faults: list[str] = []

    def node(self) -> str:
        """The machine that it runs on."""
        return ray.get_runtime_context().get_node_id()

    def spec(self) -> EnvSpec:
        return self._make_spec()

    def unroll(self, version: int, array: list[Any]) -> Unroll | GivenUp:
        """The next unroll, with the weights of that version; ``array`` holds a reference to them."""
        try:
            return self._unroll(version, array)
        except (UserError, RunFailed) as error:
            return GivenUp(error=error, faults=self._faults)

    def _unroll(self, version: int, array: list[Any]) -> Unroll:
        if self._actor is None:
            first = self._begins and not ray.get_runtime_context().was_current_actor_reconstructed
            start = 0 if first else time.time_ns() % 2**31
            actor = self._actor = self._make_actor(start, lambda text: self._faults.append(text))
            length = self._config.learner.unroll_length
            self._slot = allocate(actor.env.spec, actor.family, actor.network, length, actor.env.num_envs, pin=False)
        fetched = 0
        if self._held != array[0].hex():
            self._held, flat = array[0].hex(), ray.get(array[0])
            fetched = flat.nbytes
            self._actor.load(Weights(version=version, tensors=unpacked(flat, self._actor.network.state_dict())))
        episodes = self._actor.unroll(self._slot)
        faults, self._faults = self._faults, []
        return Unroll(
            arrays=tree_map(Tensor.numpy, self._slot),
            episodes=episodes,
            faults=faults,
            spent=self._actor.stopwatch.take(),
            fetched=fetched,
        )


@dataclass(frozen=True, kw_only=True)
class Crew:
    """The actors of one learner, as they are handed to its process."""

    handles: tuple[Any, ...]
    others: tuple[Any, ...]
    """Those of other learners, to fall back on."""
    spec: EnvSpec

    def fleet(self, config: Config, weights: Weights, report: Report, safe_moment: Callable[[], None]) -> RemoteFleet:
        kind = TurnsFleet if config.actors.fleet == "serial" else AheadFleet
        return kind(config, self.handles, weights, report, safe_moment, self.others)


@dataclass(frozen=True, kw_only=True)
class Request:
    actor: int
    version: int
    since: float


class RemoteFleet(QueueingFleet):
    """The actors of one learner. Those that are lost are asked again once Ray has restarted them.

    A learner that hears from none of its own, whose machine may be gone, borrows from the others until it does.
    """

    def __init__(
        self,
        config: Config,
        handles: Sequence[Any],
        weights: Weights,
        report: Report = lambda fault: None,
        safe_moment: Callable[[], None] = lambda: None,
        others: Sequence[Any] = (),
    ) -> None:
        super().__init__(config, envs_of_each(config, len(handles)))
        self.actors: list[Actor] = []
        self._handles, self._own = (*handles, *others), len(handles)
        self._report, self._safe_moment = report, safe_moment
        self._asked: dict[Any, Request] = {}
        """Oldest first."""
        self._pending: Counter[int] = Counter()
        """How many requests each actor has."""
        self._resting: dict[int, float] = {}
        """Lost actors, and when they may be asked again."""
        self._slowest = 0.0
        """The longest that an answer took."""
        self._counts = {"actors/lost_unrolls": 0, "transport/unroll_bytes": 0, "transport/weight_bytes": 0}
        self.publish(weights)

    def publish(self, weights: Weights) -> None:
        self._version, self._array = weights.version, ray.put(packed(weights.tensors))

    def counts(self) -> dict[str, float]:
        lost = sum(index < self._own for index in self._resting)
        return {"actors/present": self._own - lost, **self._counts, **super().counts()}

    def close(self) -> None:
        self._asked.clear()
        self._pending.clear()

    def _take(self) -> Collected:
        began = time.monotonic()
        while time.monotonic() < began + WAIT_SECONDS:
            self._safe_moment()
            self._ask(silent=time.monotonic() > began + BORROW_SECONDS + 2 * self._slowest)
            handle = self._oldest_ready()
            if handle is None:
                continue
            request = self._asked.pop(handle)
            self._pending[request.actor] -= 1
            try:
                answer: Unroll | GivenUp = ray.get(handle)
            except RayTaskError:
                raise  # It answered, with an error of ours.
            except RayError:
                self._counts["actors/lost_unrolls"] += 1
                self._resting[request.actor] = time.monotonic() + REST_SECONDS
                continue
            self._resting.pop(request.actor, None)
            self._slowest = max(self._slowest, time.monotonic() - request.since)
            if isinstance(answer, GivenUp):
                for fault in answer.faults:
                    self._report(fault)
                raise answer.error
            if self._wanted(request):
                return self._received(answer)
        raise RunFailed(f"no actor finished an unroll within {WAIT_SECONDS:.0f} s")

    def _oldest_ready(self) -> Any | None:
        """Ray tells the ready ones in an order of its own, in which some would wait until their data is old."""
        if not self._asked:
            time.sleep(REST_SECONDS / 10)
            return None
        ray.wait(list(self._asked), timeout=POLL_SECONDS)
        ready, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        return next((handle for handle in self._asked if handle in ready), None)

    def _ask(self, *, silent: bool) -> None:
        """Give the actors their requests; ``silent`` if none was answered for long."""
        raise NotImplementedError

    def _wanted(self, request: Request) -> bool:
        """Whether the learner can use the answer."""
        raise NotImplementedError

    def _request(self, index: int) -> None:
        handle = self._handles[index].unroll.remote(self._version, [self._array])
        self._asked[handle] = Request(actor=index, version=self._version, since=time.monotonic())
        self._pending[index] += 1

    def _try_the_lost(self) -> None:
        """One that rested is asked once, to hear whether it is back."""
        for index, until in self._resting.items():
            if not self._pending[index] and time.monotonic() > until:
                self._request(index)

    def _received(self, unroll: Unroll) -> Collected:
        self._counts["transport/unroll_bytes"] += num_bytes(unroll.arrays)
        self._counts["transport/weight_bytes"] += unroll.fetched
        batch = tree_map(readable, unroll.arrays)
        return Collected(
            batch=batch,
            episodes=unroll.episodes,
            agent_steps=batch.behaviour[..., 0].numel(),
            faults=unroll.faults,
            spent=unroll.spent,
        )


class TurnsFleet(RemoteFleet):
    """Actors and learner take turns, as in one process: their unrolls, all by the newest weights, are learned together.

    What a lost actor owes is asked of the others.
    """

    def __init__(self, config: Config, handles: Sequence[Any], *arguments: Any, **options: Any) -> None:
        super().__init__(config, handles, *arguments, **options)
        self._missing = 0
        """Unrolls that the learner still waits for."""
        self._asked_now: Counter[int] = Counter()
        """How many of them each actor was asked for."""

    def _release(self) -> None:
        self._missing = self._unrolls_together
        self._asked_now.clear()

    def _ask(self, *, silent: bool) -> None:
        if silent:
            for request in self._asked.values():
                self._resting.setdefault(request.actor, time.monotonic() + REST_SECONDS)
        self._try_the_lost()
        present = [index for index in range(self._own) if index not in self._resting]
        if not present and silent:
            present = [index for index in range(self._own, len(self._handles)) if index not in self._resting]
        coming = sum(r.version == self._version and r.actor not in self._resting for r in self._asked.values())
        for _ in range(self._missing - coming if present else 0):
            index = min(present, key=lambda i: self._asked_now[i])
            self._asked_now[index] += 1
            self._request(index)

    def _wanted(self, request: Request) -> bool:
        if request.version != self._version:
            return False
        self._missing -= 1
        return True


class AheadFleet(RemoteFleet):
    """Actors go on while the learner learns, so that their data lags: each has a few requests, none runs away."""

    def __init__(self, config: Config, handles: Sequence[Any], *arguments: Any, **options: Any) -> None:
        super().__init__(config, handles, *arguments, **options)
        self._ahead = 1 + config.actors.queue_size // len(handles)
        self._borrowing = False

    def _ask(self, *, silent: bool) -> None:
        self._borrowing |= silent
        self._try_the_lost()
        for index in range(len(self._handles)):
            wanted = self._ahead if index < self._own else int(self._borrowing)
            while index not in self._resting and self._pending[index] < wanted:
                self._request(index)

    def _wanted(self, request: Request) -> bool:
        self._borrowing &= request.actor >= self._own
        # The others go on while the learner learns.
        self._ask(silent=False)
        return True


def envs_of_each(config: Config, actors: int) -> int:
    """Environments of each of a learner's actors. Those that take turns with it divide what one actor would have."""
    return config.actors.num_envs // actors if config.actors.fleet == "serial" else config.actors.num_envs


def packed(tensors: dict[str, Tensor]) -> np.ndarray:
    """All tensors as one array of bytes, in their order."""
    flat = [x.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for x in tensors.values()]
    return torch.cat(flat).numpy()


def unpacked(flat: np.ndarray, like: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of ``packed``, for tensors of the same names, shapes and types."""
    parts = np.split(flat, np.cumsum([x.nbytes for x in like.values()]))
    # Copies begin where any type may.
    return {
        name: torch.from_numpy(part.copy()).view(x.dtype).view(x.shape)
        for (name, x), part in zip(like.items(), parts, strict=False)
    }


def readable(array: np.ndarray) -> Tensor:
    """A tensor on the memory of the object store, which must not be written to; the learner only reads."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
