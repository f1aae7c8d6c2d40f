"""The top half: exactly half of the valid samples, the highest ones, ties broken by order."""

from __future__ import annotations

import math

import oracles
import pytest
import torch
from loss_inputs import random_inputs, run

from vmpo.losses.vmpo import e_step, select_top


@pytest.mark.parametrize("fraction", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_selection_takes_the_highest_of_the_valid_advantages(seed, fraction):
    x = random_inputs(seed + 60)
    if seed % 2:
        x.advantages = x.advantages.round()
    result = select_top(x.advantages, x.valid, fraction)
    assert result.dtype == torch.bool
    paper = oracles.select_top(oracles.as_array(x.advantages), oracles.as_array(x.valid), fraction)
    assert (oracles.as_array(result) == paper).all()


@pytest.mark.parametrize("num_valid", range(8))
def test_exactly_half_of_the_valid_samples_is_selected(num_valid):
    """Not half of all samples: masked ones have no places to give."""
    advantages = torch.randn(6, 4, generator=torch.Generator().manual_seed(64))
    valid = torch.zeros(6, 4, dtype=torch.bool)
    valid.view(-1)[:num_valid] = True
    advantages[~valid] = 1e9
    selected = select_top(advantages, valid, 0.5)
    assert selected.sum() == num_valid // 2
    assert not (selected & ~valid).any()


def test_of_equal_advantages_the_earlier_ones_are_selected():
    """All tie: half of them is selected, not all, and the same half each time."""
    valid = torch.ones(3, 3, dtype=torch.bool)
    valid[0, 1] = False
    selected = select_top(torch.full((3, 3), 2.5), valid, 0.5)
    assert selected.tolist() == [[True, False, True], [True, True, False], [False, False, False]]


def test_many_ties_at_the_threshold_are_broken_by_the_earlier_index():
    """Large enough for an unstable sort to show itself."""
    g = torch.Generator().manual_seed(65)
    advantages = torch.randint(3, (64, 64), generator=g).float()
    valid = torch.rand(64, 64, generator=g) > 0.2
    paper = oracles.select_top(oracles.as_array(advantages), oracles.as_array(valid))
    assert (oracles.as_array(select_top(advantages, valid, 0.5)) == paper).all()


def test_a_valid_advantage_of_any_size_goes_before_an_invalid_one():
    advantages = torch.tensor([[-3e38, 5.0, -math.inf, -3e38]])
    valid = torch.tensor([[True, False, False, True]])
    assert select_top(advantages, valid, 1.0).tolist() == [[True, False, False, True]]


def test_tied_advantages_are_weighted_uniformly_over_one_half():
    x = random_inputs(66, length=2, batch=5, masked=False)
    x.advantages = torch.zeros(2, 5)
    outcome = run(x)
    assert oracles.as_array(outcome.log_probs).tolist() == [
        pytest.approx([-0.2] * 5, rel=1e-6),
        [0.0] * 5,
    ]
    assert float(outcome.metrics["e_step_kl"]) == pytest.approx(0.0, abs=1e-6)
    assert float(outcome.metrics["effective_sample_size"]) == pytest.approx(5.0, rel=1e-5)


# The temperature solved exactly.


@pytest.mark.parametrize(("fraction", "epsilon", "share"), [(0.5, 0.01, 0.82), (1.0, 0.01, 0.50), (1.0, 0.1, 0.59)])
def test_the_top_half_likes_small_gains_that_are_frequent(fraction: float, epsilon: float, share: float) -> None:
    """Two actions, equally likely: one wins a little nine times out of ten and loses much more; it is the worse one.

    The top half holds its wins and none of its losses. docs/algorithm.md names these shares of psi.
    """
    generator = torch.Generator().manual_seed(0)
    risky = torch.rand(100_000, 1, generator=generator) < 0.5
    loses = torch.rand(risky.shape, generator=generator) < 0.1
    rewards = torch.where(risky, torch.where(loses, -2.0, 0.1), 0.0) + 0.05 * torch.randn(
        risky.shape, generator=generator
    )
    assert rewards[risky].mean() < rewards[~risky].mean() - 0.1
    selected = select_top(rewards, torch.ones_like(risky), fraction)
    psi = e_step(advantages=rewards, temperature=None, epsilon=epsilon, selected=selected).weights
    assert float(psi[risky].sum()) == pytest.approx(share, abs=0.01)
