"""Draw the learning curves of runs, a panel per task: each episode's return as a dot, the running mean as a line.

usage: python benchmarks/plot.py OUT.png TITLE RUN_DIRECTORY...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

WINDOW = 100


def main(out: str, title: str, *runs: str) -> None:
    tasks: dict[str, dict[str, list[dict]]] = {}
    for run in runs:
        for line in (Path(run) / "episodes.jsonl").read_text().splitlines():
            episode = json.loads(line)
            tasks.setdefault(episode["task"], {}).setdefault(run, []).append(episode)
    rows = (len(tasks) + 1) // 2
    shape = (1, 1) if len(tasks) == 1 else (rows, 2)
    figure, panels = plt.subplots(*shape, figsize=(7, 3.2 if len(tasks) == 1 else 2.2 * rows), dpi=120, squeeze=False)
    for axes, (task, found) in zip(panels.flat, sorted(tasks.items()), strict=False):
        for colour, run in zip(("tab:blue", "tab:orange", "tab:green"), runs, strict=False):
            draw(axes, found.get(run, []), colour, Path(run).name if len(runs) > 1 else "")
        axes.set_title(title if len(tasks) == 1 else task)
        axes.set(xlabel="million agent steps", ylabel="return")
        axes.grid(alpha=0.3)
        axes.legend(loc="best", frameon=False, fontsize=8)
    for axes in panels.flat[len(tasks) :]:
        axes.axis("off")
    if len(tasks) > 1:
        figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(out)


def draw(axes: plt.Axes, episodes: list[dict], colour: str, name: str) -> None:
    steps = np.array([e["agent_steps"] for e in episodes]) / 1e6
    returns = np.array([e["return"] for e in episodes])
    window = min(WINDOW, max(1, len(returns) // 3))
    mean = np.convolve(returns, np.full(window, 1 / window), mode="valid")
    axes.plot(steps, returns, ".", markersize=2, alpha=0.25, color=colour)
    axes.plot(steps[window - 1 :], mean, color=colour, label=name or f"mean of {window} episodes")


if __name__ == "__main__":
    main(*sys.argv[1:])
