"""What importance weights are worth when data is old: CartPole with actors kept 0, 1, 5 and 20 versions behind.

    python benchmarks/lag.py runs/lag --seeds 5

Plain V-MPO against the one with rho in the E-step and V-trace for the value (App. E, Sec. 4.1). Prints for each lag the
mean over seeds of the training return over the whole run (the area under the curve) and of its end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import vmpo

LAGS = (0, 1, 5, 20)
KINDS = {"plain": {}, "weighted": {"importance_weights": True, "returns": "vtrace"}}


def mean_return(folder: Path) -> float:
    """Over the steps of a run: a long episode counts for as many as it has."""
    episodes = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    return sum(x["return"] * x["length"] for x in episodes) / sum(x["length"] for x in episodes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--preset", default="cartpole")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--frames", type=int, default=100_000)
    arguments = parser.parse_args()
    base = vmpo.presets.get(arguments.preset).config
    for lag in LAGS:
        for kind, loss in KINDS.items():
            whole, end = [], []
            for seed in range(arguments.seeds):
                folder = arguments.directory / f"lag{lag}-{kind}-{seed}"
                config = replace(
                    base,
                    loss=replace(base.loss, **loss),
                    actors=replace(base.actors, lag=lag),
                    run=replace(base.run, seed=seed, frames=arguments.frames, evaluation_episodes=0, tensorboard=False),
                )
                result = vmpo.train(config, folder, quiet=True)
                whole.append(mean_return(folder))
                end.append(result.return_mean)
                print(f"{folder.name}: {whole[-1]:.1f} {end[-1]:.1f}", file=sys.stderr, flush=True)
            row = {"lag": lag, "kind": kind, "whole": statistics.mean(whole), "end": statistics.mean(end)}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
