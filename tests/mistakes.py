"""Mistakes that a user can make, and what is printed of each. ``test_bad_input.py`` performs them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samples import with_fields

SMALL = (
    "--agent.hidden 8 --learner.batch-size 4 --learner.unroll-length 8 --actors.num-envs 4 --frames 64 "
    "--run.evaluation-episodes 0 --run.tensorboard False --quiet"
)


FILES = {
    "a_file": "",
    "corridor.py": "def build(): ...\nclass Corridor(gymnasium.Env): ...\n",
    "typo.py": "import gymnasium\n\nclass Typo(:\n",
    "lonely.py": "import nothing_like_this\n",
}
"""Of the working directory."""


@dataclass(frozen=True)
class Case:
    what: str
    command: str
    message: str
    """A part of the line that is printed."""
    code: int = 2
    prepare: Callable[[Path], Any] | None = None
    """Damages a finished run in the folder ``run``; without it there is no run."""


def config(**changes: Any) -> Callable[[Path], None]:
    """Change fields of a run's configuration: ``section__field=value``, or ``section=value`` as a whole."""

    def change(run: Path) -> None:
        values = with_fields(json.loads((run / "config.json").read_text()), changes)
        (run / "config.json").write_text(json.dumps(values))

    return change


def file(name: str, content: bytes | None) -> Callable[[Path], None]:
    """Overwrite or remove a file of the run, and of every checkpoint where the name has a star."""

    def change(run: Path) -> None:
        for path in run.glob(name):
            path.unlink() if content is None else path.write_bytes(content)

    return change


def flip(run: Path) -> None:
    for path in run.glob("checkpoints/*/tensors.safetensors"):
        data = bytearray(path.read_bytes())
        data[-5] ^= 0xFF
        path.write_bytes(data)


def counters(**changes: Any) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        for path in run.glob("checkpoints/*/progress.json"):
            path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def nothing(run: Path) -> None:
    """The run is as it was left."""


COMMAND_LINE = [
    Case("misspelt command", "trian", "did you mean 'train'"),
    Case("misspelt preset", "train cartpol", "did you mean 'cartpole'"),
    Case("preset to show", "presets pongg", "did you mean 'pong'"),
    Case("two presets to show", "presets pong cartpole", "takes one name, not 2"),
    Case("misspelt option", "train --run.fram 3", "did you mean '--run.frames'"),
    Case("misspelt section", "train --lerner.batch-size 3", "did you mean '--learner.batch-size'"),
    Case("misspelt option of resume", "resume d --framez 3", "did you mean '--frames'"),
    Case("no number", "train --frames many", "--frames many is no whole number"),
    Case("a comma in a number", "train --frames 100,000", "--frames 100,000 is no whole number; write one as 100000"),
    Case("part of a frame", "train --frames 1.5", "--frames 1.5 is no whole number"),
    Case("no fraction", "train --loss.discount much", "could not convert string to float: 'much'"),
    Case("neither true nor false", "train --quiet=maybe", "--quiet maybe must be True or False"),
    Case("choice that is none", "train --agent.core gru", "Expected one of ('none', 'lstm', 'transformer')."),
    Case("argument too many", "evaluate a b", "vmpo evaluate has no use for 'b'"),
    Case("two presets", "train cartpole acrobot", "takes one preset, not cartpole and acrobot"),
    Case("misspelt preset after an option", "train --seed 1 cartpol", "did you mean 'cartpole'"),
    Case("environment for a preset", "train Acrobot-v1", "is an environment, not a preset; use --env Acrobot-v1"),
    Case("option before the command", "--seed 1 train", "options come after the command: vmpo train --seed"),
    Case("argument missing", "evaluate", "vmpo evaluate needs a run directory"),
    Case("both arguments missing", "export", "vmpo export needs a run directory and a file to write"),
    Case("option without its value", "train --env", "--env needs a value"),
    Case("setting that cannot change", "resume d --loss.discount 0.9", "unknown option '--loss.discount'; known: "),
    Case("workload", "bench cartpol", "did you mean 'cartpole'"),
    Case("episodes", "evaluate d --episodes 0", "at least 1"),
    Case("no run to resume", "resume no_such_run", "holds no run"),
    Case("no run to evaluate", "evaluate no_such_run", "holds no run"),
    Case("no run to watch", "watch no_such_run", "holds no run"),
    Case("no run to export", "export no_such_run agent.pt2", "holds no run"),
    Case("episodes to watch", "watch d --episodes 0", "--episodes 0 must be at least 1"),
    Case("steps to watch", "watch d --max-steps 0", "--max-steps 0 must be at least 1"),
    Case("seed to watch", "watch d --seed -1", "--seed -1 must be at least 0"),
    Case("seed to evaluate", "evaluate d --seed -1", "the seed -1 must not be negative"),
    Case("seconds of a benchmark", "bench cartpole --seconds 0", "--seconds 0.0 must be a positive number"),
    Case("file to export to missing", "export d", "vmpo export needs a file to write"),
    Case("export format", "export d agent.onx", "unknown export format '.onx'; did you mean '.onnx'?"),
    Case("folder to export to", "export d no_folder/agent.pt2", "no folder no_folder"),
    Case("seconds of the doctor", "doctor --seconds 0", "--seconds 0.0 must be a positive number"),
    Case("a file for a directory", "train --directory a_file", "cannot write to a_file"),
    Case("a file above the directory", "train --directory a_file/run", "cannot write to a_file/run"),
    Case("a directory with a run", f"train {SMALL} --directory run", "already holds a run", prepare=nothing),
    Case("a checkpoint for a run", "evaluate run/checkpoints", "it lies in the run run: name that", prepare=nothing),
    Case("a folder of runs", "evaluate .", "it contains runs, such as run: name one", prepare=nothing),
    Case("a directory with other files", "train --directory .", "is not empty (it holds a_file)"),
    Case("levels without test versions", "evaluate run --held-out", "no held-out levels", prepare=nothing),
    Case("video format", "watch run --out video.avi", "known: .gif, .mp4", prepare=nothing),
    Case("task to watch", "watch run --task CartPole", "did you mean 'CartPole-v1'", prepare=nothing),
    Case("video without a format", "watch run --out video", "known: .gif, .mp4", prepare=nothing),
    Case("a file above the video", "watch run --out a_file/video.mp4", "cannot write to a_file", prepare=nothing),
    Case("fewer than no frames", "resume run --frames -1", "run.frames=-1 must be at least 1", prepare=nothing),
    Case("fewer frames than done", "resume run --frames 32", "has 64 frames already; --frames 32", prepare=nothing),
]

