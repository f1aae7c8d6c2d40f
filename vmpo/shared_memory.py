"""Arrays in memory that several processes of this machine share."""

from __future__ import annotations

import ctypes
import math
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from vmpo.records import tree_map

Tree = TypeVar("Tree")

ALIGNMENT = 64
"""Bytes of a cache line."""

LOCK_SECONDS = 10.0
"""How long a lock may be held; it takes a copy of the weights."""


class SharedArrays(Generic[Tree]):
    """The arrays of a record or a dict, zeroed. May be handed to a process that is being spawned."""

    def __init__(self, like: Tree) -> None:
        size = 0

        def place(x: np.ndarray) -> tuple[int, tuple[int, ...], np.dtype]:
            nonlocal size
            offset, size = size, size + -(-x.nbytes // ALIGNMENT) * ALIGNMENT
            return offset, x.shape, x.dtype

        self._layout: Any = tree_map(place, like)
        self._pinned = False
        self._block: Any = multiprocessing.get_context("spawn").RawArray("b", size + ALIGNMENT)

    def arrays(self) -> Tree:
        """Views of the memory, in whichever process."""

        def view(place: tuple[int, tuple[int, ...], np.dtype]) -> np.ndarray:
            offset, shape, dtype = place
            return np.frombuffer(self._block, dtype, math.prod(shape), offset).reshape(shape)

        return tree_map(view, self._layout)

    def tensors(self) -> Any:
        """The same as tensors."""
        return tree_map(torch.from_numpy, self.arrays())

    def pin(self) -> None:
        """Let a GPU read it directly."""
        error = torch.cuda.cudart().cudaHostRegister(ctypes.addressof(self._block), len(self._block), 0)
        torch.cuda.check_error(int(error))
        self._pinned = True

    def unpin(self) -> None:
        """Before it is freed: its addresses may come back as another array's, which could not be pinned then."""
        if self._pinned:
            error = torch.cuda.cudart().cudaHostUnregister(ctypes.addressof(self._block))
            torch.cuda.check_error(int(error))
            self._pinned = False


@contextmanager
def held(lock: Any) -> Iterator[None]:
    """Hold a lock between processes. One that was killed within never lets go: it is not waited for longer."""
    lock.acquire(timeout=LOCK_SECONDS)
    try:
        yield
    finally:
        # Another one that did not wait for longer may have let go already.
        with suppress(ValueError):
            lock.release()
