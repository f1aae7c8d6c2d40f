"""Environments by name: a table of adapters, each imported only when asked for, because each needs a simulator."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from vmpo import scores
from vmpo.config import EnvConfig
from vmpo.errors import UserError, unknown
from vmpo.records import VectorEnv
from vmpo.suites.multitask import MultiTaskEnv
from vmpo.suites.partial import PartialEnv

Factory: TypeAlias = Callable[[EnvConfig, int, int], VectorEnv]
"""From a configuration, a number of environments and a seed to environments."""

_ADAPTERS = {
    "gymnasium": "vmpo.suites.gymnasium",
    "atari": "vmpo.suites.atari",
    "mujoco": "vmpo.suites.mujoco",
    "control": "vmpo.suites.control",
    "lab": "vmpo.suites.lab",
    "miniworld": "vmpo.suites.miniworld",
    "memory": "vmpo.suites.memory",
}
"""Modules of this package, each with a ``make(config, num_envs, seed, render)``."""

_SEVERAL_TASKS = ("lab", "miniworld")
"""Suites that play several tasks themselves, in common worker processes; their ``task_ids`` reads the id."""

_THREADED = ("atari", "mujoco", "control")
"""Suites that take all cores unless told otherwise; several tasks share them."""

_FACTORIES: dict[str, Factory] = {}
"""What the user has registered."""


def register(name: str, factory: Factory) -> None:
    """Make a user's own environments available as suite ``name``; it takes precedence over a built-in of that name."""
    _FACTORIES[name] = factory


def names() -> tuple[str, ...]:
    """Every suite that ``make`` knows."""
    return tuple(sorted({*_ADAPTERS, *_FACTORIES}))


def task_ids(config: EnvConfig) -> tuple[str, ...]:
    """The ids that a configuration names: one, several separated by commas, or all levels of a benchmark."""
    ids = tuple(part.strip() for part in config.id.split(","))
    if not all(ids):
        raise UserError(f"env.id={config.id!r} names no environment, or has a comma too many")
    if config.suite in _SEVERAL_TASKS and config.suite not in _FACTORIES:
        return importlib.import_module(_ADAPTERS[config.suite]).task_ids(config)
    if config.id in scores.benchmarks():
        return tuple(scores.benchmarks()[config.id].levels)
    return ids


def each_task(config: EnvConfig) -> tuple[EnvConfig, ...]:
    """A configuration for each task by itself, in the order of the tasks, and of whole episodes."""
    ids = task_ids(config)
    if config.suite == "miniworld" and config.suite not in _FACTORIES:
        # A task has the name of its level, also where that is played without instructions.
        ids = tuple(importlib.import_module(_ADAPTERS["miniworld"]).level_names(config.id).values())
    return tuple(replace(config, id=name, stagger=False) for name in ids)


def make(config: EnvConfig, num_envs: int, seed: int, render: bool = False) -> VectorEnv:
    """Build the environments of a configuration; several tasks become one vector environment.

    ``render`` prepares them for ``render()``, which costs time and memory in some suites. A registered factory is not
    told of it.
    """
    env = _make_all(config, num_envs, seed, render)
    return PartialEnv(env, config.hidden) if config.hidden else env


def _make_all(config: EnvConfig, num_envs: int, seed: int, render: bool) -> VectorEnv:
    ids = task_ids(config)
    if len(ids) == 1 or (config.suite in _SEVERAL_TASKS and config.suite not in _FACTORIES):
        return _make_one(config, num_envs, seed, render)
    threads = config.simulator_threads
    if threads or config.suite in _THREADED:
        threads = max(1, (threads or os.cpu_count() or 1) // len(ids))

    def make_task(name: str, count: int) -> VectorEnv:
        return _make_one(replace(config, id=name, simulator_threads=threads), count, seed, render)

    return MultiTaskEnv(make_task, ids, num_envs)


def _make_one(config: EnvConfig, num_envs: int, seed: int, render: bool) -> VectorEnv:
    if config.suite in _FACTORIES:
        return _FACTORIES[config.suite](config, num_envs, seed)
    if config.suite not in _ADAPTERS:
        raise unknown("suite", config.suite, names())
    return importlib.import_module(_ADAPTERS[config.suite]).make(config, num_envs, seed, render=render)


def parse_env(text: str) -> tuple[str, str]:
    """Split ``suite:id`` as the command line takes it.

    Without a known suite in front the text is a Gymnasium id as a whole, also where it names a module
    (``my_module:MyEnv-v0``).
    """
    suite, colon, name = text.partition(":")
    return (suite, name) if colon and suite in names() else ("gymnasium", text)


def is_environment(text: str) -> bool:
    """Whether a text is meant for ``parse_env``: it has a suite or a module in front, or is an id of Gymnasium's."""
    import gymnasium

    return ":" in text or text in gymnasium.registry