CONFIGURATION = [
    Case("replicas", "train --learner.virtual-replicas 3", "does not divide over 3 replicas; try 3"),
    Case("batch", "train --learner.batch-size 24", "one must be a multiple of the other; try --learner.batch-size 16"),
    Case("unroll", "train --learner.unroll-length 0", "learner.unroll_length=0 must be at least 1"),
    Case("frames", "train --frames -5", "run.frames=-5 must be at least 1"),
    Case(
        "top half of one sample",
        "train --learner.batch-size 1 --learner.unroll-length 1 --actors.num-envs 1",
        "no top half",
    ),
    Case("bound", "train --loss.epsilon-policy 0", "loss.epsilon_policy=0"),
    Case("bound without a range", "train --loss.epsilon-policy None", "no range to sample from"),
    Case("bound that is no number", "train --loss.epsilon-policy nan", "must be a positive number"),
    Case("discount", "train --loss.discount 1.5", "must be in [0, 1]"),
    Case("fraction", "train --loss.top-fraction 0", "must be in (0, 1]"),
    Case("standard deviation", "train pendulum --agent.initial-std 0", "must exceed agent.minimum_std"),
    Case("multiplier", "train --loss.initial-alpha-policy -1", "loss.initial_alpha_policy=-1"),
    Case("seed", "train --seed -1", "run.seed=-1 must not be negative"),
    Case("time between videos", "train --run.video-seconds 0", "run.video_seconds=0.0 must be a positive number"),
    Case("layers", "train --agent.core lstm --agent.lstm-layers 0", "agent.lstm_layers=0 must be at least 1"),
    Case("units", "train --agent.hidden 64 0", "agent.hidden=(64, 0) must be numbers of at least 1"),
    Case("repeat", "train pong --env.action-repeat 0", "env.action_repeat=0 must be at least 1"),
    Case("chance", "train pong --env.sticky-actions 2", "env.sticky_actions=2.0 must be in [0, 1]"),
    Case("threads", "train --env.simulator-threads -1", "env.simulator_threads=-1 must not be negative"),
    Case("epsilon", "train --learner.adam-epsilon -1", "learner.adam_epsilon=-1.0 must be a positive number"),
    Case("limit of a chain", "train --env memory:30 --env.max-episode-steps 9", "has no use for a memory chain"),
    Case("device", "train --learner.device warp:0", "learner.device='warp:0'"),
    Case("no CUDA here", "train --learner.device cuda:0", "no CUDA device"),
    Case("pixel control without pixels", "train --loss.pixel-control-cost 0.1", "needs an observation of pixels"),
    Case("configuration empty", "resume run", "config.json cannot be read", prepare=file("config.json", b"")),
    Case("configuration not JSON", "resume run", "config.json cannot be read", prepare=file("config.json", b"{,}")),
    Case("configuration of bytes", "resume run", "cannot be read", prepare=file("config.json", b"\xff\xfe\x00")),
    Case("configuration a list", "resume run", "must be an object", prepare=file("config.json", b"[1, 2]")),
    Case("configuration too deep", "resume run", "cannot be read", prepare=file("config.json", b"[" * 100_000)),
    Case("configuration gone", "evaluate run", "holds no run", prepare=file("config.json", None)),
    Case("unknown section", "resume run", "unknown field in config 'lerner'", prepare=config(lerner={})),
    Case("unknown field", "resume run", "did you mean 'hidden'", prepare=config(agent__hiden=[8])),
    Case("section that is a number", "resume run", "config.agent must be an object", prepare=config(agent=3)),
    Case("field of another type", "resume run", "config.run.frames='64' is not int", prepare=config(run__frames="64")),
    Case("truth for a number", "resume run", "config.run.seed=True is not int", prepare=config(run__seed=True)),
    Case(
        "choice in a file",
        "resume run",
        "='gru' is not one of none, lstm, transformer",
        prepare=config(agent__core="gru"),
    ),
    Case("number out of range", "resume run", "must be in [0, 1]", prepare=config(loss__discount=7.0)),
]

