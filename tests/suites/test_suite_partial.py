"""Hidden entries must be gone from the observation and from its spec, and nothing else may change."""

from __future__ import annotations

import numpy as np
import pytest

from vmpo import suites
from vmpo.config import EnvConfig
from vmpo.errors import UserError


def test_cartpole_without_velocities_is_cartpole_otherwise() -> None:
    whole, part = (suites.make(EnvConfig(id="CartPole-v1", hidden=hidden), 4, seed=0) for hidden in ((), (1, 3)))
    assert part.spec.observation["observation"].shape == (2,)
    actions = np.random.default_rng(0).integers(2, size=(60, 4, 1))
    pairs = [(whole.reset(3), part.reset(3)), *((whole.step(action), part.step(action)) for action in actions)]
    for expected, seen in pairs:
        np.testing.assert_array_equal(seen.observation["observation"], expected.observation["observation"][:, [0, 2]])
        np.testing.assert_array_equal(seen.reward, expected.reward)
        np.testing.assert_array_equal(seen.ended, expected.ended)
    assert any(expected.ended.any() for expected, _ in pairs)


@pytest.mark.parametrize(
    ("hidden", "message"), [((4,), "entry 4 of a vector observation of 4"), ((0, 1, 2, 3), "hides all 4 entries")]
)
def test_what_cannot_be_hidden_is_refused(hidden: tuple[int, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        suites.make(EnvConfig(id="CartPole-v1", hidden=hidden), 2, seed=0)
