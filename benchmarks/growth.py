"""How time and memory grow with the size of the problem; each should be linear or better.

    python benchmarks/growth.py --out docs

Measures updates against batch size, unroll length, network and tasks, steps of an actor against environments and games,
and the peak memory of each benchmark workload, each in a process of its own. Writes growth.json and growth.png.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
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
from vmpo.run_directory import RunDirectory
from vmpo.train import Run

matplotlib.use("Agg")
from matplotlib import pyplot

Point = dict[str, float]

GAMES = {1: "breakout", 8: "breakout,pong,boxing,freeway,qbert,seaquest,asterix,alien", 57: "atari57"}


def _seconds(work: Callable[[], Any], repeats: int = 7) -> float:
    """Of the median call; the first is not counted."""
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def learner(workload: str, batch: int, length: int, *, width: int | None = None, tasks: int = 1) -> Point:
    """An update on a batch of random numbers."""
    keep_freed_memory()
    config = bench.WORKLOADS[workload].config
    if width is not None:
        config = replace(config, agent=replace(config.agent, hidden=(width, width), head_units=width))
    env = suites.make(config.env, 1, 0)
    spec = replace(env.spec, tasks=tuple(f"task {i}" for i in range(tasks)))
    env.close()
    made = Learner(spec, config)
    slot = allocate(spec, made.family, made.target, length, batch, pin=False)
    for tensor in slot.observations.values():
        tensor.normal_() if tensor.is_floating_point() else tensor.random_(0, 256)
    slot.valids[1:] = True
    slot.discounts.fill_(1.0)
    slot.rewards.normal_()
    slot.tasks.random_(0, tasks)
    stored = (*slot.observations.values(), slot.rewards, slot.discounts, slot.firsts, slot.valids, slot.tasks)
    return {
        "seconds": _seconds(lambda: made.update(slot)),
        "bytes_per_sample": sum(t.nbytes for t in (*stored, slot.actions, slot.behaviour)) / (batch * length),
        "parameters": sum(p.numel() for p in made.online.parameters()),
        "peak_mb": _peak_mb(),
    }


def actor(workload: str, num_envs: int, games: str | None = None) -> Point:
    """A step of all environments: simulate, infer and store."""
    config = bench.WORKLOADS[workload].config
    if games is not None:
        config = replace(config, env=replace(config.env, id=games, full_action_set=True))
    env = suites.make(config.env, num_envs, 0)
    made = new_actor(config, env, Learner(env.spec, config).weights(), 0)
    slot = allocate(env.spec, made.family, made.network, 16, num_envs, pin=False)
    seconds = _seconds(lambda: made.unroll(slot)) / 16
    env.close()
    return {"seconds": seconds, "peak_mb": _peak_mb()}


def training(workload: str) -> Point:
    """Memory of a whole run: the learner's process and its actor's."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(bench.WORKLOADS[workload].config, RunDirectory(folder))
        for _ in range(5):
            run.advance()
        run.fleet.close()
    return {"peak_mb": _peak_mb() + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024}


SERIES: dict[str, dict[Any, tuple[Callable[..., Point], tuple[Any, ...], dict[str, Any]]]] = {
    "update / batch (Nature CNN, unroll 20)": {n: (learner, ("breakout", n, 20), {}) for n in (8, 16, 32, 64, 128)},
    "update / unroll (Nature CNN, batch 16)": {n: (learner, ("breakout", 16, n), {}) for n in (10, 20, 40, 80, 160)},
    "update / width (MLP, 64 x 40)": {
        n: (learner, ("halfcheetah", 64, 40), {"width": n}) for n in (64, 128, 256, 512, 1024)
    },
    "update / tasks (MLP, 64 x 40)": {n: (learner, ("halfcheetah", 64, 40), {"tasks": n}) for n in GAMES},
    "step / environments (CartPole)": {n: (actor, ("cartpole", n), {}) for n in (8, 32, 128, 512, 2048)},
    "step / games (57 environments)": {n: (actor, ("breakout", 57), {"games": games}) for n, games in GAMES.items()},
    "peak memory": {name: (training, (name,), {}) for name in bench.WORKLOADS},
}


def measure() -> dict[str, dict[str, Point]]:
    context = multiprocessing.get_context("spawn")
    found: dict[str, dict[str, Point]] = {}
    for name, points in SERIES.items():
        for size, (function, arguments, options) in points.items():
            # Not a daemon: an overlapping actor is a process of its own.
            with ProcessPoolExecutor(1, context) as elsewhere:
                point = elsewhere.submit(function, *arguments, **options).result()
            found.setdefault(name, {})[str(size)] = point
            print(name, size, {key: round(value, 5) for key, value in point.items()}, flush=True)
    return found


def exponent(points: dict[str, Point], along: str | None) -> float:
    """Of the power law through the last two points: 1 is linear, below is better."""
    (a, first), (b, last) = list(points.items())[-2:]
    growth = last[along] / first[along] if along else float(b) / float(a)
    return float(np.log(last["seconds"] / first["seconds"]) / np.log(growth))


def plot(found: dict[str, dict[str, Point]], path: Path) -> None:
    figure, panels = pyplot.subplots(2, 3, figsize=(12, 7))
    for axes, (name, points) in zip(panels.flat, found.items(), strict=False):
        sizes = [float(size) for size in points]
        axes.loglog(sizes, [1e3 * p["seconds"] for p in points.values()], "o-", label="ms")
        axes.loglog(sizes, [p["peak_mb"] for p in points.values()], "s--", alpha=0.5, label="peak MB")
        slope = exponent(points, "parameters" if "width" in name else None)
        axes.set_title(f"{name}\nexponent at the end {slope:.2f}", fontsize=9)
        axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    folder = parser.parse_args().out
    found = measure()
    (folder / "growth.json").write_text(json.dumps(found, indent=1) + "\n")
    plot(found, folder / "growth.png")


if __name__ == "__main__":
    main()
