"""The schedule of a multi-task run: which task an environment plays next, so that all get the same agent steps."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64


class TaskSchedule:
    """Gives a free environment the task with the fewest agent steps, counting those that others will still take.

    Environments step together, so that one that never changes its task is fair by itself: where the environments are a
    multiple of the tasks nothing ever changes. Otherwise the first ``num_envs // num_tasks * num_tasks`` are fixed and
    the rest rotate: at the end of an episode each takes the task that is furthest behind, however long episodes last.
    """

    def __init__(self, num_tasks: int, num_envs: int) -> None:
        self.num_tasks, self.num_envs = num_tasks, num_envs
        self.fixed = num_envs // num_tasks * num_tasks
        """Environments below this index keep their task."""
        self.assigned: Int64[np.ndarray, " B"] = np.arange(num_envs) % num_tasks
        """Task of each environment now."""
        self.agent_steps: Int64[np.ndarray, " N"] = np.zeros(num_tasks, np.int64)
        """Steps that each task has had."""

    def count(self) -> None:
        """Every environment has taken a step of its task."""
        self.agent_steps += np.bincount(self.assigned, minlength=self.num_tasks)

    def next_task(self, env_index: int) -> int:
        """Assign the task for the environment's next episode; among equals, the one that fewest are playing."""
        if env_index >= self.fixed:
            others = np.delete(self.assigned[self.fixed :], env_index - self.fixed)
            free = np.setdiff1d(np.arange(self.num_tasks), others)
            self.assigned[env_index] = free[np.argmin(self.agent_steps[free])]
        return int(self.assigned[env_index])
