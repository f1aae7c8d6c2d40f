"""Checkpoints: safetensors and JSON in a folder that appears whole or not at all. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import time
from dataclasses import dataclass, replace
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

FORMAT = 2
"""Version of the layout below; raised when an older reader could not understand it."""

READABLE = (1, 2)
"""Formats that ``load`` understands. The first one had no checksum."""

TENSORS, PROGRESS = "tensors.safetensors", "progress.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    path: Path
    tensors: dict[str, Tensor]
    progress: dict[str, Any]
    """Counters, as JSON."""
    damaged: tuple[str, ...] = ()
    """What was wrong with newer checkpoints, which were passed over for this one."""


def save(
    directory: Path,
    learner: Learner,
    progress: dict[str, Any],
    extra: dict[str, Tensor],
    keep: int,
    score: float | None = None,
) -> Path:
    """Write a checkpoint beside the others in ``directory``; drop all but the newest ``keep`` and the best by score.

    Nothing is touched before the new one is whole on the disk. If it cannot be written, nothing of it is left.
    """
    final = directory / f"step_{learner.learner_step:010d}"
    if final.exists():
        return final
    _clear(directory)
    temporary = directory / f".{final.name}.{os.getpid()}.tmp"
    tensors = _learner_tensors(learner) | {f"extra.{name}": value for name, value in extra.items()}
    try:
        temporary.mkdir(parents=True)
        save_file({name: value.contiguous().cpu() for name, value in tensors.items()}, temporary / TENSORS)
        counters = {
            "format": FORMAT,
            "checksum": _checksum(temporary / TENSORS),
            "score": score if score is not None and math.isfinite(score) else None,
            "learner_step": learner.learner_step,
            "version": learner.version,
            **progress,
        }
        (temporary / PROGRESS).write_text(json.dumps(counters, indent=2))
        for path in (*temporary.iterdir(), temporary):
            _sync(path)
        temporary.rename(final)
    except SafetensorError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise OSError(f"cannot write {final}: {error}") from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync(directory)
    for old in set(available(directory)[:-keep]) - {best(directory)}:
        shutil.rmtree(old)
    return final


def available(directory: Path) -> list[Path]:
    """Checkpoints by name, oldest first; whether they can be read is found out by reading them."""
    return sorted(path for path in directory.glob("step_*") if re.fullmatch(r"step_\d{10}", path.name))


def best(directory: Path) -> Path | None:
    """The checkpoint of the highest score; of equals, the newest."""
    scores = {}
    for path in available(directory):
        try:
            scores[path] = _read_progress(path).get("score")
        except UserError:
            continue
    return max(
        (path for path, score in scores.items() if score is not None), key=lambda p: (scores[p], p), default=None
    )


def load(path: Path) -> Checkpoint:
    """Read a checkpoint; whatever is wrong with it, the error says so and names it."""
    progress = _read_progress(path)
    try:
        # The first format had none.
        checked = progress["format"] > 1 or "checksum" in progress
        if checked and _checksum(path / TENSORS) != progress.get("checksum"):
            raise UserError(f"checkpoint {path} is damaged: {TENSORS} is not what was written")
        tensors = load_file(path / TENSORS)
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"checkpoint {path} cannot be read: {error}") from error
    return Checkpoint(path=path, tensors=tensors, progress=progress)


def latest(directory: Path) -> Checkpoint:
    """The newest checkpoint that can be read. Damaged ones before it are named in ``damaged``."""
    found = available(directory)
    if not found:
        raise UserError(f"no checkpoint in {directory}; was the run stopped before its first one?")
    damaged: list[str] = []
    for path in reversed(found):
        try:
            return replace(load(path), damaged=tuple(damaged))
        except UserError as error:
            damaged.append(str(error))
    raise UserError(damaged[0] + (f" (and none of {len(damaged) - 1} older can be read)" if damaged[1:] else ""))


def chosen(directory: Path, best_one: bool) -> Checkpoint:
    """The checkpoint with the best mean return in training, if that is wanted and known, or the newest."""
    found = best(directory) if best_one else None
    return latest(directory) if found is None else load(found)


def set_aside(directory: Path, newer_than: Path) -> None:
    """Rename the damaged checkpoints beyond the one that a run resumes from; it will write their steps again."""
    for path in available(directory):
        if path.name > newer_than.name:
            path.rename(path.with_name(f"damaged_{path.name}_{time.time_ns()}"))


def _clear(directory: Path) -> None:
    """Remove what a killed process left half-written; the lock of the run directory lets only one write here."""
    for path in directory.glob(".step_*.tmp"):
        shutil.rmtree(path, ignore_errors=True)


def _read_progress(path: Path) -> dict[str, Any]:
    try:
        progress = json.loads((path / PROGRESS).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"checkpoint {path} cannot be read: {error}") from error
    if not isinstance(progress, dict):
        raise UserError(f"checkpoint {path} cannot be read: {PROGRESS} holds no counters")
    if progress.get("format") not in READABLE:
        raise UserError(
            f"checkpoint {path} has format {progress.get('format')!r:.40}; this version reads {READABLE[0]} to {FORMAT}"
        )
    for name, kinds in COUNTERS.items():
        # The learner's are always there; a run adds its own.
        value = progress.get(name) if name in ("learner_step", "version") else progress.setdefault(name, 0)
        if not isinstance(value, kinds) or isinstance(value, bool) or not 0 <= value < 2**63:
            raise UserError(f"checkpoint {path} cannot be read: {name}={value!r:.40} is no count")
    score = progress.get("score")
    if score is not None and (not isinstance(score, int | float) or not math.isfinite(score)):
        raise UserError(f"checkpoint {path} cannot be read: score={score!r:.40} is no number")
    return progress


COUNTERS: dict[str, Any] = {
    "learner_step": int,
    "version": int,
    "agent_steps": int,
    "frames": int,
    "seconds": (int, float),
}


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def online_weights(checkpoint: Checkpoint) -> Weights:
    """The online network alone, for acting."""
    prefix = "online."
    tensors = {k.removeprefix(prefix): v for k, v in checkpoint.tensors.items() if k.startswith(prefix)}
    return Weights(version=int(checkpoint.progress["version"]), tensors=tensors)


def popart_statistics(checkpoint: Checkpoint, like: PopArtStatistics) -> PopArtStatistics:
    """What turns the online network's values into rewards' units, with the bounds and on the device of others."""
    check_fit({"popart.mean": like.mean, "popart.second_moment": like.second_moment}, checkpoint.tensors)
    mean, second_moment = (checkpoint.tensors[f"popart.{name}"].to(like.mean) for name in ("mean", "second_moment"))
    return replace(like, mean=mean, second_moment=second_moment)


def restore(learner: Learner, checkpoint: Checkpoint) -> None:
    """Put a learner into the state that was saved."""
    tensors = checkpoint.tensors
    check_fit(_learner_tensors(learner, with_moments=False), tensors)
    for prefix, module in _modules(learner).items():
        module.load_state_dict({name: tensors[f"{prefix}.{name}"] for name in module.state_dict()})
    learner.statistics = popart_statistics(checkpoint, learner.statistics)
    for name, parameter in _named_parameters(learner).items():
        step = torch.zeros((), device=parameter.device)
        expected = {"exp_avg": parameter.detach(), "exp_avg_sq": parameter.detach(), "step": step}
        if any(f"adam.{name}.{key}" in tensors for key in expected):
            check_fit({f"adam.{name}.{key}": like for key, like in expected.items()}, tensors)
            # In the memory order of the parameter: the fused optimiser goes through both as they lie.
            learner.optimiser.state[parameter] = {
                key: torch.empty_like(like).copy_(tensors[f"adam.{name}.{key}"]) for key, like in expected.items()
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
