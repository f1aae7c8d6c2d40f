"""What a run finds around it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vmpo.display import Display
from vmpo.signals import StopSignal

if TYPE_CHECKING:
    from vmpo.acting.remote import Crew


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Other than usual where a cluster or a sweep starts the run, and not a user at a terminal."""

    crew: Crew | None = None
    """Actors in other processes; without them the run makes its own."""
    stop: StopSignal = field(default_factory=StopSignal)
    display: Display | None = None
    patience: float = 0.0
    """Seconds to wait for another process to let go of the run directory."""
