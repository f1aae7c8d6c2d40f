"""The errors that end a run with one line, the place of a user's own, and the closest match for a misspelt name."""

from __future__ import annotations

import difflib
import inspect
import os
import re
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

MAIN_HINT = "in a script, put the training under \"if __name__ == '__main__':\", as its processes import the script"


class UserError(ValueError):
    """What was given, what is allowed, what to do, in one line. The command line prints it and exits with code 2."""


class UserCodeError(UserError):
    """An exception of the code that a configuration names: what it was, and where. Once that code has worked, a run
    survives it."""

    def __init__(self, what: str, place: str) -> None:
        super().__init__(what, place)
        self.what, self.place = what, place

    def __str__(self) -> str:
        return f"{self.place}: {self.what}"


class RunFailed(RuntimeError):
    """A run cannot go on, and why. What it had learned is saved; the command line prints it and exits with code 1."""


def named(error: BaseException) -> str:
    """The type and the message of an exception, in one line."""
    said = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def told(error: BaseException) -> str:
    """An exception with its place, to go on with a sentence: ``KeyError: 'missing' (broken.py:14 in step)``."""
    what, place = (error.what, error.place) if isinstance(error, UserCodeError) else (named(error), place_of(error))
    return f"{what} ({place})" if place else what


def place_of(error: BaseException) -> str:
    """The innermost line of the user's own code that an exception came through: ``broken.py:14 in step``, or nothing.

    Where it came through none, that of a package which is not one of those that this one builds on.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    frames = [(frame.f_code, frame.f_globals, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    for whose in ("user", "package"):
        for code, variables, line in reversed(frames):
            if _owner(code.co_filename) == whose:
                return _place(code.co_filename, variables.get("__name__", ""), line, code.co_name)
    return ""


def defined(thing: Any) -> str:
    """The place of a class or function; nothing where it is not the user's."""
    try:
        file, line = inspect.getfile(thing), inspect.getsourcelines(thing)[1]
    except (OSError, TypeError):
        return ""
    return "" if _owner(file) == "library" else _place(file, thing.__module__, line, thing.__name__)


def _owner(file: str) -> str:
    """Whose code a file holds: this package's or that of what it builds on, another ``package``'s, the ``user``'s."""
    parts = Path(file).parts
    for folder in ("site-packages", "dist-packages"):
        if folder in parts:
            inner = parts[parts.index(folder) + 1 :]
            return "library" if inner[0] in ("vmpo", "gymnasium", "numpy", "torch") else "package"
    ours = (os.path.dirname(__file__), os.path.dirname(os.__file__))
    return "library" if file.startswith(("<", *(folder + os.sep for folder in ours))) else "user"


def _place(file: str, module: str, line: int, name: str) -> str:
    """A file below the folder that its module was imported from, and the line."""
    path = Path(file)
    inner = path.parts[-(module.count(".") + 1 + (path.stem == "__init__")) :]
    return f"{'/'.join(inner)}:{line}" + ("" if name == "<module>" else f" in {name}")


def unknown(what: str, given: str, known: Iterable[str]) -> UserError:
    """An error for a name that does not exist, with the closest one that does."""
    known = sorted(known)
    close = difflib.get_close_matches(given.lower(), [k.lower() for k in known], n=1, cutoff=0.5)
    hint = next((f"did you mean {k!r}?" for k in known if close and k.lower() == close[0]), None)
    if hint is None:
        shown = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
        hint = f"known: {shown}" if known else "none is known"
    return UserError(f"unknown {what} {given!r}; {hint}")


def spelt(what: str, given: str, known: Mapping[str, str]) -> str:
    """The entry of ``known`` that is given in any case and punctuation: ``HumanoidRun``, ``humanoid-run``."""
    names = {plain(spelling): name for spelling, name in known.items()}
    if plain(given) not in names:
        raise unknown(what, given, names.values())
    return names[plain(given)]


def plain(name: str) -> str:
    """A name without what its spellings differ in."""
    return re.sub("[^a-z0-9]", "", name.lower())


def missing_extra(package: str, extra: str) -> UserError:
    """An error for an optional dependency that is not installed."""
    return UserError(f"{package} is not installed; install it with: pip install -e '.[{extra}]'")
