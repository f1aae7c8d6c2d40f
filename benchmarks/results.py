"""The figures and tables of docs/results.md, from small CSV files that are committed with them.

    python -m benchmarks.results run FIGURE [--group GROUP] [--seeds 300 301] [--threads 1] [--runs runs]
    python -m benchmarks.results draw

``run`` trains what ``experiments.py`` names FIGURE, one run after another, and goes on with one that was interrupted.
Each is then evaluated greedily over 100 episodes; its training curve is kept in ``docs/data/FIGURE/GROUP-seedN.csv``
and its evaluation in ``docs/data/evaluations.csv``. ``draw`` (``make results``) redraws ``docs/FIGURE.png`` for every
folder there: the mean over the seeds of a group with its 95 % bootstrap interval, each seed as a thin line; and it
prints the table.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import json
import os
import shlex
import subprocess
import sys
from itertools import chain, groupby, pairwise
from pathlib import Path

import matplotlib
import numpy as np

from benchmarks.experiments import EXPERIMENTS

matplotlib.use("Agg")
import matplotlib.pyplot as plt

DATA = Path(__file__).parents[1] / "docs" / "data"
POINTS = 200
EPISODES = 100
EVALUATION = ("figure", "group", "seed", "agent_steps", "seconds", "training_return", "episodes", "mean", "std")


def run(figure: str, group: str, seed: int, threads: int, runs: Path) -> Path:
    """Train one, or go on with it."""
    directory = runs / f"{figure}-{group}-seed{seed}"
    options = shlex.split(EXPERIMENTS[figure].groups[group])
    if directory.exists():
        # Where it is computed is no part of a run's configuration.
        where = [(name, value) for name, value in pairwise(options) if name.startswith("--cluster.")]
        words = ["resume", str(directory), *chain(*where)]
    else:
        words = [
            "train",
            *options,
            "--seed",
            str(seed),
            "--directory",
            str(directory),
            "--run.evaluation-episodes",
            "0",
        ]
        if threads:
            words += ["--run.threads", str(threads), "--env.simulator-threads", str(threads)]
    command = [sys.executable, "-m", "vmpo", *words, "--quiet", "--json"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    if not json.loads(output.splitlines()[-1])["finished"]:
        raise SystemExit(f"{directory} was stopped; the same command goes on with it")
    return directory


def curve(directory: Path, window: int) -> list[tuple[int, float, float]]:
    """Agent steps, seconds and the mean return of the last episodes, at evenly spread moments."""
    episodes = [json.loads(line) for line in (directory / "episodes.jsonl").read_text().splitlines()]
    returns = np.array([episode["return"] for episode in episodes])
    chosen = np.unique(np.linspace(min(window, len(returns)), len(returns), POINTS).astype(int))
    return [
        (episodes[n - 1]["agent_steps"], episodes[n - 1]["seconds"], float(returns[max(0, n - window) : n].mean()))
        for n in chosen
    ]


def add(figure: str, group: str, seed: int, directory: Path, data: Path) -> None:
    """Keep a run's curve and evaluate it."""
    import vmpo

    rows = curve(directory, EXPERIMENTS[figure].window)
    folder = data / figure
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{group}-seed{seed}.csv", "w", newline="") as file:
        csv.writer(file).writerows(
            [("agent_steps", "seconds", "return"), *((a, round(s, 1), round(r, 3)) for a, s, r in rows)]
        )
    result = vmpo.evaluate(directory, EPISODES, trust=True).summary()
    steps, seconds, last = rows[-1]
    values = (figure, group, seed, steps, round(seconds), round(last, 3), EPISODES)
    new = dict(zip(EVALUATION, (*values, round(result["mean_return"], 2), round(result["std_return"], 2)), strict=True))
    key = (figure, group, str(seed))
    # Two of these may end at the same time.
    folder_lock = os.open(data, os.O_RDONLY)
    fcntl.flock(folder_lock, fcntl.LOCK_EX)
    known = [row for row in evaluations(data) if (row["figure"], row["group"], row["seed"]) != key]
    with open(data / "evaluations.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, EVALUATION)
        writer.writeheader()
        writer.writerows(sorted([*known, new], key=lambda row: (row["figure"], row["group"], int(row["seed"]))))
    os.close(folder_lock)


def evaluations(data: Path) -> list[dict[str, str]]:
    table = data / "evaluations.csv"
    return list(csv.DictReader(table.open())) if table.exists() else []


def draw(figure: Path, out: Path) -> None:
    """Groups by colour; a group's mean reaches as far as all of its seeds do."""
    groups: dict[str, list[np.ndarray]] = {}
    for path in sorted(figure.glob("*.csv")):
        groups.setdefault(path.stem.rpartition("-seed")[0], []).append(np.loadtxt(path, delimiter=",", skiprows=1))
    experiment = EXPERIMENTS[figure.name]
    picture, axes = plt.subplots(figsize=(7, 3.6), dpi=100)
    generator = np.random.default_rng(0)
    for index, group in enumerate(name for name in experiment.groups if name in groups):
        colour, seeds = f"C{index}", groups[group]
        for rows in seeds:
            axes.plot(rows[:, 0], rows[:, 2], color=colour, linewidth=0.6, alpha=0.5)
        grid = np.linspace(max(rows[0, 0] for rows in seeds), min(rows[-1, 0] for rows in seeds), POINTS)
        values = np.array([np.interp(grid, rows[:, 0], rows[:, 2]) for rows in seeds])
        axes.plot(grid, values.mean(0), color=colour, linewidth=2, label=f"{group} ({len(seeds)})")
        if len(seeds) > 1:
            draws = generator.integers(len(seeds), size=(500, len(seeds)))
            low, high = np.percentile(values[draws].mean(1), [2.5, 97.5], axis=0)
            axes.fill_between(grid, low, high, color=colour, alpha=0.2, linewidth=0)
    if experiment.bar is not None:
        axes.axhline(experiment.bar, color="gray", linewidth=0.8, linestyle="--")
    axes.set(title=figure.name, xlabel="agent steps", ylabel=f"return, mean of {experiment.window} episodes")
    axes.grid(alpha=0.3)
    axes.legend()
    picture.tight_layout()
    picture.savefig(out)
    plt.close(picture)


def table(data: Path) -> str:
    """A row for each curve, its seeds in their order."""
    lines = [
        "| task | curve | `vmpo train` | seeds | agent steps | greedy, 100 episodes | training | seconds |",
        "|" + "---|" * 8,
    ]
    for (figure, group), found in groupby(evaluations(data), key=lambda row: (row["figure"], row["group"])):
        rows = list(found)
        experiment = EXPERIMENTS[figure]
        greedy = ", ".join(f"{float(row['mean']):,.5g} ± {float(row['std']):,.3g}" for row in rows)
        trained = ", ".join(f"{float(row['training_return']):,.5g}" for row in rows)
        steps, seconds = (", ".join(f"{float(row[key]):,.0f}" for row in rows) for key in ("agent_steps", "seconds"))
        lines.append(
            f"| {figure} | {group} | `{experiment.groups[group]}` | {', '.join(row['seed'] for row in rows)} | {steps} "
            f"| {greedy} | {trained} (of {experiment.window}) | {seconds} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("figure", choices=EXPERIMENTS)
    running.add_argument("--group", help="one of the curves; all if not given")
    running.add_argument("--seeds", type=int, nargs="+", help="the experiment's if not given")
    running.add_argument("--threads", type=int, default=0, help="of torch and of the simulator; 0: all cores")
    running.add_argument("--runs", type=Path, default=Path("runs"))
    commands.add_parser("draw")
    options = parser.parse_args()
    if options.command == "run":
        experiment = EXPERIMENTS[options.figure]
        for seed in options.seeds or experiment.seeds:
            for group in [options.group] if options.group else experiment.groups:
                directory = run(options.figure, group, seed, options.threads, options.runs)
                add(options.figure, group, seed, directory, options.data)
        return
    for figure in sorted(path for path in options.data.iterdir() if path.is_dir()):
        draw(figure, options.data.parent / f"{figure.name}.png")
    print(table(options.data))


if __name__ == "__main__":
    main()
