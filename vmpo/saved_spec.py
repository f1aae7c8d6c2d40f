"""The spec of an environment as JSON: a checkpoint has it, so that its agent acts where the environment is not."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from vmpo.errors import UserError
from vmpo.records import (
    ActionForm,
    ActionSpec,
    ArraySpec,
    ContinuousActions,
    DiscreteActions,
    EnvSpec,
    ObservationForm,
)


def to_json(spec: EnvSpec) -> dict[str, Any]:
    """Plain values; a bound that is infinite is None."""
    return json.loads(json.dumps(asdict(spec), default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [x if np.isfinite(x) else None for x in value.tolist()]
    return value.name if isinstance(value, np.dtype) else str(value)


def from_json(values: Any) -> EnvSpec:
    """The way back."""
    try:
        return EnvSpec(
            observation={name: _array(**array) for name, array in values["observation"].items()},
            action=_action(**values["action"]),
            tasks=tuple(values["tasks"]),
            action_repeat=int(values["action_repeat"]),
            steps_per_second=values["steps_per_second"],
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(f"the checkpoint's spec of the environment cannot be read: {error!r}") from error


def _array(*, shape: list[int], dtype: str, form: dict[str, Any] | None, **rest: Any) -> ArraySpec:
    own = None if form is None else ObservationForm(**_tuples(form))
    return ArraySpec(shape=tuple(map(int, shape)), dtype=np.dtype(dtype), form=own, **rest)


def _action(*, form: dict[str, Any] | None, **rest: list[Any]) -> ActionSpec:
    own = None if form is None else ActionForm(**_tuples(form))
    if "sizes" in rest:
        return DiscreteActions(sizes=tuple(map(int, rest["sizes"])), form=own)
    dtype = np.dtype(own.dtype if own is not None else np.float32)
    low, high = (
        np.array([infinite if x is None else x for x in rest[name]], dtype)
        for name, infinite in (("low", -np.inf), ("high", np.inf))
    )
    return ContinuousActions(low=low, high=high, form=own)


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
