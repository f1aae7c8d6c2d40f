"""The health of a run in words: what has been wrong with its dual variables for long, and what helps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

LONG = 500
"""Learner steps for which something must last before it is said."""
HIGH_RATIO = 2.0
"""A KL beyond this multiple of its bound is not held by its multiplier."""
FEW_SAMPLES = 2.0
WORSE_THAN_CONSTANT = -0.1
"""Explained variance of a value function that would better predict the mean."""
SMALL_ERROR = 0.1
"""Of the returns' spread over the run. Where a batch's returns hardly vary, values so near are good enough."""


class Health:
    """Remembers since when each complaint has held."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}

    def observe(self, line: Mapping[str, Any]) -> dict[str, str]:
        """A sentence for each metric of ``metrics.jsonl`` that has been bad for long, by the metric's name."""
        step = finite(line.get("learner_step"))
        if step is None:
            return {}
        bad = complaints(line)
        self._since = {name: self._since.get(name, int(step)) for name in bad}
        lasted = {name: int(step) - since for name, since in self._since.items()}
        return {name: bad[name].format(updates=f"{n:,} updates") for name, n in lasted.items() if n >= LONG}


def complaints(line: Mapping[str, Any]) -> dict[str, str]:
    """What is bad in this line alone; ``{updates}`` stands for how long."""
    found: dict[str, str] = {}
    for name, value in line.items():
        number = finite(value)
        if number is None:
            continue
        if name == "e_step_kl_over_bound" and number > HIGH_RATIO:
            found[name] = (
                f"temperature has not met its bound for {{updates}}: the E-step's KL is {number:.1f} times as large; "
                "set --loss.exact-temperature True, or raise --learner.multiplier-learning-rate"
            )
        elif name.startswith("kl_over_bound/") and number > HIGH_RATIO:
            part = name.removeprefix("kl_over_bound/")
            found[name] = (
                f"the {part} KL has not met its bound for {{updates}}: it is {number:.1f} times as large; "
                f"raise --learner.multiplier-learning-rate or --loss.initial-alpha-{part}"
            )
        elif name == "effective_sample_size" and number < FEW_SAMPLES:
            found[name] = (
                f"the E-step has rested on {number:.1f} samples for {{updates}}; "
                "lower --loss.epsilon-temperature, or raise --learner.batch-size"
            )
        elif name == "value_explained_variance" and number < WORSE_THAN_CONSTANT and _value_error(line) > SMALL_ERROR:
            found[name] = (
                f"the values have been worse than a constant for {{updates}} (explained variance {number:.2f}); "
                "lower --learner.learning-rate, or look at the rewards' scale"
            )
    return found


def _value_error(line: Mapping[str, Any]) -> float:
    """Of a typical state, in units of PopArt's scale: the loss is half its square."""
    loss = finite(line.get("loss_value"))
    return math.inf if loss is None else math.sqrt(2.0 * max(loss, 0.0))


def finite(value: Any) -> float | None:
    """The number, if it is one."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None
