"""Settings that were varied on purpose, against what came of each run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vmpo.report.curves import rounded
from vmpo.report.runs import Run

FEWEST = 3
"""Values that a setting must have taken to be drawn as an axis."""

NOT_VARIED = ("run.seed",)


def parallel(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Axes of numeric settings with several values, and a row of values and score for each run; None without any.

    The score is the last mean return of training, over all tasks.
    """
    numbers = [{field: _number(text) for field, text in run.settings.items()} for run in runs]
    fields = [
        field
        for field in dict.fromkeys(field for run in runs for field in run.settings)
        if field not in NOT_VARIED and len({row.get(field) for row in numbers} - {None}) >= FEWEST
    ]
    rows = [
        {"run": index, "values": [row.get(field) for field in fields], "score": score}
        for index, (row, run) in enumerate(zip(numbers, runs, strict=True))
        if (score := _score(run)) is not None
    ]
    return {"fields": fields, "rows": rows} if fields and len(rows) >= FEWEST else None


def _number(text: str) -> float | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return float(value) if type(value) in (int, float) and math.isfinite(value) else None


def _score(run: Run) -> float | None:
    column = run.columns.get("return_mean", np.zeros(0))
    finite = column[np.isfinite(column)]
    return rounded(float(finite[-1])) if len(finite) else None
