"""From the flat outputs of a policy head to a distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vmpo.distributions import Categorical, DiagonalGaussian, FullGaussian, PolicyFamily
from vmpo.records import ContinuousActions, DiscreteActions

GAUSSIANS = ("diagonal", "full")


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def spread(policy: DiagonalGaussian | FullGaussian) -> torch.Tensor:
    return policy.std if isinstance(policy, DiagonalGaussian) else policy.scale_tril


def continuous(width: int) -> ContinuousActions:
    return ContinuousActions(low=np.full(width, -2.0, np.float32), high=np.full(width, 2.0, np.float32))


@pytest.mark.parametrize("sizes", [(2,), (7,), (3, 4), (2, 2, 5)])
def test_the_categorical_family_takes_one_logit_per_choice(sizes):
    family = PolicyFamily(actions=DiscreteActions(sizes=sizes))
    assert family.num_parameters == sum(sizes)
    parameters = torch.randn(3, 4, sum(sizes), generator=generator(50))
    policy = family.distribution(parameters)
    actions = torch.stack([torch.full((3, 4), size - 1) for size in sizes], dim=-1)
    assert isinstance(policy, Categorical)
    torch.testing.assert_close(policy.log_prob(actions), Categorical(logits=parameters, sizes=sizes).log_prob(actions))


@pytest.mark.parametrize("initial_std", [0.3, 1.0])
@pytest.mark.parametrize("covariance", GAUSSIANS)
def test_zero_parameters_give_the_initial_gaussian(covariance, initial_std):
    family = PolicyFamily(actions=continuous(3), covariance=covariance, initial_std=initial_std)
    assert family.num_parameters == (6 if covariance == "diagonal" else 3 + 6)
    policy = family.distribution(torch.zeros(2, 5, family.num_parameters))
    assert isinstance(policy, DiagonalGaussian if covariance == "diagonal" else FullGaussian)
    assert torch.equal(policy.mean, torch.zeros(2, 5, 3))
    expected = torch.full((2, 5, 3), initial_std)
    expected = expected if covariance == "diagonal" else torch.diag_embed(expected)
    torch.testing.assert_close(spread(policy), expected)


@pytest.mark.parametrize("covariance", GAUSSIANS)
def test_the_standard_deviation_never_falls_below_its_minimum(covariance):
    family = PolicyFamily(actions=continuous(2), covariance=covariance, initial_std=0.5, minimum_std=0.05)
    for magnitude in (-1e3, -10.0, 10.0):
        policy = family.distribution(torch.full((4, family.num_parameters), magnitude))
        scale = spread(policy)
        diagonal = scale if covariance == "diagonal" else scale.diagonal(dim1=-2, dim2=-1)
        assert torch.isfinite(scale).all()
        assert (diagonal >= 0.05 * (1 - 1e-6)).all()


def test_the_full_scale_is_lower_triangular():
    family = PolicyFamily(actions=continuous(4), covariance="full")
    policy = family.distribution(torch.randn(3, family.num_parameters, generator=generator(52)))
    assert not policy.scale_tril.triu(1).any()
    assert (policy.scale_tril.tril(-1) != 0).sum() == 3 * 6


@pytest.mark.parametrize("covariance", GAUSSIANS)
def test_every_parameter_receives_gradient(covariance):
    family = PolicyFamily(actions=continuous(3), covariance=covariance, initial_std=0.7)
    parameters = torch.zeros(family.num_parameters, requires_grad=True)
    family.distribution(parameters).log_prob(torch.tensor([0.3, -1.1, 2.0])).backward()
    assert (parameters.grad.abs() > 1e-4).all()


@pytest.mark.parametrize("covariance", GAUSSIANS)
def test_recorded_parameters_rebuild_the_same_distribution(covariance):
    """Actors store flat parameters; the learner must get the very policy that acted, at any leading shape."""
    family = PolicyFamily(actions=continuous(3), covariance=covariance, initial_std=0.3)
    parameters = torch.randn(5, 2, family.num_parameters, generator=generator(53))
    whole = family.distribution(parameters)
    for t in range(5):
        single = family.distribution(parameters[t])
        assert torch.equal(single.mean, whole.mean[t])
        torch.testing.assert_close(spread(single), spread(whole)[t], rtol=1e-6, atol=0)  # Vectorised tails differ.


def test_a_bounded_mean_stays_in_the_unit_box():
    family = PolicyFamily(actions=ContinuousActions(low=-np.ones(2), high=np.ones(2)), bounded_mean=True)
    mean = family.distribution(torch.tensor([50.0, -0.3, 0.0, 0.0])).mode()
    torch.testing.assert_close(mean, torch.tensor([1.0, -0.3]).tanh().index_fill(0, torch.tensor([0]), 1.0))
