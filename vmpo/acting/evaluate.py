"""Evaluation: a fixed number of whole episodes with fixed weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vmpo.acting.actor import Actor, allocate
from vmpo.records import EpisodeResult
from vmpo.scores import benchmark_of

UNROLL_LENGTH = 32
"""Steps between two looks at which episodes have ended."""

TELL_SECONDS = 10.0
"""Between two words about how far it is: an agent that always acts alike may play one game for half an hour."""

LONGEST_EPISODE = 100_000
"""Steps after which an episode counts as far as it got: some environments have no time limit of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    episodes: tuple[EpisodeResult, ...]
    unfinished: int = 0
    """How many of them were cut."""
    learner_step: int | None = None
    """At which the weights were saved, if they come from a checkpoint."""
    agent_steps: int | None = None

    def summary(self) -> dict[str, Any]:
        """Mean and deviation of the returns; per task too, where there are several; scores, where a suite has them."""
        by_task: dict[str, list[float]] = {}
        for episode in self.episodes:
            by_task.setdefault(episode.task, []).append(episode.episode_return)
        overall: dict[str, Any] = _statistics([e.episode_return for e in self.episodes])
        tasks = {task: _statistics(returns) for task, returns in sorted(by_task.items())}
        benchmark = benchmark_of(tasks)
        if benchmark is not None:
            for task, values in tasks.items():
                values["human_normalised"] = benchmark.normalised(task, values["mean_return"])
                values["published"] = benchmark.levels[task].published
            overall["score"] = benchmark.summary({task: values["mean_return"] for task, values in tasks.items()})
        if len(tasks) > 1:
            overall["tasks"] = tasks
        if self.unfinished:
            overall["unfinished"] = self.unfinished
        if self.learner_step is not None:
            overall |= {"learner_step": self.learner_step, "agent_steps": self.agent_steps}
        return overall


def num_evaluation_envs(num_envs: int, num_tasks: int, episodes: int) -> int:
    """Environments to evaluate with: about as many as in training, the same number for each task."""
    return num_tasks * min(episodes, max(1, num_envs // num_tasks))


def evaluate(actor: Actor, episodes: int, tell: Callable[[str], None] | None = None) -> EvaluationResult:
    """Play ``episodes`` episodes of each task, and now and then ``tell`` how far that is.

    Each environment contributes the first ones that it starts, in a number set beforehand: taking whichever ends first
    would favour short episodes. An environment whose episode does not end contributes no more than that one.
    """
    num_envs, num_tasks = actor.env.num_envs, len(actor.env.spec.tasks)
    assert num_envs % num_tasks == 0, "an environment must not change its task"
    each = num_envs // num_tasks
    wanted = np.full(num_envs, episodes // each)
    wanted[: num_tasks * (episodes % each)] += 1
    slot = allocate(actor.env.spec, actor.family, actor.network, UNROLL_LENGTH, num_envs, pin=False)
    results: list[EpisodeResult] = []
    unfinished, told = 0, time.monotonic()
    while wanted.any():
        if tell is not None and time.monotonic() - told >= TELL_SECONDS:
            mean = f", mean return {np.mean([e.episode_return for e in results]):,.1f}" if results else ""
            tell(f"evaluating: {len(results)} of {len(results) + wanted.sum()} episodes{mean}")
            told = time.monotonic()
        for episode in actor.unroll(slot):
            if wanted[episode.env_index]:
                wanted[episode.env_index] -= 1
                results.append(episode)
        for episode in actor.running(LONGEST_EPISODE):
            if wanted[episode.env_index]:
                wanted[episode.env_index] = 0
                results.append(episode)
                unfinished += 1
    return EvaluationResult(episodes=tuple(results), unfinished=unfinished)


def _statistics(returns: list[float]) -> dict[str, Any]:
    return {
        "mean_return": float(np.mean(returns)),
        "std_return": float(np.std(returns)),
        "min_return": float(np.min(returns)),
        "max_return": float(np.max(returns)),
        "episodes": len(returns),
    }
