"""A trained agent as a file for other programs: its greedy step, with everything that it remembers going in and out.

The inputs are named tensors with a leading batch axis of any size: the arrays of the observation under their own
names and, for an agent with memory, ``first``, ``previous_reward``, ``state.previous_action`` and the core's
``state.*``. The outputs are ``action``, which the environment can execute, and a ``next_state.*`` for every
``state.*``. Where ``first`` is True all memory is forgotten, so that zeros will do as the first state.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from vmpo.errors import RunFailed, UserError, missing_extra, unknown
from vmpo.networks.agent import AgentInput
from vmpo.policy import Policy, load
from vmpo.records import ActionSpec, AgentState, ArraySpec, ContinuousActions, DiscreteActions

Tensors: TypeAlias = dict[str, Tensor]

STATE, NEXT_STATE, PREVIOUS_ACTION = "state.", "next_state.", "previous_action"

RESERVED = ("first", "previous_reward", "action")

TOLERANCE = 1e-4
"""Largest difference that rounding may cause, as a share of the larger of 1 and the greatest number compared."""

ENVIRONMENTS, STEPS = 3, 24
"""Size of the check: environments side by side, each of which starts anew now and then, and steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    path: Path
    inputs: dict[str, tuple[int, ...]]
    """Shapes without the batch axis."""
    outputs: tuple[str, ...]
    difference: float
    """The largest between the file's and the agent's actions and states."""

    def lines(self) -> list[str]:
        """What was written, for a reader."""
        shapes = (f"{name} {list(shape)}".replace("[]", "[ ]") for name, shape in self.inputs.items())
        return [
            f"inputs: {', '.join(shapes)}; each with a batch axis before it",
            f"outputs: {', '.join(self.outputs)}",
            f"verified over {STEPS} steps of {ENVIRONMENTS} environments with resets: "
            f"largest difference {self.difference:.2g}",
            f"exported: {self.path}",
        ]


class GreedyStep(nn.Module):
    """A policy's greedy step on one dict of tensors; what the agent does not look at is no input."""

    low: Tensor
    high: Tensor

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.network, self._family, self._spec = policy.network, policy.family, policy.spec
        self._no_action = policy.no_action
        self.state_names = tuple(self.network.initial_state(1))
        self.sees_previous = self.network.sees_previous
        low, high = _bounds(self._spec.action)
        self.register_buffer("low", low)
        self.register_buffer("high", high)

    def example(self, batch: int) -> Tensors:
        """Inputs that start an episode."""
        inputs = {
            name: torch.zeros(batch, *array.shape, dtype=torch.from_numpy(np.empty(0, array.dtype)).dtype)
            for name, array in self._spec.observation.items()
        }
        if self.state_names:
            inputs["first"] = torch.ones(batch, dtype=torch.bool)
        if self.sees_previous:
            inputs["previous_reward"] = torch.zeros(batch)
            inputs[STATE + PREVIOUS_ACTION] = self._no_action(batch)
        return inputs | {STATE + name: value for name, value in self.network.initial_state(batch).items()}

    def forward(self, inputs: Tensors) -> Tensors:
        observation = {name: inputs[name] for name in self._spec.observation}
        batch = next(iter(observation.values())).shape[0]  # len() would fix the batch size
        first = inputs.get("first", torch.zeros(batch, dtype=torch.bool))
        output, state = self.network.step(
            AgentInput(
                observation=observation,
                previous_action=inputs.get(STATE + PREVIOUS_ACTION, torch.zeros(batch, 1)),
                previous_reward=inputs.get("previous_reward", torch.zeros(batch)),
                first=first,
            ),
            {name: _forget(inputs[STATE + name], first) for name in self.state_names},
        )
        raw = self._family.distribution(output.policy).mode()
        if self.sees_previous:
            state = {PREVIOUS_ACTION: raw, **state}
        return {"action": self._executable(raw)} | {NEXT_STATE + name: value for name, value in state.items()}

    def _executable(self, raw: Tensor) -> Tensor:
        """``ActionSpec.executable`` and ``native`` in tensors."""
        action, form = self._spec.action, self._spec.action.form
        if isinstance(action, DiscreteActions):
            if form is None:
                return raw[:, 0] if action.width == 1 else raw
            actions = raw + torch.tensor(form.start) if any(form.start) else raw
        else:
            bounded = torch.isfinite(self.low) & torch.isfinite(self.high)
            low, high = torch.where(bounded, self.low, -1.0), torch.where(bounded, self.high, 1.0)
            scaled = low + (raw.clamp(-1.0, 1.0) + 1.0) * 0.5 * (high - low)
            actions = torch.minimum(torch.maximum(torch.where(bounded, scaled, raw), self.low), self.high)
            if form is None:
                return actions
        dtype = torch.from_numpy(np.empty(0, form.dtype)).dtype
        return actions.to(dtype).reshape(-1, *form.shape)


