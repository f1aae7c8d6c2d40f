"""vmpo beside other libraries on the same workloads and machine: `make bench-peers`.

Each library has its own environment under .peers/. For each workload all of a library's variants first have a short
window, and the fastest is kept. Then the libraries take turns, three times, because the machine's speed drifts; every
window is a fresh process with a warm-up, so that all agents are of the same age. Medians are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.common import WORKLOADS

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".peers"
ROUNDS = 3
SLACK = 900.0
"""Seconds that a window may take longer than asked: to start, and for the slowest to end its unroll."""


@dataclass(frozen=True)
class Library:
    name: str
    module: str
    packages: str = ""
    variants: str = "plain passive"
    """Words joined by +: ``passive`` is OpenMP's wait policy, the others are for the module."""
    pixels: str = ""
    """Further variants, where there are images."""
    crowded: str = ""
    """Further variants, where the simulator takes most of the time."""


LIBRARIES = (
    Library("vmpo", "ours", variants="plain"),
    Library(
        "Stable-Baselines3",
        "sb3",
        "stable-baselines3 sb3-contrib",
        pixels="channels_last channels_last+passive",
        crowded="crowded",
    ),
    Library(
        "Sample Factory",
        "sample_factory",
        "sample-factory",
        "serial serial+passive async async+passive",
        crowded="serial+crowded async+crowded async+crowded+passive",
    ),
    Library("Tianshou", "tianshou", "tianshou", pixels="channels_last channels_last+passive"),
    Library("RLlib", "rllib", "ray[rllib]==2.60.0", "plain+passive impala impala+passive"),
)


def install(library: Library) -> str | None:
    """The library's interpreter, in an environment that is made if there is none; nothing if that fails."""
    if not library.packages:
        return sys.executable
    home = PEERS / library.module
    python, versions = str(home / "bin" / "python"), home / "versions"
    if not versions.exists():
        venv.create(home, clear=True, symlinks=True)
        pins = [pin for pin in (ROOT / "constraints.txt").read_text().split() if pin.startswith(("torch=", "envpool="))]
        pip = [sys.executable, "-m", "pip", "--python", python]
        command = [*pip, "install", "--quiet", *pins, *library.packages.split()]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            print(f"{library.name} cannot be installed: {done.stderr.strip().splitlines()[-1]}", flush=True)
            return None
        versions.write_text(subprocess.run([*pip, "freeze"], stdout=subprocess.PIPE, text=True).stdout)
    return python


def window(library: Library, python: str, workload: str, variant: str, warmup: float, seconds: float) -> float:
    """Agent steps per second, 0 if the library fails."""
    command = [python, "-m", f"benchmarks.peers.{library.module}", workload, variant, str(warmup), str(seconds)]
    env = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    env |= {"OMP_WAIT_POLICY": "passive"} if "passive" in variant else {}
    log = PEERS / f"{library.module}-{workload}-{variant}.log"
    with tempfile.TemporaryDirectory() as scratch, log.open("w") as errors:
        env["TMPDIR"] = scratch
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=errors, process_group=0)
        try:
            lines = process.communicate(timeout=warmup + seconds + SLACK)[0].decode().splitlines()
        except subprocess.TimeoutExpired:
            lines = []
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    for result in (json.loads(line) for line in lines if line.startswith('{"agent_steps"')):
        return result["agent_steps"] / result["seconds"]
    print(f"{library.name} fails on {workload} {variant}: see {log.relative_to(ROOT)}", flush=True)
    return 0.0


def compare(pythons: dict[Library, str], workload: str, warmup: float, seconds: float) -> dict[str, Any]:
    chosen: dict[str, str] = {}
    for library, python in pythons.items():
        variants = library.variants.split()
        variants += library.pixels.split() if WORKLOADS[workload].pixels else []
        variants += library.crowded.split() if workload == "humanoid" else []
        trials = {each: window(library, python, workload, each, warmup / 2, seconds / 2) for each in variants}
        chosen[library.name] = max(trials, key=trials.__getitem__)
    windows: dict[str, list[float]] = {name: [] for name in chosen}
    for library, python in [*pythons.items()] * ROUNDS:
        windows[library.name].append(window(library, python, workload, chosen[library.name], warmup, seconds))
    rates = {name: statistics.median(each) for name, each in windows.items()}
    return {"workload": workload, "variants": chosen, "windows": windows, "agent_steps_per_second": rates}


def row(result: dict[str, Any]) -> str:
    ours, *peers = result["agent_steps_per_second"].values()
    cells = [f"{ours:,.0f}", *(f"{rate:,.0f} ({ours / rate:.2f})" if rate else "-" for rate in peers)]
    best = max(peers, default=0.0)
    return f"| {result['workload']} | {' | '.join(cells)} | {f'{ours / best:.2f}' if best else '-'} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="all of them if none is given")
    parser.add_argument("--warmup", type=float, default=10.0, help="seconds before each window, and five unrolls")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each window")
    options = parser.parse_args()
    PEERS.mkdir(exist_ok=True)
    pythons = {library: python for library in LIBRARIES if (python := install(library))}
    names = " | ".join(library.name for library in pythons)
    lines = [f"| agent steps/s (vmpo / peer) | {names} | vmpo / best peer |", "|---" * (len(pythons) + 2) + "|"]
    print("\n".join(lines), flush=True)
    results = []
    for workload in options.workloads or WORKLOADS:
        results.append(compare(pythons, workload, options.warmup, options.seconds))
        lines.append(row(results[-1]))
        print(lines[-1], flush=True)
        (PEERS / "results.json").write_text(json.dumps(results, indent=1))
        (PEERS / "results.md").write_text("\n".join([*lines, "", Path(__file__).with_name("notes.md").read_text()]))


if __name__ == "__main__":
    main()