CHECKPOINTS = [
    Case("no checkpoint", "resume run", "no checkpoint in", prepare=lambda run: shutil.rmtree(run / "checkpoints")),
    Case("a flipped byte", "resume run", "is damaged", prepare=flip),
    Case("a flipped byte, to evaluate", "evaluate run", "is damaged", prepare=flip),
    Case("a flipped byte, to watch", "watch run", "is damaged", prepare=flip),
    Case("a flipped byte, to export", "export run agent.pt2", "is damaged", prepare=flip),
    Case("tensors gone", "resume run", "cannot be read", prepare=file("checkpoints/*/tensors.safetensors", None)),
    Case("tensors empty", "evaluate run", "is damaged", prepare=file("checkpoints/*/tensors.safetensors", b"")),
    Case("counters gone", "resume run", "cannot be read", prepare=file("checkpoints/*/progress.json", None)),
    Case("counters torn", "resume run", "cannot be read", prepare=file("checkpoints/*/progress.json", b'{"form')),
    Case("counters a list", "evaluate run", "holds no counters", prepare=file("checkpoints/*/progress.json", b"[]")),
    Case(
        "counter missing",
        "resume run",
        "learner_step=None is no count",
        prepare=file("checkpoints/*/progress.json", b'{"format": 2}'),
    ),
    Case("negative counter", "resume run", "learner_step=-4 is no count", prepare=counters(learner_step=-4)),
    Case("later format", "resume run", "has format 99; this version reads 1 to 2", prepare=counters(format=99)),
    Case(
        "another network",
        "resume run --frames 128",
        "does not fit the configuration",
        prepare=config(agent__hidden=[9]),
    ),
    Case("another network, to evaluate", "evaluate run", "does not fit", prepare=config(agent__hidden=[9])),
    Case("another network, to watch", "watch run", "does not fit", prepare=config(agent__hidden=[9])),
    Case("another network, to export", "export run agent.pt2", "does not fit", prepare=config(agent__hidden=[9])),
    Case(
        "another environment",
        "resume run --frames 128",
        "does not fit the configuration",
        prepare=config(env__id="MountainCar-v0"),
    ),
]