def _forget(state: Tensor, first: Tensor) -> Tensor:
    """Zeros where an episode starts. A core may only hide what it remembers, and such states could not be compared."""
    forgotten = first.reshape(-1, *[1] * (state.ndim - 1))
    # Of booleans, onnxruntime has no masked_fill.
    return state & ~forgotten if state.dtype == torch.bool else state.masked_fill(forgotten, 0)


def _bounds(action: ActionSpec) -> tuple[Tensor, Tensor]:
    if not isinstance(action, ContinuousActions):
        return torch.zeros(0), torch.zeros(0)
    # Doubles where the environment's are: a float32 may lie just outside of them.
    dtype = np.float64 if action.form is not None and action.form.dtype == "float64" else np.float32
    return torch.from_numpy(action.low.astype(dtype)), torch.from_numpy(action.high.astype(dtype))


def export(directory: str | Path, out: str | Path, *, best: bool = False, trust: bool = False) -> Exported:
    """Write the agent of a run's newest checkpoint, or of its best one, and check the file against the agent."""
    path = Path(out)
    check_format(path)
    return export_policy(load(directory, best=best, trust=trust), path)


def check_format(path: Path) -> None:
    """Refuse what could not be written, before any work starts: another suffix, or a package that is not there."""
    if path.suffix not in FORMATS:
        raise unknown("export format", path.suffix or path.name, FORMATS)
    for package in FORMATS[path.suffix].packages:
        if importlib.util.find_spec(package) is None:
            raise missing_extra(package, "export")
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"cannot write {path}: {'it is a folder' if path.is_dir() else f'no folder {path.parent}'}")


def export_policy(policy: Policy, path: Path) -> Exported:
    """Write to a temporary file, run that, and put it in place only if it acts as the policy does."""
    step = GreedyStep(policy).eval()
    taken = [name for name in policy.spec.observation if name in RESERVED or name.startswith((STATE, NEXT_STATE))]
    if taken:
        raise UserError(f"the observation {taken[0]!r} has the name of another input or output; rename it")
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    kind = FORMATS[path.suffix]
    try:
        with _quiet(), torch.no_grad():
            example = step.example(2)
            batch = torch.export.Dim("batch", min=1)
            shapes = {"inputs": {name: {0: batch} for name in example}}
            outputs = tuple(step(example))
            try:
                program = torch.export.export(step, (), {"inputs": example}, dynamic_shapes=shapes, strict=False)
                kind.write(program, tuple(example), outputs, temporary)
                difference = largest_difference(policy, step, kind.read(temporary))
            except OSError:
                raise
            except Exception as error:
                # Exporters and runtimes raise exceptions of their own for what they cannot do.
                raise RunFailed(f"this agent cannot be exported to {path.suffix}: {error}") from error
        if not difference <= TOLERANCE:
            raise RunFailed(f"nothing is exported: the file would differ from the agent by {difference:.2g}")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    shapes_without_batch = {name: tuple(value.shape[1:]) for name, value in example.items()}
    return Exported(path=path, inputs=shapes_without_batch, outputs=outputs, difference=difference)


