"""How long ``vmpo.load(D).act(observation)`` takes for one observation on the CPU: what a robot would wait for.

    python benchmarks/latency.py

Agents of untrained runs, which is as fast as trained ones; one observation at a time, with memory where there is one.
Prints the median and the 99th percentile in microseconds, with one thread of torch.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

import vmpo
from vmpo.config import Config
from vmpo.run_directory import RunDirectory
from vmpo.train import Run

CALLS = 2_000


def measure(name: str, config: Config, calls: int) -> None:
    config = replace(config, run=replace(config.run, threads=1))
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory(Path(folder) / "run")
        directory.create(config)
        run = Run(config, directory)
        run.save()
        run.fleet.close()
        policy = vmpo.load(directory.path)
    generator = np.random.default_rng(0)
    observations = {
        key: generator.integers(0, 255, spec.shape).astype(spec.dtype) for key, spec in policy.spec.observation.items()
    }
    memory, taken = None, []
    for _ in range(calls):
        began = time.perf_counter()
        _, memory = policy.act(observations, memory)
        taken.append(1e6 * (time.perf_counter() - began))
    settled = taken[calls // 10 :]
    row = {"agent": name, "median_us": round(np.median(settled)), "p99_us": round(np.percentile(settled, 99))}
    print(json.dumps(row), flush=True)


def main() -> None:
    presets = {name: vmpo.presets.settled(preset.config) for name, preset in vmpo.presets.PRESETS.items()}
    measure("cartpole: MLP 64, 64", presets["cartpole"], CALLS)
    measure("halfcheetah: MLP", presets["halfcheetah"], CALLS)
    measure("pong: Nature CNN", presets["pong"], CALLS)
    measure("paper-atari: ResNet, Transformer-XL", presets["paper-atari"], CALLS // 10)


if __name__ == "__main__":
    main()
