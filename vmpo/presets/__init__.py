"""Presets as data: the paper's own settings, and small-compute ones that learn on two cores."""

from __future__ import annotations

from vmpo.config import Config, sampled
from vmpo.errors import UserError, unknown
from vmpo.presets.paper import PAPER
from vmpo.presets.preset import Preset
from vmpo.presets.small import SMALL

PRESETS: dict[str, Preset] = {**SMALL, **PAPER}

DEFAULT = "cartpole"


def get(name: str) -> Preset:
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]


def settled(config: Config | str) -> Config:
    """A configuration, or a preset's by its name, with the fields that the preset leaves open drawn from its ranges."""
    config = get(config).config if isinstance(config, str) else config
    if not isinstance(config, Config):
        raise UserError(f"a run needs a vmpo.Config or the name of a preset; given: {config!r:.80}")
    return sampled(config, get(config.preset).ranges) if config.preset in PRESETS else config