def largest_difference(policy: Policy, step: GreedyStep, run: Callable[[Tensors], Tensors]) -> float:
    """Play random observations with the file and as ``policy.act`` does, each going on from its own states.

    The policy plays each environment alone, the file all of them at once. Differences of floats count as a share of
    the greatest number compared if that exceeds 1; another choice among discrete actions counts as it is.
    """
    random = np.random.default_rng(0)
    inputs = step.example(ENVIRONMENTS)
    states: list[AgentState | None] = [None] * ENVIRONMENTS
    largest = 0.0
    for index in range(STEPS):
        observation = {name: _random(spec, random) for name, spec in policy.spec.observation.items()}
        rewards = random.normal(size=ENVIRONMENTS).astype(np.float32)
        first = (random.random(ENVIRONMENTS) < 0.2) | (index == 0)
        inputs |= {name: torch.from_numpy(array) for name, array in observation.items()}
        if "first" in inputs:
            inputs["first"] = torch.from_numpy(first)
        if "previous_reward" in inputs:
            inputs["previous_reward"] = torch.from_numpy(rewards)
        outputs = run(inputs)
        for row in range(ENVIRONMENTS):
            action, states[row] = policy.act_on(
                {name: array[row : row + 1] for name, array in observation.items()},
                None if first[row] else states[row],
                previous_reward=rewards[row],
            )
            expected = {"action": torch.from_numpy(action)[0]}
            expected |= {NEXT_STATE + name: value[0] for name, value in (states[row] or {}).items()}
            largest = max([largest, *(_difference(value[row], expected[name]) for name, value in outputs.items())])
        inputs |= {name.replace(NEXT_STATE, STATE): value for name, value in outputs.items() if name != "action"}
    return largest


def _random(spec: ArraySpec, random: np.random.Generator) -> np.ndarray:
    shape = (ENVIRONMENTS, *spec.shape)
    if spec.kind == "vector":
        return random.normal(size=shape).astype(spec.dtype)
    highest = 255 if spec.kind == "pixels" else spec.vocabulary
    return random.integers(0, highest, shape, endpoint=True).astype(spec.dtype)


def _difference(one: Tensor, other: Tensor) -> float:
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    scale = max(1.0, float(other.abs().max())) if other.is_floating_point() else 1.0
    return float((one.double() - other.double()).abs().max()) / scale


def _write_onnx(program: Any, inputs: tuple[str, ...], outputs: tuple[str, ...], path: Path) -> None:
    model = torch.onnx.export(program, input_names=inputs, output_names=outputs, verbose=False)
    assert model is not None
    model.save(path, external_data=False)


def _read_onnx(path: Path) -> Callable[[Tensors], Tensors]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Tensors) -> Tensors:
        arrays = session.run(names, {name: value.numpy() for name, value in inputs.items()})
        return {name: torch.from_numpy(np.asarray(array)) for name, array in zip(names, arrays, strict=True)}

    return run


def _write_program(program: Any, inputs: tuple[str, ...], outputs: tuple[str, ...], path: Path) -> None:
    torch.export.save(program, path)


def _read_program(path: Path) -> Callable[[Tensors], Tensors]:
    module = torch.export.load(path).module()
    return lambda inputs: module(inputs=inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    packages: tuple[str, ...]
    write: Callable[[Any, tuple[str, ...], tuple[str, ...], Path], None]
    read: Callable[[Path], Callable[[Tensors], Tensors]]


FORMATS = {
    ".onnx": Format(packages=("onnxscript",), write=_write_onnx, read=_read_onnx),
    ".pt2": Format(packages=(), write=_write_program, read=_read_program),
}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' remarks on their own workings, which a user can do nothing about."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
