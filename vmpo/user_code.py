"""Code that a configuration names: ``my_module:thing``, an environment, an encoder or a loss of the user's own."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from types import ModuleType
from typing import Any

from vmpo.config import Config
from vmpo.errors import UserError, unknown


def import_module(name: str) -> ModuleType:
    """Import a user's module, also from the working directory, which a console script does not have on its path."""
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"cannot import {name!r}: {error}; run in the directory of that module, or install it"
        ) from error


def find(what: str, reference: str) -> Any:
    """The class or function that ``module:name`` stands for."""
    module_name, _, name = reference.partition(":")
    module = import_module(module_name)
    found = getattr(module, name, None)
    if not callable(found):
        own = [key for key, value in vars(module).items() if inspect.getmodule(value) is module and callable(value)]
        raise unknown(f"{what} in {module_name}", name, own)
    return found


def modules_of(config: Config) -> list[str]:
    """Modules that a configuration names, and that would be imported for it."""
    environments = config.env.id.split(",") if config.env.suite == "gymnasium" else []
    references = [*environments, config.agent.encoder, config.loss.algorithm]
    return [reference.partition(":")[0].strip() for reference in references if ":" in reference]
