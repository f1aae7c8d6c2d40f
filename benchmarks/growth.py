"""How time and memory grow with the size of the problem; each should be linear or better.

    python -m benchmarks.growth

Updates against batch, unroll, network and tasks, steps of an actor against environments and games, and the peak memory
of each workload of the bench, each in a process of its own. Writes docs/growth.json and docs/growth.png.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from vmpo import bench, suites
from vmpo.acting.actor import allocate
from vmpo.actors import new_actor
from vmpo.learning.learner import Learner
from vmpo.memory import keep_freed_memory
from vmpo.records import num_bytes
from vmpo.run_directory import RunDirectory
from vmpo.train import Run
from vmpo.workloads import WORKLOADS

matplotlib.use("Agg")
from matplotlib import pyplot

DOCS = Path(__file__).parents[1] / "docs"
GAMES = {1: "breakout", 8: "breakout,pong,boxing,freeway,qbert,seaquest,asterix,alien", 57: "atari57"}
SERIES: dict[str, dict[Any, dict[str, Any]]] = {
    "update / batch (Nature CNN, unroll 20)": {n: dict(batch=n, length=20) for n in (8, 16, 32, 64, 128)},
    "update / unroll (Nature CNN, batch 16)": {n: dict(batch=16, length=n) for n in (10, 20, 40, 80, 160)},
    "update / width (MLP, 64 x 40)": {n: dict(workload="halfcheetah", width=n) for n in (64, 128, 256, 512, 1024)},
    "update / tasks (MLP, 64 x 40)": {n: dict(workload="halfcheetah", tasks=n) for n in GAMES},
    "step / environments (CartPole)": {n: dict(workload="cartpole", envs=n) for n in (8, 32, 128, 512, 2048)},
    "step / games (57 environments)": {n: dict(envs=57, games=games) for n, games in GAMES.items()},
    "peak memory of a run": {name: dict(workload=name, whole=True) for name in WORKLOADS},
}


def point(
    workload: str = "breakout",
    *,
    batch: int = 64,
    length: int = 40,
    width: int | None = None,
    tasks: int = 1,
    envs: int | None = None,
    games: str | None = None,
    whole: bool = False,
) -> dict[str, float]:
    """An update on a batch of random numbers, or a step of so many environments, or a whole run for five unrolls."""
    config = bench.settings(WORKLOADS[workload])
    if whole:
        with tempfile.TemporaryDirectory() as folder:
            run = Run(config, RunDirectory(folder))
            for _ in range(5):
                run.advance()
            run.fleet.close()
        used = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return {"peak_mb": sum(used) / 1024}
    keep_freed_memory()
    hidden = dict(hidden=(width, width), head_units=width) if width else {}
    config = replace(config, agent=replace(config.agent, **hidden))
    if games:
        config = replace(config, env=replace(config.env, id=games, full_action_set=True))
    env = suites.make(config.env, envs or 1, 0)
    spec = env.spec if envs else replace(env.spec, tasks=tuple(f"task {i}" for i in range(tasks)))
    learner, length = Learner(spec, config), 16 if envs else length
    slot = allocate(spec, learner.family, learner.target, length, envs or batch, pin=False)
    actor = new_actor(config, env, learner.weights(), 0) if envs else None
    slot.valids[1:] = True
    slot.rewards.normal_()
    slot.tasks.random_(0, tasks)
    for tensor in slot.observations.values():
        tensor.normal_() if tensor.is_floating_point() else tensor.random_(0, 256)
    seconds = []
    for _ in range(8):
        started = time.perf_counter()
        actor.unroll(slot) if actor else learner.update(slot)
        seconds.append((time.perf_counter() - started) / (length if actor else 1))
    env.close()
    return {
        "seconds": statistics.median(seconds[1:]),
        "bytes_per_sample": num_bytes(slot) / slot.behaviour[..., 0].numel(),
        "parameters": sum(parameter.numel() for parameter in learner.parameters),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, points in SERIES.items():
        for size, asked in points.items():
            # Not a daemon: an overlapping actor is a process of its own.
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as elsewhere:
                measured = elsewhere.submit(point, **asked).result()
            found.setdefault(name, {})[str(size)] = measured
            print(name, size, {key: round(value, 5) for key, value in measured.items()}, flush=True)
    (DOCS / "growth.json").write_text(json.dumps(found, indent=1) + "\n")
    figure, panels = pyplot.subplots(2, 3, figsize=(12, 7))
    for axes, (name, points) in zip(panels.flat, found.items(), strict=False):
        measured, sizes = list(points.values()), [float(size) for size in points]
        axes.loglog(sizes, [1e3 * each["seconds"] for each in measured], "o-", label="ms")
        axes.loglog(sizes, [each["peak_mb"] for each in measured], "s--", alpha=0.5, label="peak MB")
        along = [each["parameters"] for each in measured] if "width" in name else sizes
        slope = np.log(measured[-1]["seconds"] / measured[-2]["seconds"]) / np.log(along[-1] / along[-2])
        axes.set_title(f"{name}\nexponent at the end {slope:.2f}", fontsize=9)
        axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(DOCS / "growth.png", dpi=110)


if __name__ == "__main__":
    main()
