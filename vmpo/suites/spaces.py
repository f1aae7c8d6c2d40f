"""Gymnasium's spaces in the terms of ``vmpo.records``: observations as named arrays, and actions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from vmpo.errors import UserError
from vmpo.records import (
    ActionForm,
    ActionSpec,
    ArraySpec,
    ContinuousActions,
    DiscreteActions,
    Observation,
    ObservationForm,
)
from vmpo.suites.words import VOCABULARY, hash_words

if TYPE_CHECKING:
    from gymnasium import Space

MAX_WORDS = 64
"""Words of a text that are kept."""

_OBSERVATIONS = "Box, Discrete, MultiDiscrete, MultiBinary, Text, and Dict or Tuple of these"
_ACTIONS = "Discrete, MultiDiscrete, MultiBinary and Box of floats"


def observation_spec(space: Space) -> dict[str, ArraySpec]:
    """A space of observations as named arrays; the parts of a Dict or Tuple are called ``outer.inner``."""
    return dict(_leaves(space, name="", path=()))


def _leaves(space: Space, name: str, path: tuple[Any, ...]) -> Iterator[tuple[str, ArraySpec]]:
    """Every part of a space that is not itself a container."""
    from gymnasium import spaces

    parts: list[tuple[Any, Space]]
    if isinstance(space, spaces.Dict):
        parts = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        parts = list(enumerate(space.spaces))
    else:
        yield name or "observation", _array(space, name, path)
        return
    for key, part in parts:
        yield from _leaves(part, f"{name}.{key}" if name else str(key), (*path, key))


def _array(space: Space, name: str, path: tuple[Any, ...]) -> ArraySpec:
    """Images as they are, choices as one-hot vectors one after another, texts as the hashed codes of their words.

    All other numbers are one float32 vector.
    """
    from gymnasium import spaces

    form = ObservationForm(path=path, shape=tuple(space.shape or ()))
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(form.shape) in (2, 3):
        return _pixels(form)
    if isinstance(space, spaces.Box) and not (space.dtype == np.uint8 and len(form.shape) > 3):
        return _vector(math.prod(form.shape), form)
    if isinstance(space, spaces.MultiBinary):
        return _vector(math.prod(form.shape), form)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        sizes, start = _choices(space)
        return _vector(sum(sizes), replace(form, sizes=sizes, start=start))
    if isinstance(space, spaces.Text):
        # Half as many words fit into a text as it has characters.
        length = min(MAX_WORDS, (space.max_length + 1) // 2)
        return ArraySpec(shape=(length,), dtype=np.dtype(np.int64), kind="text", vocabulary=VOCABULARY, form=form)
    of_what = f"observation {name!r}" if name else "the observation"
    raise UserError(
        f"{of_what} has the space {space}, which is not supported; "
        f"supported: {_OBSERVATIONS} (images of rank 2 or 3); wrap the environment"
    )


def _pixels(form: ObservationForm) -> ArraySpec:
    """The channel axis is the smaller one of the first and the last; a gray image gets one."""
    shape = form.shape if len(form.shape) == 3 else (1, *form.shape)
    channels_last = len(form.shape) == 3 and shape[2] <= shape[0]
    return ArraySpec(
        shape=shape, dtype=np.dtype(np.uint8), kind="pixels", layout="HWC" if channels_last else "CHW", form=form
    )


def _vector(width: int, form: ObservationForm) -> ArraySpec:
    return ArraySpec(shape=(width,), dtype=np.dtype(np.float32), kind="vector", form=form)


def _choices(space: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many there are of each, and the lowest of each."""
    sizes = space.nvec if hasattr(space, "nvec") else space.n
    return tuple(np.ravel(sizes).tolist()), tuple(np.ravel(space.start).tolist())


def encoded(spec: dict[str, ArraySpec], batch: Any) -> Observation:
    """A batch of observations, as a vector environment delivers it, as the arrays of its spec."""
    arrays: Observation = {}
    for name, array in spec.items():
        assert array.form is not None
        part = batch
        for key in array.form.path:
            part = part[key]
        arrays[name] = encode(array, part)
    return arrays


def encode(array: ArraySpec, batch: Any) -> np.ndarray:
    """A batch of one part of an observation. What already has its final form is passed on without a copy."""
    form = array.form
    assert form is not None
    if array.kind == "text":
        return np.stack([hash_words(text, length=array.shape[0]) for text in batch])
    if form.sizes:
        columns = batch.reshape(len(batch), -1).astype(np.int64, copy=False) + _offsets(form.sizes, form.start)
        result = np.zeros((len(batch), sum(form.sizes)), array.dtype)
        result[np.arange(len(batch))[:, None], columns] = 1.0
    else:
        shape = array.shape if form.seen is None else (-1,)
        result = batch.reshape(len(batch), *shape).astype(array.dtype, copy=False)
    return result if form.seen is None else result[:, form.seen]


@cache
def _offsets(sizes: tuple[int, ...], start: tuple[int, ...]) -> np.ndarray:
    """From a choice to its column among the columns of all."""
    return np.cumsum(sizes) - sizes - start


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
    """How an agent acts in a space; its ``native`` is the way back."""
    from gymnasium import spaces

    form = ActionForm(shape=tuple(space.shape or ()), dtype=str(space.dtype))
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        sizes, start = _choices(space)
        return DiscreteActions(sizes=sizes, form=replace(form, start=start))
    if isinstance(space, spaces.MultiBinary):
        return DiscreteActions(sizes=(2,) * math.prod(form.shape), form=form)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return ContinuousActions(low=space.low.ravel(), high=space.high.ravel(), form=form)
    raise UserError(
        f"the actions have the space {space}, which is not supported; supported: {_ACTIONS}; wrap the environment"
    )
