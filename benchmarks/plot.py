"""Draw the learning curve of a run: each training episode's return as a dot, their running mean as a line.

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
    episodes = [json.loads(line) for line in (Path(run) / "episodes.jsonl").read_text().splitlines()]
    steps = np.array([e["agent_steps"] for e in episodes]) / 1e6
    returns = np.array([e["return"] for e in episodes])
    mean = np.convolve(returns, np.full(WINDOW, 1 / WINDOW), mode="valid")
    figure, axes = plt.subplots(figsize=(7, 3.2), dpi=120)
    axes.plot(steps, returns, ".", markersize=2, alpha=0.25, color="tab:blue")
    axes.plot(steps[WINDOW - 1 :], mean, color="tab:blue", label=f"mean of {WINDOW} episodes")
    axes.set(xlabel="million agent steps", ylabel="return of training episodes", title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    figure.tight_layout()
    figure.savefig(out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else Path(sys.argv[1]).name)
