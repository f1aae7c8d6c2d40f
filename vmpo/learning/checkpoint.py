"""Checkpoints: safetensors and JSON in a folder that appears whole or not at all. Nothing is ever unpickled."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vmpo.errors import UserError
from vmpo.learning.learner import Learner
from vmpo.popart import PopArtStatistics
from vmpo.records import Weights

FORMAT = 1
"""Version of the layout below; raised when an older reader could not understand it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    tensors: dict[str, Tensor]
    progress: dict[str, Any]
    """Counters, as JSON."""


def save(directory: Path, learner: Learner, progress: dict[str, Any], extra: dict[str, Tensor], keep: int) -> Path:
    """Write a checkpoint of the learner beside the others in ``directory`` and drop all but the newest ``keep``."""
    final = directory / f"step_{learner.learner_step:010d}"
    if final.exists():
        return final
    temporary = directory / f".{final.name}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    tensors = _learner_tensors(learner) | {f"extra.{name}": value for name, value in extra.items()}
    save_file({name: value.contiguous().cpu() for name, value in tensors.items()}, temporary / "tensors.safetensors")
    counters = {"format": FORMAT, "learner_step": learner.learner_step, "version": learner.version, **progress}
    (temporary / "progress.json").write_text(json.dumps(counters, indent=2))
    for path in (*temporary.iterdir(), temporary):
        _sync(path)
    temporary.rename(final)
    _sync(directory)
    for old in available(directory)[:-keep]:
        shutil.rmtree(old)
    return final


def available(directory: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    return sorted(p for p in directory.glob("step_*") if (p / "progress.json").is_file())


def load(path: Path) -> Checkpoint:
    try:
        progress = json.loads((path / "progress.json").read_text())
        tensors = load_file(path / "tensors.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"checkpoint {path} cannot be read: {error}") from error
    if progress.get("format") != FORMAT:
        raise UserError(f"checkpoint {path} has format {progress.get('format')!r}; this version reads {FORMAT}")
    return Checkpoint(tensors=tensors, progress=progress)


def latest(directory: Path) -> Checkpoint:
    found = available(directory)
    if not found:
        raise UserError(f"no checkpoint in {directory}; was the run stopped before its first one?")
    return load(found[-1])


def online_weights(checkpoint: Checkpoint) -> Weights:
    """The online network alone, for acting."""
    prefix = "online."
    tensors = {k.removeprefix(prefix): v for k, v in checkpoint.tensors.items() if k.startswith(prefix)}
    return Weights(version=int(checkpoint.progress["version"]), tensors=tensors)


def restore(learner: Learner, checkpoint: Checkpoint) -> None:
    """Put a learner into the state that was saved."""
    tensors = checkpoint.tensors
    check_fit(_learner_tensors(learner, with_moments=False), tensors)
    for prefix, module in _modules(learner).items():
        module.load_state_dict({name: tensors[f"{prefix}.{name}"] for name in module.state_dict()})
    learner.statistics = PopArtStatistics(
        mean=tensors["popart.mean"].to(learner.device),
        second_moment=tensors["popart.second_moment"].to(learner.device),
    )
    for name, parameter in _named_parameters(learner).items():
        prefix = f"adam.{name}."
        moments = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        if moments:
            learner.optimiser.state[parameter] = {
                key: value.to(parameter.device, value.dtype) for key, value in moments.items()
            }
    learner.learner_step = int(checkpoint.progress["learner_step"])
    learner.version = int(checkpoint.progress["version"])


def check_fit(expected: dict[str, Tensor], saved: dict[str, Tensor]) -> None:
    """Refuse tensors that were saved by a network of another shape."""
    wrong = [name for name, value in expected.items() if name not in saved or saved[name].shape != value.shape]
    if wrong:
        name = wrong[0]
        found = f"{tuple(saved[name].shape)} is saved" if name in saved else "nothing is saved"
        raise UserError(
            f"the checkpoint does not fit the configuration: {len(wrong)} tensors differ, the first being {name} "
            f"({tuple(expected[name].shape)} is expected, {found})"
        )


def _modules(learner: Learner) -> dict[str, torch.nn.Module]:
    return {"online": learner.online, "target": learner.target, "multipliers": learner.multipliers}


def _named_parameters(learner: Learner) -> dict[str, Tensor]:
    return {
        f"{prefix}.{name}": parameter
        for prefix in ("online", "multipliers")
        for name, parameter in _modules(learner)[prefix].named_parameters()
    }


def _learner_tensors(learner: Learner, with_moments: bool = True) -> dict[str, Tensor]:
    tensors = {
        f"{prefix}.{name}": value.detach()
        for prefix, module in _modules(learner).items()
        for name, value in module.state_dict().items()
    }
    tensors["popart.mean"] = learner.statistics.mean
    tensors["popart.second_moment"] = learner.statistics.second_moment
    if with_moments:
        for name, parameter in _named_parameters(learner).items():
            for key, value in learner.optimiser.state.get(parameter, {}).items():
                tensors[f"adam.{name}.{key}"] = value
    return tensors


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
