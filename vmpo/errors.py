"""The errors that end a run with one line, and the closest match for a misspelt name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MAIN_HINT = "in a script, put the training under \"if __name__ == '__main__':\", as its processes import the script"


class UserError(ValueError):
    """What was given, what is allowed, what to do, in one line. The command line prints it and exits with code 2."""


class RunFailed(RuntimeError):
    """A run cannot go on, and why. What it had learned is saved; the command line prints it and exits with code 1."""


def unknown(what: str, given: str, known: Iterable[str]) -> UserError:
    """An error for a name that does not exist, with the closest one that does."""
    known = sorted(known)
    close = difflib.get_close_matches(given.lower(), [k.lower() for k in known], n=1, cutoff=0.5)
    hint = next((f"did you mean {k!r}?" for k in known if close and k.lower() == close[0]), None)
    if hint is None:
        shown = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
        hint = f"known: {shown}" if known else "none is known"
    return UserError(f"unknown {what} {given!r}; {hint}")


def missing_extra(package: str, extra: str) -> UserError:
    """An error for an optional dependency that is not installed."""
    return UserError(f"{package} is not installed; install it with: pip install -e '.[{extra}]'")
