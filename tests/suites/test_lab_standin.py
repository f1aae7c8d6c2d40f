"""The stand-in for the lab must refuse what the real one refuses, or the adapter's tests prove nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from lab_standin import Lab

SIZE = {"width": "96", "height": "72"}
LEVEL = "contributed/dmlab30/explore_goal_locations_small"


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (lambda: Lab(LEVEL, ["RGB_INTERLACED"], SIZE), ValueError),
        (lambda: Lab(LEVEL, ("INSTR",), SIZE), TypeError),
        (lambda: Lab(LEVEL, [], {**SIZE, "fps": 60}), TypeError),
        (lambda: Lab(LEVEL, [], {"width": "96"}), KeyError),
        (lambda: Lab(LEVEL, [], SIZE, renderer="egl"), RuntimeError),
        (lambda: Lab(LEVEL, [], SIZE, level_cache={}), AttributeError),
        (lambda: Lab("explore_goal_locations_small", [], SIZE), RuntimeError),
        (lambda: Lab(LEVEL, [], SIZE).reset(), ValueError),
        (lambda: Lab(LEVEL, [], SIZE).reset(seed=np.int64(1)), ValueError),
        (lambda: Lab(LEVEL, [], SIZE).step(np.zeros(7, np.intc)), RuntimeError),
        (lambda: Lab(LEVEL, [], SIZE).observations(), RuntimeError),
        (lambda: Lab(LEVEL, [], SIZE).fps(), AttributeError),
        (lambda: running().step(np.zeros(7, np.int64)), ValueError),
        (lambda: running().step(np.zeros(5, np.intc)), ValueError),
        (lambda: running().step([0] * 7), TypeError),
        (lambda: running().step(np.zeros((7, 2), np.intc)[:, 0]), ValueError),
        (lambda: running(frames=30).observations(), RuntimeError),
        (lambda: running(frames=30).step(np.zeros(7, np.intc)), RuntimeError),
    ],
)
def test_the_stand_in_is_strict(fault: Callable[[], Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        fault()


def running(frames: int = 1) -> Lab:
    started = Lab(LEVEL, ["RGB_INTERLEAVED"], SIZE)
    started.reset(seed=0)
    started.step(np.zeros(7, np.intc), frames)
    return started
