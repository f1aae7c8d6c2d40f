"""How time and memory grow with the size of the problem; each should be linear or better.

    python benchmarks/growth.py --out docs

Measures learner updates against batch size, unroll length and network, unrolls of an actor against the number of
environments, both against the number of tasks, and the peak memory of each benchmark workload, each in a process of its
own. Writes growth.json and growth.png into the folder.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

Point = dict[str, float]

BATCHES = (8, 16, 32, 64, 128)
LENGTHS = (10, 20, 40, 80, 160)
WIDTHS = (64, 128, 256, 512, 1024)
ENVIRONMENTS = (8, 32, 128, 512, 2048)
TASKS = (1, 8, 57)


def _seconds(work: Callable[[], Any], repeats: int = 7) -> float:
    work()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def learner(workload: str, batch: int, length: int, *, width: int | None = None, tasks: int = 1) -> Point:
    """Seconds of an update on a batch of random numbers, the bytes of a sample, and the peak memory."""
    import torch

    from vmpo import suites
    from vmpo.acting.actor import allocate
    from vmpo.bench import WORKLOADS
    from vmpo.learning.learner import Learner

    config = WORKLOADS[workload].config
    if width is not None:
        config = replace(config, agent=replace(config.agent, hidden=(width, width), head_units=width))
    env = suites.make(config.env, 1, 0)
    spec = replace(env.spec, tasks=tuple(f"task {i}" for i in range(tasks)))
    env.close()
    config = replace(config, learner=replace(config.learner, batch_size=batch, unroll_length=length))
    made = Learner(spec, config)
    slot = allocate(spec, made.family, made.target, length, batch, pin=False)
    for tensor in slot.observations.values():
        tensor.random_(0, 256) if tensor.dtype == torch.uint8 else tensor.normal_()
    slot.valids[1:] = True
    slot.discounts.fill_(1.0)
    slot.rewards.normal_()
    slot.tasks.random_(0, tasks)
    tensors = [*slot.observations.values(), slot.rewards, slot.discounts, slot.firsts, slot.valids, slot.tasks]
    stored = sum(t.nbytes for t in (*tensors, slot.actions, slot.behaviour))
    return {
        "seconds": _seconds(lambda: made.update(slot)),
        "bytes_per_sample": stored / (batch * length),
        "parameters": sum(p.numel() for p in made.online.parameters()),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def actor(workload: str, num_envs: int, game: str | None = None) -> Point:
    """Seconds of a step of all environments, and the peak memory."""
    from vmpo import suites
    from vmpo.acting.actor import allocate
    from vmpo.bench import WORKLOADS
    from vmpo.learning.learner import Learner
    from vmpo.train import new_actor

    config = WORKLOADS[workload].config
    config = replace(config, env=replace(config.env, id=game or config.env.id, full_action_set=game is not None))
    env = suites.make(config.env, num_envs, 0)
    made = new_actor(config, env, Learner(env.spec, config).weights(), 0)
    slot = allocate(env.spec, made.family, made.network, 16, num_envs, pin=False)
    seconds = _seconds(lambda: made.unroll(slot)) / 16
    env.close()
    return {"seconds": seconds, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def training(workload: str) -> Point:
    """Peak memory of a whole run."""
    import tempfile

    from vmpo.bench import WORKLOADS
    from vmpo.run_directory import RunDirectory
    from vmpo.train import Run

    with tempfile.TemporaryDirectory() as folder:
        run = Run(WORKLOADS[workload].config, RunDirectory(folder))
        for _ in range(5):
            run.advance()
        run.fleet.close()
    return {"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def measure() -> dict[str, dict[str, Point]]:
    """All series: name -> size -> point. Each point is measured in a new process."""
    games = ("breakout", "breakout,pong,boxing,freeway,qbert,seaquest,asterix,alien", "atari57")
    series: dict[str, dict[int | str, tuple[Callable[..., Point], dict[str, Any]]]] = {
        "update / batch (Nature CNN, unroll 20)": {
            n: (learner, {"workload": "breakout", "batch": n, "length": 20}) for n in BATCHES
        },
        "update / unroll (Nature CNN, batch 16)": {
            n: (learner, {"workload": "breakout", "batch": 16, "length": n}) for n in LENGTHS
        },
        "update / width (MLP, 64 x 40)": {
            n: (learner, {"workload": "halfcheetah", "batch": 64, "length": 40, "width": n}) for n in WIDTHS
        },
        "update / tasks (MLP, 64 x 40)": {
            n: (learner, {"workload": "halfcheetah", "batch": 64, "length": 40, "tasks": n}) for n in TASKS
        },
        "step / environments (CartPole)": {n: (actor, {"workload": "cartpole", "num_envs": n}) for n in ENVIRONMENTS},
        "step / games (57 environments)": {
            n: (actor, {"workload": "breakout", "num_envs": 57 if n != 8 else 56, "game": game})
            for n, game in zip(TASKS, games, strict=True)
        },
    }
    workloads = ("cartpole", "halfcheetah", "humanoid", "breakout", "breakout-resnet", "humanoid-run")
    series["peak memory"] = {name: (training, {"workload": name}) for name in workloads}
    context = multiprocessing.get_context("spawn")
    found: dict[str, dict[str, Point]] = {}
    for name, points in series.items():
        for size, (function, arguments) in points.items():
            with context.Pool(1) as pool:
                point = pool.apply(function, kwds=arguments)
            found.setdefault(name, {})[str(size)] = point
            print(name, size, {key: round(value, 5) for key, value in point.items()}, flush=True)
    return found


def exponent(points: dict[str, Point], along: str | None = None) -> float:
    """Of the power law through the last two points: 1 is linear, below is better."""
    (a, first), (b, last) = list(points.items())[-2:]
    sizes = (first[along], last[along]) if along else (float(a), float(b))
    return float(np.log(last["seconds"] / first["seconds"]) / np.log(sizes[1] / sizes[0]))


def plot(found: dict[str, dict[str, Point]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    timed = {name: points for name, points in found.items() if name != "peak memory"}
    figure, axes = pyplot.subplots(2, 3, figsize=(12, 7))
    for axis, (name, points) in zip(axes.flat, timed.items(), strict=True):
        sizes = [float(size) for size in points]
        axis.loglog(sizes, [1e3 * p["seconds"] for p in points.values()], "o-", label="ms")
        axis.loglog(sizes, [p["peak_mb"] for p in points.values()], "s--", alpha=0.5, label="peak MB")
        along = "parameters" if "width" in name else None
        axis.set_title(f"{name}\nexponent of the last step {exponent(points, along):.2f}", fontsize=9)
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs"))
    folder = parser.parse_args().out
    found = measure()
    (folder / "growth.json").write_text(json.dumps(found, indent=1) + "\n")
    plot(found, folder / "growth.png")


if __name__ == "__main__":
    main()
