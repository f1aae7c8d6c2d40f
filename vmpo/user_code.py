"""Code that a configuration names: ``my_module:thing``, an environment, an encoder or a loss of the user's own."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from vmpo.config import Config
from vmpo.errors import UserCodeError, UserError, named, place_of, unknown


def import_module(name: str) -> ModuleType:
    """Import a user's module, also from the working directory, which a console script does not have on its path."""
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise UserError(
                f"cannot import {name!r}: {error}; run in the directory of that module, or install it"
            ) from error
        raise UserCodeError(named(error), place_of(error) or f"cannot import {name!r}") from error


def respelt(reference: str) -> str | None:
    """``module:Name`` where a file of the working directory was named in another way; it is read, not executed."""
    front, _, name = reference.partition(":")
    module = front.removeprefix("./").removesuffix(".py").replace("/", ".")
    if not name and not _file(module).is_file():
        module, _, name = module.rpartition(".")
    if not module or not _file(module).is_file():
        return None
    right = f"{module}:{name or _first_environment(_file(module))}"
    return None if right in (reference, f"{module}:") else right


def _file(module: str) -> Path:
    return Path(module.replace(".", "/") + ".py")


def _first_environment(file: Path) -> str:
    """The first class of a file that is derived from one called Env, or else its first class or function."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return ""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    derived = [node.name for node in classes if any(ast.unparse(base).endswith("Env") for base in node.bases)]
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return next(iter([*derived, *(node.name for node in classes), *functions]), "")


def find(what: str, reference: str) -> Any:
    """The class or function that ``module:name`` stands for."""
    module_name, _, name = reference.partition(":")
    module = import_module(module_name)
    found = getattr(module, name, None)
    if not callable(found):
        own = [key for key, value in vars(module).items() if inspect.getmodule(value) is module and callable(value)]
        raise unknown(f"{what} in {module_name}", name, own)
    return found


@contextmanager
def own_code(reference: str) -> Iterator[None]:
    """What is done within is the user's: an exception says where it comes from."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserCodeError(named(error), place_of(error) or reference) from error


def modules_of(config: Config) -> list[str]:
    """Modules that a configuration names, and that would be imported for it."""
    environments = config.env.id.split(",") if config.env.suite == "gymnasium" else []
    references = [*environments, config.agent.encoder, config.loss.algorithm]
    return [reference.partition(":")[0].strip() for reference in references if ":" in reference]
