"""The words of a command: options, their values and what stands alone, told apart before tyro reads them."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import typing
from typing import Annotated, Any, TypeVar

import tyro

from vmpo.errors import UserError, unknown
from vmpo.options import Sections
from vmpo.suites import parse_env

Options = TypeVar("Options")

SHORT = {"--frames": "--run.frames", "--seed": "--run.seed"}
"""For the commands that start from a preset; ``--env SUITE:ID`` is a third one, for two fields."""

POSITIONS = {"directory": "a run directory", "directories": "a run directory", "out": "a file to write"}
"""What a command cannot do without, in words."""


def parse(kind: type[Options], arguments: list[str], program: str, default: Options | None = None) -> Options:
    """A record of options. What tyro finds wrong, in boxes, is folded into one line."""
    alone, options = split(kind, arguments)
    fields = [name for name, hint in _hints(kind).items() if typing.get_origin(hint) is Annotated]
    required = [f.name for f in dataclasses.fields(typing.cast(Any, kind)) if f.default is dataclasses.MISSING]
    missing = [POSITIONS[name] for name in fields[len(alone) :] if name in required and name != "directories"]
    if missing and "--help" not in options:
        raise UserError(f"{program} needs {' and '.join(missing)}; '{program} --help' explains it")
    if len(alone) > len(fields) and "directories" not in fields:
        raise UserError(f"{program} has no use for {alone[len(fields)]!r}")
    kwargs: dict[str, Any] = {} if default is None else {"default": default}
    captured = io.StringIO()
    try:
        with contextlib.redirect_stderr(captured):
            return tyro.cli(kind, args=[*alone, *options], prog=program, **kwargs)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UserError(first_message(captured.getvalue())) from None


def split(kind: type, arguments: list[str]) -> tuple[list[str], list[str]]:
    """The words that stand alone, wherever they are, and the options as tyro takes them.

    An option has one value, a list as many numbers as follow, and a flag one only if that is True or False.
    """
    known = _options(kind)
    if issubclass(kind, Sections):
        known |= {"--frames": int, "--seed": int, "--env": str}
    alone: list[str] = []
    given: list[tuple[str, list[str]]] = []
    for word in arguments:
        if word.startswith("--") or word == "-h":
            flag, equals, value = word.partition("=")
            flag = "--help" if flag == "-h" else flag.replace("_", "-")
            if flag not in known:
                raise unknown("option", flag, [name for name, hint in known.items() if hint is not None])
            given.append((flag, [value] if equals else []))
        elif given and _takes(known[given[-1][0]], given[-1][1], word):
            given[-1][1].append(word)
        else:
            alone.append(word)
    options: list[str] = []
    for flag, values in given:
        if typing.get_origin(known[flag]) is Annotated:
            # What has a place may be named as well; that of a run directory is the first.
            alone = [*values, *alone] if flag.startswith("--director") else [*alone, *values]
        else:
            words = _as_tyro_takes_it(flag, known[flag], values)
            options += [SHORT[flag], *words[1:]] if SHORT.get(flag) in known else words
    return alone, options


def _takes(hint: Any, values: list[str], word: str) -> bool:
    """Whether a word is another value of an option that has some already."""
    if hint is bool:
        return not values and word in ("True", "False")
    if typing.get_origin(hint) is tuple and values:
        return re.match(r"-?\d", word) is not None
    return hint is not None and not values


def _as_tyro_takes_it(flag: str, hint: Any, values: list[str]) -> list[str]:
    if hint is None:
        return [flag]
    if hint is bool:
        if values and values[0] not in ("True", "False"):
            raise UserError(f"{flag} {values[0]} must be True or False")
        return [_negative(flag) if values == ["False"] else flag]
    if not values and typing.get_origin(hint) is not tuple:
        raise UserError(f"{flag} needs a value{', such as --env CartPole-v1' if flag == '--env' else ''}")
    if flag == "--env":
        suite, name = parse_env(values[0])
        return ["--env.suite", suite, "--env.id", name]
    if hint is int or int in typing.get_args(hint):
        values = [value if value == "None" else _whole(flag, value) for value in values]
    return [flag, *values]


def _whole(flag: str, text: str) -> str:
    """A whole number in plain digits: 100_000 and 1e5 are ones too."""
    with contextlib.suppress(ValueError):
        return str(int(text))
    with contextlib.suppress(ValueError):
        if float(text).is_integer():
            return str(int(float(text)))
    raise UserError(f"{flag} {text} is no whole number; write one as 100000, 100_000 or 1e5")


def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _options(kind: type, prefix: str = "--") -> dict[str, Any]:
    """Every option of a record and the type of its values, nested sections included; None where it takes none."""
    options: dict[str, Any] = {"--help": None}
    for name, hint in _hints(kind).items():
        if dataclasses.is_dataclass(hint):
            options |= _options(typing.cast(type, hint), f"{prefix}{name}.")
        else:
            flag = f"{prefix}{name}".replace("_", "-")
            options |= {flag: hint} | ({_negative(flag): None} if hint is bool else {})
    return options


def _negative(flag: str) -> str:
    """``--run.tensorboard`` to ``--run.no-tensorboard``, as tyro has it."""
    return re.sub(r"[^.]+$", r"no-\g<0>", flag) if "." in flag else f"--no-{flag[2:]}"


def first_message(boxes: str) -> str:
    """The text of tyro's first error box, drawn in colours or in plain letters, without its title and its help."""
    parts: list[list[str]] = [[]]
    for line in re.sub(r"\x1b\[[0-9;]*m", "", boxes).splitlines():
        text = line.strip(" │|")
        if re.match(r"[╭╰+─-]{2}", text):
            parts.append([])
        else:
            parts[-1].append(text)
    texts = [" ".join(part).strip() for part in parts]
    # A plain box begins with its title, where a drawn one has it in the frame.
    message = next((text for text in texts[1:] if text), "")
    return message or "the options could not be read"
