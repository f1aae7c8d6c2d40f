"""A preset: a configuration by a name, and what it leaves open."""

from __future__ import annotations

from dataclasses import dataclass, field

from vmpo.config import Config, Ranges


@dataclass(frozen=True, kw_only=True)
class Preset:
    config: Config
    summary: str
    ranges: Ranges = field(default_factory=dict)
    """Log-uniform ranges, sampled once per run for the fields that the configuration leaves at None."""
