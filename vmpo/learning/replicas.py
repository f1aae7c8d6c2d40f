"""Learner processes that train one agent together over torch.distributed: gloo between CPUs, NCCL between GPUs.

``torchrun --nproc-per-node 2 -m vmpo train ...`` starts them. Each has its share of the batch and of the environments.
They meet once per update, to average their gradients, and once per unroll, to hear of each other's episodes.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

import torch
from torch import Tensor, distributed

from vmpo.config import Config
from vmpo.errors import RunFailed, UserError

Item = TypeVar("Item")

RENDEZVOUS = "VMPO_RENDEZVOUS"
"""Environment variable: where the processes meet, in place of torchrun's address; such as ``file:///tmp/meeting``."""

TIMEOUT = "VMPO_REPLICA_TIMEOUT"
"""Environment variable: seconds to wait for another process, such as one whose simulator hangs, before the run stops.
"""

TIMEOUT_SECONDS = 900.0


class ReplicaLost(RunFailed):
    """Another learner process has ended, or does not answer."""


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """All learner processes, seen from one of them. One alone has nothing to exchange."""

    rank: int = 0
    count: int = 1
    timeout: float = TIMEOUT_SECONDS
    """Seconds to wait for the others."""

    @property
    def first(self) -> bool:
        """The one that writes files and talks to the user."""
        return self.rank == 0

    def mean_(self, tensors: Sequence[Tensor]) -> None:
        """Average tensors of one type and device in place, all of them in one exchange."""
        if self.count == 1:
            return
        flat = torch.cat([x.detach().reshape(-1) for x in tensors])
        with self._waiting(flat):
            distributed.all_reduce(flat)
        parts = (flat / self.count).split([x.numel() for x in tensors])
        for x, part in zip(tensors, parts, strict=True):
            x.detach().copy_(part.view_as(x))

    def sum(self, x: Tensor) -> Tensor:
        if self.count > 1:
            with self._waiting(x):
                distributed.all_reduce(x)
        return x

    def gather(self, x: Tensor) -> list[Tensor]:
        """The same tensor of every process, in the order of their ranks."""
        if self.count == 1:
            return [x]
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.count)]
        with self._waiting(x):
            distributed.all_gather(parts, x.contiguous())
        return parts

    def broadcast_(self, x: Tensor, source: int = 0) -> None:
        if self.count > 1:
            with self._waiting(x):
                distributed.broadcast(x.detach(), source % self.count)

    def exchange(self, item: Item) -> list[Item]:
        """Any small object of every process, in the order of their ranks."""
        if self.count == 1:
            return [item]
        items: list[Item] = [item] * self.count
        with self._waiting():
            distributed.all_gather_object(items, item)
        return items

    def together(self, work: Callable[[], Item]) -> Item:
        """Do what may fail on some of them only, and then fails on all: none waits for one that has given up."""
        error, result = None, None
        try:
            result = work()
        except (UserError, RunFailed, OSError) as raised:
            error = raised
        if error is not None and self.count == 1:
            raise error
        for other in self.exchange(error):
            if other is not None:
                raise other
        return result  # type: ignore[return-value]

    def from_first(self, work: Callable[[], Item]) -> Item:
        """What the first of them makes, or its error, for all."""
        made = [self.together(lambda: work() if self.first else None)]
        if self.count > 1:
            with self._waiting():
                distributed.broadcast_object_list(made, device=torch.device("cpu"))
        return made[0]  # type: ignore[return-value]

    @contextmanager
    def _waiting(self, exchanged: Tensor | None = None) -> Iterator[None]:
        try:
            if exchanged is not None and exchanged.is_cuda:
                # NCCL would wait for a lost process without a word, where gloo says that it is gone.
                distributed.all_reduce(torch.zeros(1))
            yield
        except RuntimeError as error:
            raise ReplicaLost(
                f"learner process {self.rank} of {self.count} has lost another one, which has ended or did not answer "
                f"within {self.timeout:.0f} s ({TIMEOUT}): {str(error).splitlines()[0]}"
            ) from error


def num_replicas() -> int:
    """How many learner processes were started together, by what torchrun sets."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


@contextmanager
def joined() -> Iterator[Replicas]:
    """Meet the other learner processes, if there are any, and leave them at the end."""
    count = num_replicas()
    if count == 1:
        yield Replicas()
        return
    if os.environ.get("LOCAL_WORLD_SIZE") == str(count) and sys.platform == "linux":
        # Between processes of one machine nothing needs to be reachable from outside.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    rank, timeout = int(os.environ["RANK"]), float(os.environ.get(TIMEOUT, TIMEOUT_SECONDS))
    try:
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            init_method=os.environ.get(RENDEZVOUS, "env://"),
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=timeout),
        )
    except (RuntimeError, ValueError) as error:
        raise ReplicaLost(f"learner process {rank} of {count} did not meet the others: {error}") from error
    try:
        yield Replicas(rank=rank, count=count, timeout=timeout)
    finally:
        distributed.destroy_process_group()


def share_of(config: Config, replicas: Replicas) -> Config:
    """The part of a run that one learner process does: its unrolls of a batch, its environments, its device."""
    local_rank = os.environ.get("LOCAL_RANK", "0") if replicas.count > 1 else "0"

    def device(name: str) -> str:
        return re.sub(r"^cuda$", f"cuda:{local_rank}", name)

    return replace(
        config,
        learner=replace(
            config.learner,
            batch_size=config.learner.batch_size // replicas.count,
            device=device(config.learner.device),
        ),
        actors=replace(
            config.actors,
            num_envs=config.actors.num_envs // replicas.count,
            device=device(config.actors.device),
        ),
    )
