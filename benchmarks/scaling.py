"""Throughput of each engine on this machine, and the constants of the model in docs/scaling.md.

    python benchmarks/scaling.py engines breakout --seconds 60 --rounds 3
    python benchmarks/scaling.py constants paper-atari
    python benchmarks/scaling.py constants bench:breakout --batch-size 32 --threads 1

``engines`` trains with the local fleets, with 1 and 2 learner processes and with 1, 2 and 4 Ray actors, in turn within
each round, and prints the agent steps per second of each and its share of the first. ``constants`` measures one preset:
bytes of its weights and of an agent step, seconds of an update, of acting and of simulating.
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
import time
from dataclasses import replace
from pathlib import Path

SETTLE = 0.4
"""Share of a measurement that is left out at its start."""

ENGINES = {
    "serial": [],
    "overlapping": ["--actors.fleet", "overlapping"],
    "2 processes": ["--run.threads", "1"],
    "ray in turns, 1 actor": ["--cluster.address", "local", "--cluster.actors", "1"],
    "ray in turns, 2 actors": ["--cluster.address", "local", "--cluster.actors", "2"],
    "ray, 1 actor": ["--actors.fleet", "overlapping", "--cluster.address", "local", "--cluster.actors", "1"],
    "ray, 2 actors": ["--actors.fleet", "overlapping", "--cluster.address", "local", "--cluster.actors", "2"],
    "ray, 4 actors": ["--actors.fleet", "overlapping", "--cluster.address", "local", "--cluster.actors", "4"],
    "ray, 2 learners": [
        *("--actors.fleet", "overlapping", "--cluster.address", "local"),
        *("--cluster.actors", "2", "--cluster.learners", "2"),
    ],
}


def start(preset: str, folder: Path, engine: str, options: list[str]) -> list[subprocess.Popen]:
    command = [sys.executable, "-m", "vmpo", "train", preset, "--directory", str(folder / "run"), "--quiet"]
    command += ["--frames", str(10**10), "--run.tensorboard", "False", "--run.log-seconds", "1", *ENGINES[engine]]
    count = 2 if engine == "2 processes" else 1
    together = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "VMPO_RENDEZVOUS": f"file://{folder}/meeting"}
    return [
        subprocess.Popen(
            [*command, *options],
            env={**os.environ, **together, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
        )
        for rank in range(count)
    ]


def throughput(preset: str, engine: str, seconds: float, options: list[str]) -> float:
    """Agent steps per second of one engine, once it has settled."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "run" / "metrics.jsonl"
        processes = start(preset, Path(folder), engine, options)
        while not metrics.exists() or not metrics.read_text().endswith("\n"):
            assert all(process.poll() is None for process in processes), f"{engine} has ended"
            time.sleep(0.2)
        time.sleep(seconds)
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait(120)
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    first, last = (next(x for x in lines if x["seconds"] >= SETTLE * lines[-1]["seconds"]), lines[-1])
    return (last["agent_steps"] - first["agent_steps"]) / (last["seconds"] - first["seconds"])


def engines(arguments: argparse.Namespace, options: list[str]) -> None:
    rates: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    for _ in range(arguments.rounds):
        for engine, measured in rates.items():
            measured.append(throughput(arguments.preset, engine, arguments.seconds, options))
            print(f"{engine}: {measured[-1]:,.0f}", file=sys.stderr, flush=True)
    reference = statistics.median(rates["serial"])
    for engine, measured in rates.items():
        median = statistics.median(measured)
        print(json.dumps({"engine": engine, "steps_per_second": round(median), "share": round(median / reference, 3)}))
    if arguments.plot:
        plot(rates, arguments.preset, arguments.plot)


def plot(rates: dict[str, list[float]], preset: str, out: Path) -> None:
    """A bar for the median of each engine, and a dot for each measurement."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    picture, axes = plt.subplots(figsize=(7, 3), dpi=120)
    for index, (engine, measured) in enumerate(rates.items()):
        axes.barh(index, statistics.median(measured), color="C1" if engine.startswith("ray") else "C0", alpha=0.7)
        axes.plot(measured, [index] * len(measured), "k.", markersize=4)
    axes.set_yticks(range(len(rates)), rates)
    axes.invert_yaxis()
    axes.set(title=f"{preset} on {os.cpu_count()} cores", xlabel="agent steps per second")
    picture.tight_layout()
    picture.savefig(out)


def constants(arguments: argparse.Namespace, options: list[str]) -> None:
    """Of one learner process with one environment's worth of acting; a smaller batch than the paper's is scaled up."""
    from vmpo import bench, presets
    from vmpo.records import num_bytes
    from vmpo.run_directory import RunDirectory
    from vmpo.train import Run
    from vmpo.workloads import WORKLOADS

    kind, _, name = arguments.preset.rpartition(":")
    config = bench.settings(WORKLOADS[name]) if kind == "bench" else presets.settled(presets.get(name).config)
    size = arguments.batch_size
    config = replace(
        config,
        env=replace(config.env, simulator_threads=arguments.threads),
        learner=replace(config.learner, batch_size=size, virtual_replicas=1),
        actors=replace(config.actors, num_envs=size, fleet="serial"),
        run=replace(config.run, threads=arguments.threads),
    )
    with tempfile.TemporaryDirectory() as folder:
        run = Run(config, RunDirectory(folder))
        run.advance()
        run.stopwatch.reset()
        began = time.perf_counter()
        for _ in range(arguments.updates):
            run.advance()
        taken, shares = time.perf_counter() - began, run.stopwatch.shares()
        batch = run.fleet.collect().batch
        run.fleet.close()
    steps = size * config.learner.unroll_length
    weights = sum(x.nbytes for x in run.learner.weights().tensors.values())
    print(
        json.dumps(
            {
                "preset": arguments.preset,
                "parameters": sum(p.numel() for p in run.learner.online.parameters()),
                "weight_bytes": weights,
                "bytes_per_step": round(num_bytes(batch) / steps),
                "learn_seconds_per_step": shares["learn"] * taken / arguments.updates / steps,
                "infer_seconds_per_step": shares["infer"] * taken / arguments.updates / steps,
                "simulate_seconds_per_step": shares["simulate"] * taken / arguments.updates / steps,
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["engines", "constants"])
    parser.add_argument("preset")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="of torch and of the simulator; 0 means all cores")
    parser.add_argument("--plot", type=Path, help="picture of the engines to write")
    arguments, options = parser.parse_known_args()
    {"engines": engines, "constants": constants}[arguments.what](arguments, options)


if __name__ == "__main__":
    main()
