"""Draw the learning curves of a run, one per task: each training episode's return as a dot, the running mean as a line.

usage: python benchmarks/plot.py RUN_DIRECTORY OUT.png [TITLE]
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


def main(run: str, out: str, title: str) -> None:
    tasks: dict[str, list[dict]] = {}
    for line in (Path(run) / "episodes.jsonl").read_text().splitlines():
        episode = json.loads(line)
        tasks.setdefault(episode["task"], []).append(episode)
    rows = (len(tasks) + 1) // 2
    shape = (1, 1) if len(tasks) == 1 else (rows, 2)
    figure, panels = plt.subplots(*shape, figsize=(7, 3.2 if len(tasks) == 1 else 2.2 * rows), dpi=120, squeeze=False)
    for axes, (task, episodes) in zip(panels.flat, sorted(tasks.items()), strict=False):
        draw(axes, episodes)
        axes.set_title(title if len(tasks) == 1 else task)
    for axes in panels.flat[len(tasks) :]:
        axes.axis("off")
    if len(tasks) > 1:
        figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(out)


def draw(axes: plt.Axes, episodes: list[dict]) -> None:
    steps = np.array([e["agent_steps"] for e in episodes]) / 1e6
    returns = np.array([e["return"] for e in episodes])
    window = min(WINDOW, max(1, len(returns) // 3))
    mean = np.convolve(returns, np.full(window, 1 / window), mode="valid")
    axes.plot(steps, returns, ".", markersize=2, alpha=0.25, color="tab:blue")
    axes.plot(steps[window - 1 :], mean, color="tab:blue", label=f"mean of {window} episodes")
    axes.set(xlabel="million agent steps", ylabel="return")
    axes.grid(alpha=0.3)
    axes.legend(loc="best", frameon=False, fontsize=8)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else Path(sys.argv[1]).name)
