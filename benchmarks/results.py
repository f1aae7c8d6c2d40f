"""The figures and tables of docs/results.md, from small CSV files that are committed with them.

    python benchmarks/results.py add FIGURE GROUP RUN_DIRECTORY [--episodes 100]
    python benchmarks/results.py draw

``add`` evaluates a run greedily and keeps its training curve in ``docs/data/FIGURE/GROUP-seedN.csv`` and its evaluation
in ``docs/data/evaluations.csv``. ``draw`` (``make results``) redraws ``docs/FIGURE.png`` for every folder there: the
mean over the seeds of a group with its 95 % bootstrap interval, each seed as a thin line; and it prints the table.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

DATA = Path(__file__).parents[1] / "docs" / "data"
POINTS = 200
WINDOW = 100
"""Episodes of the running mean."""
EVALUATION = ("figure", "group", "seed", "agent_steps", "seconds", "training_return", "episodes", "mean", "std")


def curve(run: Path) -> list[tuple[int, float, float]]:
    """Agent steps, seconds and the mean return of the last episodes, at evenly spread moments."""
    episodes = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    returns = np.array([episode["return"] for episode in episodes])
    chosen = np.unique(np.linspace(min(WINDOW, len(returns)), len(returns), POINTS).astype(int))
    return [
        (episodes[n - 1]["agent_steps"], episodes[n - 1]["seconds"], float(returns[max(0, n - WINDOW) : n].mean()))
        for n in chosen
    ]


def add(figure: str, group: str, run: Path, episodes: int, data: Path) -> None:
    import vmpo

    seed = json.loads((run / "config.json").read_text())["run"]["seed"]
    rows = curve(run)
    folder = data / figure
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{group}-seed{seed}.csv", "w", newline="") as file:
        csv.writer(file).writerows([("agent_steps", "seconds", "return"), *((a, round(s, 1), r) for a, s, r in rows)])
    result = vmpo.evaluate(run, episodes, trust=True).summary()
    table = data / "evaluations.csv"
    known = list(csv.DictReader(table.open())) if table.exists() else []
    known = [row for row in known if (row["figure"], row["group"], row["seed"]) != (figure, group, str(seed))]
    steps, seconds, last = rows[-1]
    values = (figure, group, seed, steps, round(seconds), round(last, 2), episodes)
    new = dict(zip(EVALUATION, (*values, round(result["mean_return"], 2), round(result["std_return"], 2)), strict=True))
    with open(table, "w", newline="") as file:
        writer = csv.DictWriter(file, EVALUATION)
        writer.writeheader()
        writer.writerows(sorted([*known, new], key=lambda row: (row["figure"], row["group"], int(row["seed"]))))


def draw(figure: Path, out: Path) -> None:
    """Groups by colour; a group's mean reaches as far as all of its seeds do."""
    groups: dict[str, list[np.ndarray]] = {}
    for path in sorted(figure.glob("*.csv")):
        groups.setdefault(path.stem.rpartition("-seed")[0], []).append(np.loadtxt(path, delimiter=",", skiprows=1))
    picture, axes = plt.subplots(figsize=(7, 3.6), dpi=120)
    generator = np.random.default_rng(0)
    for index, (group, seeds) in enumerate(groups.items()):
        colour = f"C{index}"
        for rows in seeds:
            axes.plot(rows[:, 0], rows[:, 2], color=colour, linewidth=0.6, alpha=0.5)
        grid = np.linspace(max(rows[0, 0] for rows in seeds), min(rows[-1, 0] for rows in seeds), POINTS)
        values = np.array([np.interp(grid, rows[:, 0], rows[:, 2]) for rows in seeds])
        axes.plot(grid, values.mean(0), color=colour, linewidth=2, label=f"{group} ({len(seeds)})")
        if len(seeds) > 1:
            draws = generator.integers(len(seeds), size=(500, len(seeds)))
            low, high = np.percentile(values[draws].mean(1), [2.5, 97.5], axis=0)
            axes.fill_between(grid, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.set(title=figure.name, xlabel="agent steps", ylabel=f"return, mean of {WINDOW} episodes")
    axes.grid(alpha=0.3)
    axes.legend()
    picture.tight_layout()
    picture.savefig(out)
    plt.close(picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("add")
    adding.add_argument("figure")
    adding.add_argument("group")
    adding.add_argument("run", type=Path)
    adding.add_argument("--episodes", type=int, default=100)
    commands.add_parser("draw")
    options = parser.parse_args()
    if options.command == "add":
        add(options.figure, options.group, options.run, options.episodes, options.data)
        return
    for figure in sorted(path for path in options.data.iterdir() if path.is_dir()):
        draw(figure, options.data.parent / f"{figure.name}.png")
        print(f"docs/{figure.name}.png")
    for row in csv.DictReader((options.data / "evaluations.csv").open()):
        print(" | ".join(row.values()))


if __name__ == "__main__":
    main()
