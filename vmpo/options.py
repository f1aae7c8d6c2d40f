"""Options of the commands that look at a finished run or at this machine; those that train have theirs in ``cli``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from vmpo.video import VideoOptions


@dataclass(frozen=True, kw_only=True)
class WatchOptions(VideoOptions):
    directory: Annotated[str, tyro.conf.Positional]
    """Run directory."""
    out: str | None = None
    """File to write, mp4 or gif by its suffix; by default videos/step_N.mp4 in the run directory."""
    best: bool = False
    """Take the checkpoint with the best mean return in training instead of the newest."""
    trust: bool = False
    """Import the module that the run's environment is in, such as my_module for my_module:MyEnv-v0."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    directory: Annotated[str, tyro.conf.Positional]
    """Run directory."""
    out: Annotated[str, tyro.conf.Positional]
    """File to write: .onnx (ONNX) or .pt2 (torch.export) by its suffix."""
    best: bool = False
    """Take the checkpoint with the best mean return in training instead of the newest."""
    trust: bool = False
    """Import the module that the run's environment is in, such as my_module for my_module:MyEnv-v0."""


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    seconds: float = 120.0
    """The longest wait for each simulator to start and to draw."""
    json: bool = False
    """Print the findings as one JSON object in place of the table."""
