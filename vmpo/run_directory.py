"""The folder of a run: its configuration, and who may write there."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vmpo import config as configuration
from vmpo.config import Config
from vmpo.errors import UserError


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

    def check_new(self) -> None:
        """Refuse a folder that holds a run already."""
        if self.config_file.exists():
            raise UserError(f"{self.path} already holds a run; use 'vmpo resume {self.path}' or another --directory")

    def create(self, config: Config) -> None:
        """Claim a new or empty folder for a run."""
        self.check_new()
        self.write(config)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder against other processes. The system lets go of it when this one ends, however it ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = open(self.path / ".lock", "a+")  # noqa: SIM115
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {error.strerror}") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                owner = file.read(20).strip()
                raise UserError(
                    f"{self.path} is in use by another process" + (f" ({owner})" if owner.isdigit() else "")
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def write(self, config: Config) -> None:
        """Put the configuration in place, whole or not at all."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            temporary = self.path / f".config.{os.getpid()}.tmp"
            temporary.write_text(json.dumps(configuration.to_dict(config), indent=2) + "\n")
            temporary.rename(self.config_file)
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {error.strerror}") from error

    def read_config(self, trust: bool = False) -> Config:
        """The run's configuration. Unless trusted, it may not name a module that would be imported for it.

        A run directory may come from a stranger, and importing a module executes it. One that this process has
        imported already is trusted.
        """
        config = self._read()
        for module in modules_of(config):
            if not trust and module not in sys.modules:
                raise UserError(
                    f"{self.path} plays an environment of the module {module!r}, which would be imported and executed; "
                    "add --trust (trust=True in Python) if you know where this run comes from"
                )
        return config

    def _read(self) -> Config:
        try:
            values = json.loads(self.config_file.read_text())
        except FileNotFoundError:
            raise UserError(f"{self.path} holds no run (no config.json)") from None
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{self.config_file} cannot be read: {error}") from error
        return configuration.from_dict(values)


def modules_of(config: Config) -> list[str]:
    """Modules that the environments of a configuration name: ``my_module:MyEnv-v0``."""
    if config.env.suite != "gymnasium":
        return []
    return [name.partition(":")[0].strip() for name in config.env.id.split(",") if ":" in name]
