"""The folder of a run: its configuration, and who may write there."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from vmpo import config as configuration
from vmpo.config import Config
from vmpo.errors import UserError
from vmpo.user_code import modules_of

MOST_NAMED = 12
"""Runs of a folder that a message lists."""


class RunDirectory:
    """Paths of a run. ``config.json`` marks a folder as one."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def videos(self) -> Path:
        return self.path / "videos"

    @property
    def evaluation_file(self) -> Path:
        return self.path / "evaluation.json"

    def command(self, name: str) -> str:
        """A command on this run, as it is to be typed."""
        try:
            trust = " --trust" if modules_of(self._read()) else ""
        except UserError:
            trust = ""
        return f"vmpo {name} {shlex.quote(str(self.path))}{trust}"

    def check_new(self) -> None:
        """Refuse a folder that holds a run already, or anything else but what a start that was killed left there."""
        if self.config_file.exists():
            raise UserError(
                f"{self.path} already holds a run; choose another directory, or go on with it: {self.command('resume')}"
            )
        inside = sorted(self.path.iterdir()) if self.path.is_dir() else []
        others = [path.name for path in inside if path.name[0] != "." and path != self.checkpoints]
        if self.checkpoints in inside and any(self.checkpoints.iterdir()):
            others.append(self.checkpoints.name)
        if others:
            raise UserError(f"{self.path} is not empty (it holds {others[0]}); choose another directory")

    def create(self, config: Config) -> None:
        """Claim a new or empty folder for a run."""
        self.check_new()
        self.write(config)

    @contextmanager
    def lock(self, patience: float = 0.0) -> Iterator[None]:
        """Hold the folder against other processes. The system lets go of it when this one ends, however it ends.

        With patience, wait so many seconds for another process to end.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = open(self.path / ".lock", "a+")  # noqa: SIM115
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {error.strerror}") from error
        with file:
            end = time.monotonic() + patience
            while not (held := _flock(file)) and time.monotonic() < end:
                time.sleep(0.1)
            if not held:
                file.seek(0)
                owner = file.read(20).strip()
                raise UserError(
                    f"{self.path} is in use by another process" + (f" ({owner})" if owner.isdigit() else "")
                )
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def write(self, config: Config) -> None:
        """Put the configuration in place, whole or not at all."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            put(self.config_file, configuration.to_dict(config))
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {error.strerror}") from error

    def read_config(self, trust: bool = False) -> Config:
        """The run's configuration. Unless trusted, it may not name a module that would be imported for it.

        A run directory may come from a stranger, and importing a module executes it. One that this process has
        imported already is trusted, unless it is Python's own, whose functions do anything.
        """
        config = self._read()
        for module in modules_of(config):
            if not trust and (module not in sys.modules or module.split(".")[0] in sys.stdlib_module_names):
                raise UserError(
                    f"{self.path} uses the module {module!r}, which would be imported and executed; "
                    "add --trust (trust=True in Python) if you know where this run comes from"
                )
        return config

    def _read(self) -> Config:
        try:
            values = json.loads(self.config_file.read_text())
        except FileNotFoundError:
            raise self.no_run() from None
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{self.config_file} cannot be read: {error}") from error
        return configuration.from_dict(values)

    def no_run(self) -> UserError:
        """An error for a folder without a configuration, which names the runs around it."""
        above = next((path for path in self.path.parents if RunDirectory(path).config_file.is_file()), None)
        inside = [str(file.parent) for file in sorted(self.path.glob("*/config.json"))]
        hint = ""
        if above is not None:
            hint = f"; it lies in the run {above}: name that instead"
        elif inside:
            more = f" and {len(inside) - MOST_NAMED} more" if len(inside) > MOST_NAMED else ""
            hint = f"; it contains runs, such as {', '.join(inside[:MOST_NAMED])}{more}: name one instead"
        return UserError(f"{self.path} holds no run (no config.json){hint}")


def put(path: Path, values: dict[str, Any]) -> None:
    """Write JSON, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(values, indent=2) + "\n")
    temporary.replace(path)


def _flock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
