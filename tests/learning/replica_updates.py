"""Run by test_replicas in each of several processes: updates from recorded batches, each on its own part of them.

``python replica_updates.py FILE`` reads the cases of FILE, and writes what rank r learned to FILE.r.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from samples import new_learner

from vmpo.learning.replicas import joined, share_of
from vmpo.records import split


def outcome(learner, metrics):
    """All that a learner holds, and the last metrics."""
    return {
        "online": [p.detach() for p in learner.online.state_dict().values()],
        "target": [p.detach() for p in learner.target.state_dict().values()],
        "multipliers": [p.detach() for p in learner.multipliers.parameters()],
        "statistics": [learner.statistics.mean, learner.statistics.second_moment],
        "counters": [torch.tensor([learner.learner_step, learner.version, learner.skipped])],
        "metrics": {name: torch.as_tensor(value).double() for name, value in metrics.items()},
    }


def main(path):
    torch.set_num_threads(1)
    with joined() as replicas:
        outcomes = []
        for case in torch.load(path, weights_only=False):
            learner = new_learner(share_of(case["config"], replicas), case["spec"], replicas=replicas)
            for batch in case["batches"]:
                metrics = learner.update(split(batch, replicas.count)[replicas.rank])
            outcomes.append(outcome(learner, metrics))
        torch.save(outcomes, f"{path}.{replicas.rank}")


if __name__ == "__main__":
    main(sys.argv[1])