ENVIRONMENTS = [
    Case("misspelt environment", "train --env CartPol-v1", "did you mean 'CartPole-v1'"),
    Case("no such module", "train --env no_such_module:Env-v0", "cannot import 'no_such_module'"),
    Case("a file for a module", "train --env corridor.py:Corridor", "did you mean 'corridor:Corridor'?"),
    Case("a point for a colon", "train --env corridor.Corridor", "did you mean 'corridor:Corridor'?"),
    Case("a module alone", "train --env corridor", "did you mean 'corridor:Corridor'?"),
    Case("a syntax error", "train --env typo:Typo", "typo.py:3: SyntaxError: "),
    Case(
        "an import of the module's that fails",
        "train --env lonely:Lonely",
        "lonely.py:1: ModuleNotFoundError: No module named 'nothing_like_this'",
    ),
    Case(
        "an encoder that raises",
        "train --agent.encoder faulty:BrokenEncoder --directory new",
        " in __init__: RuntimeError: no layers left",
    ),
    Case(
        "a loss that raises",
        f"train --loss.algorithm faulty:broken_loss {SMALL} --directory new",
        "the loss faulty:broken_loss failed: ZeroDivisionError: division by zero (faulty.py:",
        code=1,
    ),
    Case("a constructor that raises", "train --env faulty:CannotStart", " in __init__: RuntimeError: the motor broke"),
    Case(
        "a constructor with an argument",
        "train --env faulty:Sized",
        " in __init__: missing a required argument: 'size'; --env may name a function",
    ),
    Case("a reset that raises", "train --env faulty:CannotReset", " in reset: FileNotFoundError: no level"),
    Case("a reset of old", "train --env faulty:OldReset", " in reset: reset() must return (observation, info)"),
    Case("a reset without a seed", "train --env faulty:NoSeed", "must be reset(self, *, seed=None, options=None)"),
    Case("no action space", "train --env faulty:NoActions", " in NoActions: it has no action_space"),
    Case("misspelt suite", "train --env.suite atarii", "did you mean 'atari'"),
    Case("misspelt game", "train --env atari:pongg", "did you mean 'pong'"),
    Case("misspelt body", "train --env mujoco:HalfCheeta-v4", "did you mean 'HalfCheetah-v4'"),
    Case("misspelt level", "train --env miniworld:choose_color", "did you mean 'choose_colour'"),
    Case("version that is gone", "train --env Ant-v3", "Ant-v3 cannot be made"),
    Case("DMLab is not installed", "train paper-dmlab30", "deepmind_lab"),
    Case("a comma too many", "train --env CartPole-v1,", "a comma too many"),
    Case("the same task twice", "train --env CartPole-v1,CartPole-v1", "a task is named twice"),
    Case("tasks that see differently", "train --env CartPole-v1,Acrobot-v1", "differ in their observations"),
    Case("games that act differently", "train --env atari:pong,breakout", "set --env.full-action-set True"),
    Case("observation space", "train --env samples:GraphEnv", "not supported; supported: Box"),
    Case("action space", "train --env samples:SequenceEnv", "not supported; supported: Discrete"),
    Case("no environment at all", "train --env probes:make_nothing", "it must make a gymnasium.Env"),
    Case("needs a package", "train --env probes:NeedsPackage-v0", "simulator"),
    Case("needs an extra of Gymnasium", "train --env probes:NeedsExtra-v0", "pip install"),
    Case("run of a stranger's module", "resume run", "add --trust", prepare=config(env__id="evil_module:Env-v0")),
    Case("a stranger's module, to watch", "watch run", "add --trust", prepare=config(env__id="evil_module:Env-v0")),
    Case(
        "a stranger's module, to export",
        "export run agent.pt2",
        "add --trust",
        prepare=config(env__id="evil_module:Env-v0"),
    ),
    Case(
        "cannot be drawn",
        "watch run --trust",
        "it must support render_mode='rgb_array'",
        prepare=config(env__id="faulty:rate_cartpole"),
    ),
    Case(
        "has no picture",
        "watch run --trust",
        "faulty:Undrawn cannot be drawn: it has no render()",
        prepare=config(env__id="faulty:Undrawn"),
    ),
    Case(
        "raises at its first step",
        f"train --env faulty:CannotStep {SMALL} --directory new",
        "failed in their first unroll: KeyError: 'missing' (faulty.py:",
        code=1,
    ),
    Case(
        "four values from a step",
        f"train --env faulty:FourValues {SMALL} --directory new",
        "truncated, info): not enough values to unpack (expected 5, got 4) (faulty.py:",
        code=1,
    ),
    Case(
        "observations of another shape",
        f"train --env faulty:AlwaysWrongShape {SMALL} --directory new",
        "the observation has the shape (2, 2), its space (5,) (faulty.py:",
        code=1,
    ),
    Case(
        "rewards that never are numbers",
        f"train --env faulty:NeverANumber {SMALL} --directory new",
        "faulty:NeverANumber returned the reward nan (environment 0, step 1 of an unroll)",
        code=1,
    ),
    Case(
        "raises at every turn",
        f"train --env faulty:Raises {SMALL} --actors.max-faults 0 --directory new",
        "failed once within 100 unrolls; the first cause was RuntimeError: the motor broke (faulty.py:",
        code=1,
    ),
    Case(
        "rewards that are no numbers",
        f"train --env faulty:NotANumber {SMALL} --actors.max-faults 0 --directory new",
        "returned the reward nan",
        code=1,
    ),
]

CASES = {
    "Command line": COMMAND_LINE,
    "Configuration": CONFIGURATION,
    "Checkpoints": CHECKPOINTS,
    "Environments": ENVIRONMENTS,
}
