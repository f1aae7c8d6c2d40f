"""Observations as a program has them, checked and brought into the terms of an agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from vmpo.errors import UserError
from vmpo.records import ArraySpec, Observation
from vmpo.suites.spaces import encode

_INTEGERS, _NUMBERS, _TEXTS = "iub", "iubf", "U"
"""Kinds of numpy's types."""


class Received(NamedTuple):
    arrays: Observation
    """Arrays ``[B, ...]`` of the spec, none of which is the caller's."""
    single: bool
    """They were given without a batch axis."""


def received(spec: dict[str, ArraySpec], observation: Any) -> Received:
    """Take what the environment gives, or the arrays of the spec by name, or its only array bare.

    What could be either of two is what the environment gives.
    """
    arrays: Observation = {}
    singles: dict[str, bool] = {}
    for name, array in spec.items():
        given = _as_array(name, _part(spec, name, observation))
        if _is_final(array, given):
            arrays[name], singles[name] = given[None], True
            continue
        raw = array.form is not None and _fits(given, array.form.shape, _raw_kinds(array))
        if not raw and not _fits(given, array.shape, _NUMBERS if array.kind == "vector" else _INTEGERS):
            what = "text" if given.dtype.kind == "U" else given.dtype.name
            raise UserError(
                f"observation {name!r} must be {_expected(array)}; given: {what} of the shape {given.shape}"
            )
        if _outside(array, given, raw):
            raise UserError(f"observation {name!r} must be {_expected(array)}; given: {given.tolist()!r:.80}")
        singles[name] = given.ndim == len(array.form.shape if raw and array.form else array.shape)
        batch = given[None] if singles[name] else given
        arrays[name] = encode(array, batch) if raw else batch.astype(array.dtype, copy=False)
    if len(spec) > 1 and len({(singles[name], len(part)) for name, part in arrays.items()}) > 1:
        lengths = (f"{name} {'none' if singles[name] else len(part)}" for name, part in arrays.items())
        raise UserError(f"the parts of an observation must have one batch size, or none; given: {', '.join(lengths)}")
    return Received(arrays, singles[name])


def _part(spec: dict[str, ArraySpec], name: str, observation: Any) -> Any:
    """What was given for an array: by its name, bare, or at its place in the environment's own observation."""
    form, by_name = spec[name].form, not isinstance(observation, np.ndarray) and isinstance(observation, Mapping)
    if by_name and name in observation:
        return observation[name]
    path = form.path if form is not None else (name,)
    in_tuple = isinstance(observation, tuple) and bool(path) and isinstance(path[0], int)
    if len(spec) == 1 and not by_name and not in_tuple:
        return observation
    part = observation
    try:
        for key in path:
            part = part[key]
        if part is not observation:
            return part
    except (KeyError, IndexError, TypeError, ValueError):
        pass
    given = ", ".join(map(str, observation)) if by_name else f"a {type(observation).__name__}"
    raise UserError(f"the observation has no {name!r}; expected: {', '.join(spec)}; given: {given}")


def _as_array(name: str, part: Any) -> np.ndarray:
    try:
        return np.array(part)
    except (ValueError, TypeError, RuntimeError) as error:
        raise UserError(f"observation {name!r} is no array: {' '.join(str(error).split())}") from error


def _is_final(array: ArraySpec, given: np.ndarray) -> bool:
    """The usual case, told at once: nothing is to be done with a single vector or picture."""
    if given.shape != array.shape or given.dtype != array.dtype or array.kind == "text":
        return False
    return array.form is None or array.form.shape == array.shape


def _fits(given: np.ndarray, shape: tuple[int, ...], kinds: str) -> bool:
    """Whether it has the shape, with or without a batch axis."""
    whole = given.shape
    return given.dtype.kind in kinds and (whole == shape or (len(whole) == len(shape) + 1 and whole[1:] == shape))


def _raw_kinds(array: ArraySpec) -> str:
    if array.kind == "text":
        return _TEXTS
    return _INTEGERS if array.kind == "pixels" or (array.form and array.form.sizes) else _NUMBERS


def _outside(array: ArraySpec, given: np.ndarray, raw: bool) -> bool:
    """Whether an integer means nothing: no choice, no byte or no word."""
    if array.kind == "pixels":
        return given.dtype != np.uint8 and bool(((given < 0) | (given > 255)).any())
    if array.kind == "text":
        return not raw and bool(((given < 0) | (given > array.vocabulary)).any())
    if not raw or array.form is None or not array.form.sizes:
        return False
    choices = given.reshape(-1, len(array.form.sizes)).astype(np.int64) - array.form.start
    return bool(((choices < 0) | (choices >= array.form.sizes)).any())


def _expected(array: ArraySpec) -> str:
    form = array.form
    if form is not None and array.kind == "text":
        return "a text, or a list of texts for a batch"
    what = {"pixels": "integers from 0 to 255", "vector": "numbers", "text": f"integers up to {array.vocabulary}"}
    if form is not None and form.sizes:
        ranges = (f"{low} to {low + size - 1}" for low, size in zip(form.start, form.sizes, strict=True))
        what["vector"] = f"integers from {', '.join(dict.fromkeys(ranges))}"
    shape = form.shape if form is not None else array.shape
    return f"{what[array.kind]} of the shape {shape}, or ({', '.join(map(str, ('B', *shape)))}) for a batch"
