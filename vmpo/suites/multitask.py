"""Several tasks as one vector environment: a group of environments per task, all stepped together.

The groups are ordinary vector environments of any suite with the same observations and actions, such as all Atari games
with the full action set. Environments are dealt out like cards (task ``i % N``), so that every minibatch is mixed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TypeAlias, TypeVar

import numpy as np

from vmpo.errors import UserError
from vmpo.records import ActionSpec, ContinuousActions, EnvSpec, Observation, Timestep, VectorEnv
from vmpo.suites import arrivals
from vmpo.suites.schedule import TaskSchedule

Form = TypeVar("Form")

MakeTask: TypeAlias = Callable[[str, int], VectorEnv]
"""From a task's id and a number of environments to a vector environment of that one task."""


@dataclass(slots=True, kw_only=True, eq=False)
class Group:
    """The environments of one task, and which rows of the whole they are."""

    env: VectorEnv
    task: int
    rows: np.ndarray
    seed: int = 0
    started: bool = False
    """It has been reset since the whole was."""


class MultiTaskEnv:
    """Environments of several tasks, the same number of agent steps for each.

    What does not divide evenly rotates: those environments are single ones, one per task, of which the schedule wakes
    the one that is furthest behind whenever an episode of another has ended. A sleeping one waits at its end.
    """

    def __init__(self, make_task: MakeTask, ids: tuple[str, ...], num_envs: int) -> None:
        self.num_envs = num_envs
        self._schedule = TaskSchedule(len(ids), num_envs)
        each = num_envs // len(ids)
        self._groups: list[Group] = []
        self._sleepers: list[Group] = []
        try:
            if each:
                for task, name in enumerate(ids):
                    rows = np.arange(task, self._schedule.fixed, len(ids))
                    self._groups.append(Group(env=make_task(name, each), task=task, rows=rows))
            if self._schedule.fixed < num_envs:
                for task, name in enumerate(ids):
                    rows = np.zeros(0, np.int64)
                    self._sleepers.append(Group(env=make_task(name, 1), task=task, rows=rows))
            self.spec = _common_spec([group.env.spec for group in (self._groups or self._sleepers)])
        except BaseException:
            self.close()
            raise
        self._observation: Observation = {
            name: np.zeros((num_envs, *part.shape), part.dtype) for name, part in self.spec.observation.items()
        }
        self._arrival = arrivals.opening(self._observation, num_envs)

    def reset(self, seed: int) -> Timestep:
        """Start all episodes anew; the same seed gives the same stream."""
        self._schedule = TaskSchedule(len(self.spec.tasks), self.num_envs)
        seeds = arrivals.env_seeds(seed, len(self._groups) + len(self._sleepers))
        for group, group_seed in zip([*self._groups, *self._sleepers], seeds, strict=True):
            group.seed, group.started = group_seed, False
        for row in range(self._schedule.fixed, self.num_envs):
            self._sleepers[self._schedule.assigned[row]].rows = np.array([row])
        self._arrival = arrivals.opening(self._observation, self.num_envs)
        return self._advance(None)

    def step(self, actions: np.ndarray) -> Timestep:
        for row in range(self._schedule.fixed, self.num_envs):
            if self._arrival.ended[row]:
                self._sleepers[self._schedule.assigned[row]].rows = np.zeros(0, np.int64)
                self._sleepers[self._schedule.next_task(row)].rows = np.array([row])
        self._schedule.count()
        return self._advance(actions)

    def _advance(self, actions: np.ndarray | None) -> Timestep:
        """Let every group that has rows take its step, all at once where they can, and join what they arrive at."""
        awake = [group for group in (*self._groups, *self._sleepers) if len(group.rows)]
        for group in awake:
            send = getattr(group.env, "send", None)
            if group.started and send is not None and actions is not None:
                send(actions[group.rows])
        joined = {f.name: np.copy(getattr(self._arrival, f.name)) for f in fields(Timestep) if f.name != "observation"}
        for group in awake:
            arrival = self._arrive(group, actions)
            for name, array in arrival.observation.items():
                self._observation[name][group.rows] = array
            for name, whole in joined.items():
                whole[group.rows] = getattr(arrival, name)
            joined["task"][group.rows] = group.task
        self._arrival = Timestep(observation=self._observation, **joined)
        return self._arrival

    def _arrive(self, group: Group, actions: np.ndarray | None) -> Timestep:
        if actions is None or not group.started:
            group.started = True
            return group.env.reset(group.seed)
        receive = getattr(group.env, "receive", None)
        arrival = group.env.step(actions[group.rows]) if receive is None else receive()
        if group in self._sleepers and (arrival.first & arrival.ended).any():
            raise UserError(
                f"{self.spec.tasks[group.task]} resets within its last step, so that its environments cannot change "
                f"their task; make actors.num_envs a multiple of {len(self.spec.tasks)} tasks"
            )
        return arrival

    def render(self) -> np.ndarray:
        return next(group for group in (*self._groups, *self._sleepers) if 0 in group.rows).env.render()

    def close(self) -> None:
        for group in (*self._groups, *self._sleepers):
            group.env.close()


def _common_spec(specs: list[EnvSpec]) -> EnvSpec:
    """The spec of all tasks together; they must see and act alike."""
    tasks = tuple(task for spec in specs for task in spec.tasks)
    repeated = sorted({task for task in tasks if tasks.count(task) > 1})
    if repeated:
        raise UserError(f"a task is named twice: {', '.join(repeated)}")
    for spec in specs[1:]:
        pair = f"{specs[0].tasks[0]} and {spec.tasks[0]}"
        if spec.observation != specs[0].observation:
            raise UserError(f"{pair} differ in their observations; one agent cannot play both")
        if not _same_actions(spec.action, specs[0].action):
            raise UserError(f"{pair} differ in their actions; for Atari games set --env.full-action-set True")
        if spec.action_repeat != specs[0].action_repeat:
            raise UserError(f"{pair} differ in their action repeat; one agent cannot play both")
    # Tasks that see and act alike may still differ in what their environments give and take.
    observation = {
        name: replace(array, form=_common(*(spec.observation[name].form for spec in specs)))
        for name, array in specs[0].observation.items()
    }
    action = replace(specs[0].action, form=_common(*(spec.action.form for spec in specs)))
    return replace(specs[0], tasks=tasks, observation=observation, action=action)


def _common(first: Form, *others: Form) -> Form | None:
    return first if all(other == first for other in others) else None


def _same_actions(one: ActionSpec, other: ActionSpec) -> bool:
    if isinstance(one, ContinuousActions) and isinstance(other, ContinuousActions):
        pairs = ((one.low, other.low), (one.high, other.high))
        return all(np.array_equal(np.float32(a), np.float32(b)) for a, b in pairs)
    return one == other
