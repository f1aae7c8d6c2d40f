"""Tensors in memory that several processes of this machine share."""

from __future__ import annotations

import ctypes
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from vmpo.records import tree_map

Tree = TypeVar("Tree")

ALIGNMENT = 64
"""Bytes of a cache line."""

LOCK_SECONDS = 10.0
"""How long a lock may be held; it takes a copy of the weights."""


class SharedTensors(Generic[Tree]):
    """The tensors of a record or a dict, zeroed. May be handed to a process that is being spawned."""

    def __init__(self, like: Tree) -> None:
        size = 0

        def place(x: Tensor) -> tuple[int, tuple[int, ...], torch.dtype]:
            nonlocal size
            offset, size = size, size + -(-x.nbytes // ALIGNMENT) * ALIGNMENT
            return offset, tuple(x.shape), x.dtype

        self._layout: Any = tree_map(place, like)
        self._block: Any = multiprocessing.get_context("spawn").RawArray("b", size + ALIGNMENT)

    def tensors(self) -> Tree:
        """Views of the memory, in whichever process."""

        def view(place: tuple[int, tuple[int, ...], torch.dtype]) -> Tensor:
            offset, shape, dtype = place
            count = torch.Size(shape).numel()
            if count == 0:
                return torch.empty(shape, dtype=dtype)
            return torch.frombuffer(self._block, dtype=dtype, count=count, offset=offset).view(shape)

        return tree_map(view, self._layout)

    def pin(self) -> None:
        """Let a GPU read it directly."""
        error = torch.cuda.cudart().cudaHostRegister(ctypes.addressof(self._block), len(self._block), 0)
        torch.cuda.check_error(int(error))


@contextmanager
def held(lock: Any) -> Iterator[None]:
    """Hold a lock between processes. One that was killed within never lets go: it is not waited for longer."""
    lock.acquire(timeout=LOCK_SECONDS)
    try:
        yield
    finally:
        lock.release()
