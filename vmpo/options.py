"""Options of the commands, a record each; their docstrings are the help."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import tyro

from vmpo.config import ActorConfig, AgentConfig, ClusterConfig, EnvConfig, LearnerConfig, LossConfig, RunConfig
from vmpo.video import VideoOptions


@dataclass(frozen=True, kw_only=True)
class Sections:
    """Every field of a configuration, for the commands that start from a preset."""

    env: EnvConfig
    agent: AgentConfig
    loss: LossConfig
    learner: LearnerConfig
    actors: ActorConfig
    run: RunConfig


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Sections):
    """Train an agent by a preset, one of those that 'vmpo presets' lists and cartpole without one; the defaults below
    are its own. Short forms: --env ID or SUITE:ID, --frames N for --run.frames, --seed S for --run.seed."""

    directory: str | None = None
    """New run directory; by default runs/PRESET-DATE-TIME."""
    quiet: bool = False
    """Print nothing while training."""
    json: bool = False
    """Print the result as one JSON object on the last line of standard output."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    """Where the run is computed; without an address, in this process."""


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Sections):
    """Train several agents by a preset, each with its own draw from the preset's ranges; the defaults below are the
    preset's. Short forms: --env ID or SUITE:ID, --frames N for --run.frames, --seed S for --run.seed."""

    trials: int = 8
    """Runs, each with its own seed and its own values from the preset's ranges."""
    directory: str | None = None
    """Directory of the sweep; by default runs/sweep-PRESET-DATE-TIME. That of an unfinished sweep continues it."""
    address: str = "local"
    """Ray cluster: local (started for this sweep), auto (the one that this machine is part of) or host:port."""
    quiet: bool = False
    """Print nothing before the summary."""
    json: bool = False
    """Print the summary as one JSON object on the last line of standard output."""


@dataclass(frozen=True, kw_only=True)
class ResumeOptions:
    directory: Annotated[str, tyro.conf.Positional]
    """Run directory."""
    frames: int | None = None
    """Train to this many frames in place of the configured number."""
    trust: bool = False
    """Import the module that the run's environment is in, such as my_module for my_module:MyEnv-v0."""
    quiet: bool = False
    """Print nothing while training."""
    json: bool = False
    """Print the result as one JSON object on the last line of standard output."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    """Where the run is computed; without an address, in this process."""


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    directory: Annotated[str, tyro.conf.Positional]
    """Run directory."""
    episodes: int = 100
    """Whole episodes to play, of each task."""
    sampled: bool = False
    """Sample actions as in training instead of taking the most likely ones."""
    seed: int = 1_000_003
    """Seed of the environments."""
    best: bool = False
    """Take the checkpoint with the best mean return in training instead of the newest."""
    held_out: bool = False
    """Play the test version of each level (lab and miniworld)."""
    trust: bool = False
    """Import the module that the run's environment is in, such as my_module for my_module:MyEnv-v0."""
    json: bool = False
    """Print the result as one JSON object on the last line of standard output."""


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    directories: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Run directories; those that differ only in their seed are drawn as one group."""
    out: str = "report.html"
    """The page to write; a file of that name is replaced."""


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    workload: Annotated[str, tyro.conf.Positional] = "all"
    """cartpole, halfcheetah, humanoid, breakout, breakout-resnet, humanoid-run, or all."""
    seconds: float = 10.0
    """Length of each of the three measured windows."""
    json: bool = False
    """Print the result as one JSON object on the last line of standard output."""


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
