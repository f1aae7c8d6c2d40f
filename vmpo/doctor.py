"""What this machine has for vmpo: versions, devices, extras, simulators that really start and draw, disk, threads.

Each simulator is tried in a process of its own with a time limit, so that a crash or a hang is reported, not suffered.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch

from vmpo import __version__, suites
from vmpo.config import EnvConfig
from vmpo.errors import UserError
from vmpo.records import ContinuousActions

GIGABYTE = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """What ``pip install -e '.[NAME]'`` installs, by import name, and an environment that shows whether it works."""

    modules: tuple[str, ...]
    """Import names, each of a distribution of that name but for hyphens."""
    suite: str | None = None
    env: str = ""
    install: str = ""
    """In place of the pip command."""


EXTRAS: dict[str, Extra] = {
    "atari": Extra(modules=("ale_py",), suite="atari", env="pong"),
    "box2d": Extra(modules=("Box2D",), suite="gymnasium", env="LunarLander-v3"),
    "mujoco": Extra(modules=("envpool", "mujoco"), suite="mujoco", env="HalfCheetah-v4"),
    "control": Extra(modules=("dm_control", "mujoco"), suite="control", env="cartpole-balance"),
    "miniworld": Extra(modules=("miniworld", "pyglet"), suite="miniworld", env="choose_colour"),
    "lab": Extra(
        modules=("deepmind_lab",),
        suite="lab",
        env="rooms_watermaze",
        install="build it from source: github.com/google-deepmind/lab",
    ),
    "video": Extra(modules=("imageio_ffmpeg", "PIL")),
    "export": Extra(modules=("onnxscript",)),
    "ray": Extra(modules=("ray",)),
    "wandb": Extra(modules=("wandb",)),
}

DISTRIBUTIONS = {"PIL": "pillow", "Box2D": "box2d"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    name: str
    status: Literal["ok", "missing", "failed"]
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """Whether everything that is installed starts."""
        return all(finding.status != "failed" for finding in self.findings)

    def lines(self) -> list[str]:
        width = max(len(finding.name) for finding in self.findings)
        return [f"{finding.name:{width}}  {finding.status:7}  {finding.detail}" for finding in self.findings]

    def summary(self) -> dict[str, Any]:
        """For JSON."""
        return {"sound": self.sound, "findings": [asdict(finding) for finding in self.findings]}


def examine(seconds: float = 120.0) -> Findings:
    """Look at everything; ``seconds`` is the longest wait for each simulator."""
    if not seconds > 0:
        raise UserError(f"--seconds {seconds} must be a positive number")
    findings = [*_versions(), _devices()]
    tried = {"gymnasium": Extra(modules=(), suite="gymnasium", env="CartPole-v1")}
    for name, extra in EXTRAS.items():
        finding = _extra(name, extra)
        findings.append(finding)
        if finding.status == "ok" and extra.suite is not None:
            tried[name] = extra
    # A few at once: most of the time goes into imports.
    with ThreadPoolExecutor(max_workers=_cores()) as pool:
        for found in pool.map(lambda item: _simulator(item[0], item[1], seconds), tried.items()):
            findings += found
    return Findings(findings=(*findings, _disk(), _threads()))


def _versions() -> list[Finding]:
    versions = {"vmpo": __version__, "python": platform.python_version()}
    versions |= {name: importlib.metadata.version(name) for name in ("torch", "numpy", "gymnasium")}
    return [Finding(name=name, status="ok", detail=version) for name, version in versions.items()]


def _devices() -> Finding:
    cuda = [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    return Finding(name="devices", status="ok", detail=", ".join(["cpu", *cuda]) + ("" if cuda else "; no CUDA device"))


def _extra(name: str, extra: Extra) -> Finding:
    absent = [module for module in extra.modules if importlib.util.find_spec(module) is None]
    if absent:
        install = extra.install or f"pip install -e '.[{name}]'"
        return Finding(name=f"extra {name}", status="missing", detail=f"no {', '.join(absent)}; {install}")
    return Finding(name=f"extra {name}", status="ok", detail=", ".join(map(_version, extra.modules)))


def _version(module: str) -> str:
    distribution = DISTRIBUTIONS.get(module, module.replace("_", "-"))
    try:
        return f"{distribution} {importlib.metadata.version(distribution)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{distribution} of unknown version"


def _simulator(name: str, extra: Extra, seconds: float) -> list[Finding]:
    """Start it, then let it draw, in one process: what has not been reached when that ends has failed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "vmpo.doctor", str(extra.suite), extra.env],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        # Simulators have worker processes of their own, which must not outlive it.
        start_new_session=True,
    )
    late = False
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        late = True
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
    reached = dict(line.split(": ", 1) for line in out.splitlines() if line.split(": ")[0] in REPORTS)
    why = f"no answer within {seconds:g} s" if late else _why(process.returncode, err)
    findings = []
    for what, report in (("simulator", "stepped"), ("rendering", "drew")):
        label = f"{what} {name}"
        if report in reached:
            findings.append(Finding(name=label, status="ok", detail=reached[report]))
        elif "cannot draw" in reached and what == "rendering":
            findings.append(Finding(name=label, status="missing", detail=reached["cannot draw"]))
        else:
            findings.append(Finding(name=label, status="failed", detail=f"{extra.env}: {why}"))
            break
    return findings


REPORTS = ("stepped", "drew", "cannot draw")
"""What the process of a simulator says, each on a line with something behind it."""


def _why(code: int, err: str) -> str:
    """How a process ended, by its last words or its signal."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    said = [line for line in err.splitlines() if line.strip()]
    return " ".join(said[-1].split()) if said else f"ended with code {code}"


def _disk() -> Finding:
    usage = shutil.disk_usage(".")
    low = "; checkpoints may not fit" if usage.free < GIGABYTE else ""
    detail = f"{usage.free / GIGABYTE:.1f} of {usage.total / GIGABYTE:.1f} GB free in {os.getcwd()}{low}"
    return Finding(name="disk", status="ok", detail=detail)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _threads() -> Finding:
    settings = [f"{_cores()} cores", f"torch uses {torch.get_num_threads()}"]
    settings += [
        f"{name}={os.environ.get(name, '(not set)')}"
        for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    ]
    return Finding(name="threads", status="ok", detail=", ".join(settings))


def try_simulator(suite: str, env_id: str) -> None:
    """In a process of its own: step an environment, then draw one, and say so as soon as each is done."""
    config = EnvConfig(suite=suite, id=env_id, simulator_threads=1)
    env = suites.make(config, 1, seed=0)
    env.reset(0)
    action = env.spec.action
    raw = np.zeros((1, action.width), np.float32 if isinstance(action, ContinuousActions) else np.int64)
    env.step(action.executable(raw))
    env.close()
    print(f"stepped: {env_id}", flush=True)
    from vmpo.video import drawn_environment

    try:
        with drawn_environment(config, seed=0) as env:
            env.reset(0)
            height, width = env.render().shape[:2]
    except UserError as error:
        print(f"cannot draw: {' '.join(str(error).split())}", flush=True)
    else:
        print(f"drew: {width} x {height} pixels", flush=True)


if __name__ == "__main__":
    try_simulator(*sys.argv[1:])
