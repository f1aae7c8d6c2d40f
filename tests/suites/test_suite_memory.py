"""The memory chain must show its bit once and pay for it at the end alone."""

from __future__ import annotations

import numpy as np
import pytest

from vmpo import suites
from vmpo.config import EnvConfig
from vmpo.errors import UserError
from vmpo.records import VectorEnv


def chain(length: int, num_envs: int = 64, stagger: bool = False) -> VectorEnv:
    return suites.make(EnvConfig(suite="memory", id=str(length), stagger=stagger), num_envs, seed=0)


def test_the_bit_is_shown_first_asked_for_last_and_pays_for_itself_alone() -> None:
    env = chain(3)
    timestep = env.reset(0)
    bits = timestep.observation["observation"][:, 2]
    assert set(bits) == {-1.0, 1.0}
    answers = (np.arange(64)[:, None] // 2 + (bits[:, None] > 0)) % 2
    for time in range(1, 4):
        timestep = env.step(np.zeros((64, 1), np.int64))
        left, asked, shown = timestep.observation["observation"].T
        assert (left == np.float32(1 - time / 3)).all()
        assert (asked == (time == 3)).all()
        assert (shown == 0).all()
        assert (timestep.reward == 0).all()
        assert not timestep.ended.any()
    timestep = env.step(answers)
    right = answers[:, 0] == (bits > 0)
    assert 0 < right.sum() < 64
    np.testing.assert_array_equal(timestep.reward, np.where(right, 1.0, -1.0))
    assert timestep.ended.all()
    assert (timestep.discount == 0).all()
    timestep = env.step(answers)
    assert timestep.first.all()
    assert not timestep.valid.any()
    assert (timestep.reward == 0).all()
    assert (timestep.observation["observation"][:, 2] != bits).any()


def test_the_same_seed_gives_the_same_bits() -> None:
    env = chain(5)
    first, again, other = (env.reset(seed).observation["observation"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_staggered_chains_do_not_ask_all_at_once() -> None:
    env = chain(7, num_envs=8, stagger=True)
    env.reset(0)
    action = np.zeros((8, 1), np.int64)
    steps = [env.step(action) for _ in range(40)]
    last = steps[-9:]
    assert len({tuple(np.flatnonzero(step.ended)) for step in last}) > 3
    # Two environments play their first episode to its end, the others are cut at steps 1 to 6.
    cut = np.array([step.ended & (step.discount > 0) for step in steps])
    assert cut.sum() == cut[:6].sum() == 6
    assert (np.array([step.reward for step in steps])[cut] == 0).all()


@pytest.mark.parametrize("name", ["0", "long", "-3"])
def test_an_id_that_is_no_length_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="length of a memory chain"):
        suites.make(EnvConfig(suite="memory", id=name), 2, seed=0)
