"""Environments by name: a table of adapters, each imported only when asked for, because each needs a simulator."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TypeAlias

from vmpo.config import EnvConfig
from vmpo.errors import unknown
from vmpo.records import VectorEnv

Factory: TypeAlias = Callable[[EnvConfig, int, int], VectorEnv]
"""From a configuration, a number of environments and a seed to environments."""

_ADAPTERS = {
    "gymnasium": "vmpo.suites.gymnasium",
    "atari": "vmpo.suites.atari",
    "mujoco": "vmpo.suites.mujoco",
    "lab": "vmpo.suites.lab",
}
"""Modules of this package, each with a ``make(config, num_envs, seed, render)``."""

_FACTORIES: dict[str, Factory] = {}
"""What the user has registered."""


def register(name: str, factory: Factory) -> None:
    """Make a user's own environments available as suite ``name``; it takes precedence over a built-in of that name."""
    _FACTORIES[name] = factory


def names() -> tuple[str, ...]:
    """Every suite that ``make`` knows."""
    return tuple(sorted({*_ADAPTERS, *_FACTORIES}))


def make(config: EnvConfig, num_envs: int, seed: int, render: bool = False) -> VectorEnv:
    """Build the environments of a configuration.

    ``render`` prepares them for ``render()``, which costs time and memory in some suites. A registered factory is not
    told of it.
    """
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
