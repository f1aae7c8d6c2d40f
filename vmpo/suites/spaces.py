"""Gymnasium's spaces in the terms of ``vmpo.records``: observations to named arrays, actions back to the space's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from vmpo.errors import UserError
from vmpo.records import ActionSpec, ArraySpec, ContinuousActions, DiscreteActions, Observation
from vmpo.suites.words import VOCABULARY, hash_words

if TYPE_CHECKING:
    from gymnasium import Space

Encoding: TypeAlias = tuple[ArraySpec, Callable[[Any], np.ndarray]]
"""What an observation becomes, and the function that makes it from a batch as a vector environment delivers it."""

MAX_WORDS = 64
"""Words of a text that are kept."""

_OBSERVATIONS = "Box, Discrete, MultiDiscrete, MultiBinary, Text, and Dict or Tuple of these"
_ACTIONS = "Discrete, MultiDiscrete, MultiBinary and Box of floats"


class ObservationEncoder:
    """Flattens a space of observations to named arrays; the parts of a Dict or Tuple are called ``outer.inner``.

    What already has its final form is passed on without a copy. Everything else is written into arrays that are
    allocated once and overwritten by the next call.
    """

    def __init__(self, space: Space, num_envs: int) -> None:
        self._leaves = list(_leaves(space, num_envs, name="", path=()))
        self.spec: dict[str, ArraySpec] = {name: spec for name, _, (spec, _) in self._leaves}

    def __call__(self, batch: Any) -> Observation:
        encoded: Observation = {}
        for name, path, (_, encode) in self._leaves:
            part = batch
            for key in path:
                part = part[key]
            encoded[name] = encode(part)
        return encoded


def _leaves(
    space: Space, num_envs: int, name: str, path: tuple[Any, ...]
) -> Iterator[tuple[str, tuple[Any, ...], Encoding]]:
    """Name, path and encoding of every part of a space that is not itself a container."""
    from gymnasium import spaces

    parts: list[tuple[Any, Space]]
    if isinstance(space, spaces.Dict):
        parts = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        parts = list(enumerate(space.spaces))
    else:
        yield name or "observation", path, _encoding(space, num_envs, name)
        return
    for key, part in parts:
        yield from _leaves(part, num_envs, f"{name}.{key}" if name else str(key), (*path, key))


def _encoding(space: Space, num_envs: int, name: str) -> Encoding:
    from gymnasium import spaces

    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3):
        return _pixels(space.shape)
    if isinstance(space, spaces.Box) and not (space.dtype == np.uint8 and len(space.shape) > 3):
        return _vector(space.shape, space.dtype, num_envs)
    if isinstance(space, spaces.MultiBinary):
        return _vector(space.shape, space.dtype, num_envs)
    if isinstance(space, spaces.Discrete):
        return _one_hot(np.array([space.n]), np.array([space.start]), num_envs)
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hot(space.nvec.ravel(), space.start.ravel(), num_envs)
    if isinstance(space, spaces.Text):
        return _words(min(MAX_WORDS, (space.max_length + 1) // 2))
    of_what = f"observation {name!r}" if name else "the observation"
    raise UserError(
        f"{of_what} has the space {space}, which is not supported; "
        f"supported: {_OBSERVATIONS} (images of rank 2 or 3); wrap the environment"
    )


def _pixels(shape: tuple[int, ...]) -> Encoding:
    """Images as they are. The channel axis is the smaller one of the first and the last; a gray image gets one."""
    if len(shape) == 2:
        return ArraySpec(shape=(1, *shape), dtype=np.dtype(np.uint8), kind="pixels"), lambda batch: batch[:, None]
    spec = ArraySpec(
        shape=shape, dtype=np.dtype(np.uint8), kind="pixels", layout="HWC" if shape[2] <= shape[0] else "CHW"
    )
    return spec, lambda batch: batch


def _vector(shape: tuple[int, ...], dtype: Any, num_envs: int) -> Encoding:
    """Numbers of any type and shape as one float32 vector."""
    spec = ArraySpec(shape=(int(np.prod(shape)),), dtype=np.dtype(np.float32), kind="vector")
    if dtype == np.float32 and len(shape) == 1:
        return spec, lambda batch: batch
    numbers = np.zeros((num_envs, *spec.shape), np.float32)

    def encode(batch: np.ndarray) -> np.ndarray:
        np.copyto(numbers, batch.reshape(num_envs, -1), casting="unsafe")
        return numbers

    return spec, encode


def _one_hot(sizes: np.ndarray, start: np.ndarray, num_envs: int) -> Encoding:
    """One or several choices, the one-hot vectors of all one after another."""
    spec = ArraySpec(shape=(int(sizes.sum()),), dtype=np.dtype(np.float32), kind="vector")
    hot = np.zeros((num_envs, *spec.shape), np.float32)
    offsets = np.cumsum(sizes) - sizes - start

    def encode(batch: np.ndarray) -> np.ndarray:
        hot.fill(0.0)
        np.put_along_axis(hot, batch.reshape(num_envs, -1) + offsets, 1.0, axis=1)
        return hot

    return spec, encode


def _words(length: int) -> Encoding:
    """Texts as the hashed codes of their words; half as many words fit into a text as it has characters."""
    spec = ArraySpec(shape=(length,), dtype=np.dtype(np.int64), kind="text", vocabulary=VOCABULARY)
    return spec, lambda batch: np.stack([hash_words(text, length=length) for text in batch])


def misfit(space: Space, observation: Any, name: str = "the observation") -> str | None:
    """How an observation differs from its space so that no batch can hold it."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Dict | spaces.Tuple):
        # As objects: a ragged list has a shape, too.
        shape = np.asarray(observation, object).shape
        if space.shape is None or shape == space.shape:
            return None
        return f"{name} has the shape {shape}, its space {space.shape}"
    parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    for key, part in parts:
        try:
            inner = observation[key]
        except (LookupError, TypeError):
            return f"{name} has no part {key!r}, its space has"
        if (found := misfit(part, inner, f"{name}[{key!r}]")) is not None:
            return found
    return None


def action_spec(space: Space) -> ActionSpec:
    """How an agent acts in a space; see ``action_decoder`` for the way back."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return DiscreteActions(sizes=(int(space.n),))
    if isinstance(space, spaces.MultiDiscrete):
        return DiscreteActions(sizes=tuple(int(n) for n in space.nvec.ravel()))
    if isinstance(space, spaces.MultiBinary):
        return DiscreteActions(sizes=(2,) * int(np.prod(space.shape)))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high = (bound.astype(np.float32).ravel() for bound in (space.low, space.high))
        return ContinuousActions(low=low, high=high)
    raise UserError(
        f"the actions have the space {space}, which is not supported; supported: {_ACTIONS}; wrap the environment"
    )


def action_decoder(space: Space) -> Callable[[np.ndarray], np.ndarray]:
    """From executable actions ``[B, width]`` to a batch of the space's own elements, in its shape and type."""
    from gymnasium import spaces

    shape, dtype = (-1, *(space.shape or ())), space.dtype
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        start = np.asarray(space.start)
        return lambda actions: (actions.reshape(shape) + start).astype(dtype)
    if isinstance(space, spaces.Box) and dtype != np.float32:
        # A float32 bound may lie just outside the space's own: 0.4 is rounded up.
        low, high = space.low, space.high
        return lambda actions: np.clip(actions.reshape(shape).astype(dtype), low, high)
    return lambda actions: actions.reshape(shape).astype(dtype, copy=False)
