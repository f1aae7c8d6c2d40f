"""vmpo beside other libraries on the same workloads and machine: `make bench-peers`.

Each library has its own environment under .peers/. For each workload all of a library's variants first have a short
window, and the fastest is kept. Then the libraries take turns, three times, because the machine's speed drifts; every
window is a fresh process with a warm-up, so that all agents are of the same age. Medians are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import venv
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from benchmarks.peers.common import WORKLOADS

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".peers"
ROUNDS = 3
TIMEOUT = 900.0
"""Seconds that a window may last longer than asked: the slowest needs half a minute for one unroll."""


@dataclass(frozen=True, kw_only=True)
class Library:
    name: str
    module: str
    packages: tuple[str, ...] = ()
    variants: tuple[str, ...] = ("", "passive")
    pixel_variants: tuple[str, ...] = ()
    """Joined with each of the others; ``passive`` is OpenMP's wait policy, the rest are words for the module."""
    work: str
    """Where it does less or more than ours."""

    @property
    def python(self) -> str:
        return str(PEERS / self.module / "bin" / "python") if self.packages else sys.executable


LIBRARIES = (
    Library(
        name="vmpo",
        module="ours",
        variants=("",),
        work="V-MPO as `vmpo train` runs it: Gymnasium's vectorised CartPole, EnvPool's MuJoCo, ALE's vector Breakout.",
    ),
    Library(
        name="Stable-Baselines3",
        module="sb3",
        packages=("stable-baselines3", "sb3-contrib"),
        pixel_variants=("", "channels_last"),
        work="PPO (RecurrentPPO for the LSTM) on EnvPool, with fused Adam. Less: no target network, multipliers or "
        "normalised values; the standard deviation is one vector, not a head. More: a dictionary per environment "
        "and step; a shuffled copy of each batch; the LSTM goes step by step, over padded sequences.",
    ),
    Library(
        name="Sample Factory",
        module="sample_factory",
        packages=("sample-factory",),
        variants=("serial", "serial+passive", "async", "async+passive"),
        work="APPO on EnvPool, its own encoders. Less: no target network, multipliers or normalised values; policy and "
        "value share the last 256 units; if asynchronous, acts with older weights. More: a second pass over the "
        "batch for values; summaries and checkpoints; its convolutions cannot be asked for channels_last.",
    ),
)


def install(library: Library) -> str | None:
    """The versions in the library's environment, made if there is none; nothing if that fails."""
    if not library.packages:
        return "this repository"
    home = PEERS / library.module
    versions = home / "versions"
    if not versions.exists():
        venv.create(home, clear=True, symlinks=True)
        pins = [pin for pin in (ROOT / "constraints.txt").read_text().split() if pin.startswith(("torch=", "envpool="))]
        pip = [sys.executable, "-m", "pip", "--python", library.python]
        done = subprocess.run([*pip, "install", "--quiet", *pins, *library.packages], capture_output=True, text=True)
        if done.returncode:
            print(f"{library.name} cannot be installed: {done.stderr.strip().splitlines()[-1]}", flush=True)
            return None
        frozen = subprocess.run([*pip, "freeze"], capture_output=True, text=True, check=True).stdout.split()
        wanted = (*library.packages, "torch", "envpool", "gymnasium", "numpy")
        versions.write_text(", ".join(pin for pin in frozen if pin.split("==")[0].lower() in wanted))
    return versions.read_text()


def window(library: Library, workload: str, variant: str, warmup: float, seconds: float) -> float:
    """Agent steps per second, 0 if the library fails."""
    command = [library.python, "-m", f"benchmarks.peers.{library.module}", workload, variant]
    command += ["--warmup", str(warmup), "--seconds", str(seconds)]
    log = PEERS / f"{library.module}.log"
    with tempfile.TemporaryDirectory() as scratch, log.open("a") as errors:
        env = {**os.environ, "TMPDIR": scratch}
        env.pop("OMP_WAIT_POLICY", None)
        if "passive" in variant:
            env["OMP_WAIT_POLICY"] = "passive"
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=errors, text=True, process_group=0
        )
        timer = threading.Timer(warmup + seconds + TIMEOUT, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith('{"agent_steps"'):
                    result = json.loads(line)
                    return result["agent_steps"] / result["seconds"]
        finally:
            timer.cancel()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    print(f"{library.name} fails on {workload} {variant}: see {log.relative_to(ROOT)}", flush=True)
    return 0.0


def compare(libraries: list[Library], workload: str, options: argparse.Namespace) -> list[dict[str, object]]:
    chosen = {}
    for library in libraries:
        more = library.pixel_variants if WORKLOADS[workload].pixels else ()
        variants = ["+".join(filter(None, pair)) for pair in product(library.variants, more or ("",))]
        trials = {v: window(library, workload, v, options.warmup / 2, options.seconds / 2) for v in variants}
        chosen[library] = max(trials, key=trials.__getitem__)
    rates: dict[Library, list[float]] = {library: [] for library in libraries}
    for _ in range(ROUNDS):
        for library in libraries:
            rates[library].append(window(library, workload, chosen[library], options.warmup, options.seconds))
    return [
        {"workload": workload, "library": library.name, "variant": chosen[library], "windows": rates[library],
         "agent_steps_per_second": statistics.median(rates[library])}
        for library in libraries
    ]  # fmt: skip


def table(results: list[dict[str, object]], versions: dict[Library, str]) -> str:
    names = [library.name for library in versions]
    rates = {(str(r["workload"]), str(r["library"])): float(str(r["agent_steps_per_second"])) for r in results}
    lines = [f"| agent steps/s | {' | '.join(names)} | vmpo / best peer |", "|---" * (len(names) + 2) + "|"]
    for workload in dict.fromkeys(workload for workload, _ in rates):
        ours, *peers = (rates[workload, name] for name in names)
        cells = [f"{ours:,.0f}", *(f"{rate:,.0f} ({ours / rate:.2f})" if rate else "-" for rate in peers)]
        best = max(peers, default=0.0)
        lines.append(f"| {workload} | {' | '.join(cells)} | {f'{ours / best:.2f}' if best else '-'} |")
    lines += ["", "In brackets: how many times as fast vmpo is."]
    return "\n".join(lines + [f"- {library.name} ({found}): {library.work}" for library, found in versions.items()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=[*WORKLOADS], metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--warmup", type=float, default=10.0, help="seconds before each window")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each window")
    options = parser.parse_args()
    PEERS.mkdir(exist_ok=True)
    versions = {library: found for library in LIBRARIES if (found := install(library))}
    results: list[dict[str, object]] = []
    for workload in options.workloads:
        results += compare([*versions], workload, options)
        (PEERS / "results.json").write_text(json.dumps(results, indent=1))
        (PEERS / "results.md").write_text(table(results, versions) + "\n")
        print(table(results, versions).splitlines()[-len(versions) - 3], flush=True)
    print(table(results, versions))


if __name__ == "__main__":
    main()
