"""What the learner processes of a run tell each other between two unrolls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vmpo.records import EpisodeResult


@dataclass(kw_only=True)
class News:
    """Of one process, since it last told them."""

    episodes: list[EpisodeResult] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Tracebacks of environments that were made anew."""
    skipped: list[dict[str, Any]] = field(default_factory=list)
    """Descriptions of batches whose update was left out."""
    counts: dict[str, float] = field(default_factory=dict)
    """Of its fleet, since the process began."""
    stop: bool = False
    """A signal has come."""
