"""Policy distributions: log probabilities, entropies and the decoupled KL of Appendix C."""

from __future__ import annotations

import math

import numpy as np
import oracles
import pytest
import torch
from samples import sample

from vmpo.distributions import Categorical, DiagonalGaussian, FullGaussian

SIZES = [(2,), (7,), (3, 4), (2, 2, 5)]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_categorical(seed: int, sizes: tuple[int, ...], shape: tuple[int, ...] = (3, 4)) -> Categorical:
    return Categorical(logits=2.0 * torch.randn(*shape, sum(sizes), generator=generator(seed)), sizes=sizes)


def random_actions(seed: int, sizes: tuple[int, ...], shape: tuple[int, ...] = (3, 4)) -> torch.Tensor:
    g = generator(seed)
    return torch.stack([torch.randint(size, shape, generator=g) for size in sizes], dim=-1)


def random_diagonal(seed: int, width: int = 3, shape: tuple[int, ...] = (3, 4)) -> DiagonalGaussian:
    g = generator(seed)
    mean = torch.randn(*shape, width, generator=g)
    return DiagonalGaussian(mean=mean, std=0.3 + 1.5 * torch.rand(*shape, width, generator=g))


def random_full(seed: int, width: int = 3, shape: tuple[int, ...] = (3, 4)) -> FullGaussian:
    g = generator(seed)
    lower = torch.tril(torch.randn(*shape, width, width, generator=g), diagonal=-1)
    diagonal = 0.4 + torch.rand(*shape, width, generator=g)
    return FullGaussian(mean=torch.randn(*shape, width, generator=g), scale_tril=lower + torch.diag_embed(diagonal))


def covariances(distribution: DiagonalGaussian | FullGaussian) -> np.ndarray:
    if isinstance(distribution, DiagonalGaussian):
        std = oracles.as_array(distribution.std)
        return np.apply_along_axis(np.diag, -1, std**2)
    scale = oracles.as_array(distribution.scale_tril)
    return scale @ np.swapaxes(scale, -1, -2)


def as_torch(distribution: DiagonalGaussian | FullGaussian) -> torch.distributions.Distribution:
    if isinstance(distribution, DiagonalGaussian):
        normal = torch.distributions.Normal(distribution.mean, distribution.std)
        return torch.distributions.Independent(normal, 1)
    return torch.distributions.MultivariateNormal(distribution.mean, scale_tril=distribution.scale_tril)


def with_mean(distribution, mean):
    if isinstance(distribution, DiagonalGaussian):
        return DiagonalGaussian(mean=mean, std=distribution.std)
    return FullGaussian(mean=mean, scale_tril=distribution.scale_tril)


def spread(distribution: DiagonalGaussian | FullGaussian) -> torch.Tensor:
    return distribution.std if isinstance(distribution, DiagonalGaussian) else distribution.scale_tril


GAUSSIANS = {"diagonal": random_diagonal, "full": random_full}


def repeated(distribution, times: int):
    """The same distribution ``times`` over, along a new leading axis."""
    expand = lambda x: x.expand(times, *x.shape)  # noqa: E731
    if isinstance(distribution, Categorical):
        return Categorical(logits=expand(distribution.logits), sizes=distribution.sizes)
    if isinstance(distribution, DiagonalGaussian):
        return DiagonalGaussian(mean=expand(distribution.mean), std=expand(distribution.std))
    return FullGaussian(mean=expand(distribution.mean), scale_tril=expand(distribution.scale_tril))


def elementwise(function, *batches) -> np.ndarray:
    """Apply an oracle to every [t, b] entry."""
    shape = batches[0].shape[:2]
    return np.array([[function(*(x[t, b] for x in batches)) for b in range(shape[1])] for t in range(shape[0])])


def assert_close(result: torch.Tensor, expected, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    np.testing.assert_allclose(oracles.as_array(result), expected, rtol=rtol, atol=atol)


# Oracle: categorical.


@pytest.mark.parametrize("sizes", SIZES)
def test_categorical_log_prob_is_summed_over_the_choices(sizes):
    policy, actions = random_categorical(0, sizes), random_actions(1, sizes)
    expected = elementwise(
        lambda logits, a: oracles.categorical_log_prob(logits, sizes, a),
        oracles.as_array(policy.logits),
        oracles.as_array(actions),
    )
    assert policy.log_prob(actions).shape == (3, 4)
    assert_close(policy.log_prob(actions), expected)


@pytest.mark.parametrize("sizes", SIZES)
def test_categorical_kl_is_the_sum_over_independent_choices(sizes):
    old, new = random_categorical(2, sizes), random_categorical(3, sizes)
    expected = elementwise(
        lambda p, q: oracles.categorical_kl(p, q, sizes), oracles.as_array(old.logits), oracles.as_array(new.logits)
    )
    parts = old.kl_parts(new)
    assert set(parts) == {"policy"}
    assert_close(parts["policy"], expected)


@pytest.mark.parametrize("sizes", SIZES)
def test_categorical_entropy_is_summed_over_the_choices(sizes):
    policy = random_categorical(4, sizes)
    expected = elementwise(lambda x: oracles.categorical_entropy(x, sizes), oracles.as_array(policy.logits))
    assert_close(policy.entropy(), expected)


def test_categorical_agrees_with_torch():
    old, new, actions = random_categorical(5, (6,)), random_categorical(6, (6,)), random_actions(7, (6,))
    p, q = (torch.distributions.Categorical(logits=x.logits) for x in (old, new))
    torch.testing.assert_close(old.log_prob(actions), p.log_prob(actions[..., 0]))
    torch.testing.assert_close(old.entropy(), p.entropy())
    torch.testing.assert_close(old.kl_parts(new)["policy"], torch.distributions.kl_divergence(p, q))


# Oracle: Gaussians.


@pytest.mark.parametrize("kind", GAUSSIANS)
@pytest.mark.parametrize("width", [1, 4])
def test_gaussian_log_prob_is_the_log_density(kind, width):
    policy = GAUSSIANS[kind](0, width)
    actions = torch.randn(3, 4, width, generator=generator(1))
    expected = elementwise(
        oracles.gaussian_log_prob, oracles.as_array(policy.mean), covariances(policy), oracles.as_array(actions)
    )
    assert policy.log_prob(actions).shape == (3, 4)
    assert_close(policy.log_prob(actions), expected)
    torch.testing.assert_close(policy.log_prob(actions), as_torch(policy).log_prob(actions), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", GAUSSIANS)
@pytest.mark.parametrize("width", [1, 4])
def test_gaussian_kl_parts_are_those_of_appendix_c(kind, width):
    old, new = GAUSSIANS[kind](2, width), GAUSSIANS[kind](3, width)
    parts = old.kl_parts(new)
    assert set(parts) == {"mean", "covariance"}
    mean_part = elementwise(
        oracles.gaussian_kl_mean, oracles.as_array(old.mean), covariances(old), oracles.as_array(new.mean)
    )
    covariance_part = elementwise(oracles.gaussian_kl_covariance, covariances(old), covariances(new))
    assert_close(parts["mean"], mean_part)
    assert_close(parts["covariance"], covariance_part, rtol=1e-3)


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_gaussian_entropy_is_half_the_log_determinant(kind):
    policy = GAUSSIANS[kind](4)
    assert_close(policy.entropy(), elementwise(oracles.gaussian_entropy, covariances(policy)))


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_parts_sum_to_the_full_kl_where_covariances_agree(kind):
    old = GAUSSIANS[kind](5)
    new = with_mean(old, GAUSSIANS[kind](6).mean)
    parts = old.kl_parts(new)
    expected = torch.distributions.kl_divergence(as_torch(old), as_torch(new))
    torch.testing.assert_close(parts["mean"] + parts["covariance"], expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(parts["covariance"], torch.zeros_like(expected), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_the_covariance_part_is_the_full_kl_where_means_agree(kind):
    old = GAUSSIANS[kind](7)
    new = with_mean(GAUSSIANS[kind](8), old.mean)
    parts = old.kl_parts(new)
    expected = torch.distributions.kl_divergence(as_torch(old), as_torch(new))
    torch.testing.assert_close(parts["covariance"], expected, rtol=1e-3, atol=1e-4)
    assert torch.equal(parts["mean"], torch.zeros_like(expected))


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_the_mean_part_uses_the_old_covariance(kind):
    """As Appendix C has it; the exact KL would use the new one."""
    old, new = GAUSSIANS[kind](9), GAUSSIANS[kind](10)
    other_spread = with_mean(GAUSSIANS[kind](11), new.mean)
    torch.testing.assert_close(old.kl_parts(new)["mean"], old.kl_parts(other_spread)["mean"])
    assert not torch.allclose(old.kl_parts(new)["mean"], new.kl_parts(old)["mean"])


def test_the_covariance_enters_the_kl_squared():
    """Two numbers worked by hand: std 2 -> 1 and a mean two old standard deviations away."""
    old = DiagonalGaussian(mean=torch.zeros(1), std=torch.tensor([2.0]))
    new = DiagonalGaussian(mean=torch.tensor([4.0]), std=torch.ones(1))
    parts = old.kl_parts(new)
    assert parts["mean"].item() == pytest.approx(0.5 * 16.0 / 4.0)
    assert parts["covariance"].item() == pytest.approx(0.5 * (4.0 - 1.0 - math.log(4.0)))


@pytest.mark.parametrize("width", [1, 4])
def test_a_diagonal_full_gaussian_is_the_diagonal_one(width):
    old, new = random_diagonal(12, width), random_diagonal(13, width)
    old_full, new_full = (FullGaussian(mean=x.mean, scale_tril=torch.diag_embed(x.std)) for x in (old, new))
    actions = torch.randn(3, 4, width, generator=generator(14))
    torch.testing.assert_close(old.log_prob(actions), old_full.log_prob(actions), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(old.entropy(), old_full.entropy(), rtol=1e-4, atol=1e-4)
    for name, part in old.kl_parts(new).items():
        torch.testing.assert_close(part, old_full.kl_parts(new_full)[name], rtol=1e-4, atol=1e-4)


# Invariants of the KL, for every family.


def pair(kind: str) -> tuple:
    if kind == "categorical":
        return random_categorical(20, (3, 4)), random_categorical(21, (3, 4))
    return GAUSSIANS[kind](20), GAUSSIANS[kind](21)


KINDS = ["categorical", *GAUSSIANS]


@pytest.mark.parametrize("kind", KINDS)
def test_kl_of_a_policy_with_itself_is_zero_and_with_another_positive(kind):
    old, new = pair(kind)
    for part in old.kl_parts(old).values():
        torch.testing.assert_close(part, torch.zeros_like(part), rtol=0, atol=1e-5)
    for part in old.kl_parts(new).values():
        assert (part > 1e-3).all()


@pytest.mark.parametrize("kind", KINDS)
def test_kl_is_taken_from_self_to_other(kind):
    """The direction of Eq. 5, by Monte Carlo: the mean of log self - log other over samples of self."""
    old, new = pair(kind)
    if kind != "categorical":
        new = with_mean(new, old.mean)
    forward = sum(old.kl_parts(new).values())
    backward = sum(new.kl_parts(old).values())
    n = 20_000
    drawn = sample(repeated(old, n), generator(22))
    differences = repeated(old, n).log_prob(drawn) - repeated(new, n).log_prob(drawn)
    estimate, error = differences.mean(0), differences.std(0) / math.sqrt(n)
    assert ((estimate - forward).abs() < 5 * error + 1e-4).all()
    assert ((estimate - backward).abs() > 5 * error).any()


@pytest.mark.parametrize("kind", KINDS)
def test_importance_of_samples_averages_to_one(kind):
    """log_prob is normalised: E_self[other / self] = 1."""
    old, new = pair(kind)
    if kind == "diagonal":
        old = DiagonalGaussian(mean=old.mean, std=new.std + 1.0)
    if kind == "full":
        old = FullGaussian(mean=new.mean, scale_tril=2.0 * new.scale_tril)
    n = 5_000
    drawn = sample(repeated(old, n), generator(23))
    ratios = (repeated(new, n).log_prob(drawn) - repeated(old, n).log_prob(drawn)).exp()
    error = ratios.std(0) / math.sqrt(n)
    assert ((ratios.mean(0) - 1.0).abs() < 5 * error).all()


# Gradients.


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_each_kl_part_trains_its_own_parameters(kind):
    old, new = GAUSSIANS[kind](30), GAUSSIANS[kind](31)
    mean, scale = new.mean.clone().requires_grad_(), spread(new).clone().requires_grad_()
    online = DiagonalGaussian(mean=mean, std=scale) if kind == "diagonal" else FullGaussian(mean=mean, scale_tril=scale)
    parts = old.kl_parts(online)
    for name, own, foreign in [("mean", mean, scale), ("covariance", scale, mean)]:
        gradients = torch.autograd.grad(parts[name].sum(), [own, foreign], retain_graph=True, allow_unused=True)
        assert gradients[0].abs().amax() > 0.1
        assert gradients[1] is None or not gradients[1].any()


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_gaussian_kl_gradients_agree_with_torch(kind):
    old, new = GAUSSIANS[kind](32), GAUSSIANS[kind](33)

    def gradient(shared: str, divergence) -> torch.Tensor:
        """Gradient by the mean (covariance shared) or by the spread (mean shared): there the decoupled KL is exact."""
        leaf = (spread(new) if shared == "mean" else new.mean).clone().requires_grad_()
        mean, scale = (old.mean, leaf) if shared == "mean" else (leaf, spread(old))
        other = (
            DiagonalGaussian(mean=mean, std=scale) if kind == "diagonal" else FullGaussian(mean=mean, scale_tril=scale)
        )
        (result,) = torch.autograd.grad(divergence(other).sum(), leaf)
        return result.tril() if kind == "full" and shared == "mean" else result

    for shared in ("mean", "covariance"):
        ours = gradient(shared, lambda other: sum(old.kl_parts(other).values()))
        theirs = gradient(shared, lambda other: torch.distributions.kl_divergence(as_torch(old), as_torch(other)))
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_kl_gradients_agree_with_finite_differences(kind):
    g = generator(34)
    double = {"dtype": torch.float64, "generator": g}
    if kind == "categorical":
        old = Categorical(logits=torch.randn(2, 7, **double), sizes=(3, 4))
        leaves = (torch.randn(2, 7, **double),)
        rebuild = lambda logits: Categorical(logits=logits, sizes=(3, 4))  # noqa: E731
    elif kind == "diagonal":
        old = DiagonalGaussian(mean=torch.randn(2, 3, **double), std=0.5 + torch.rand(2, 3, **double))
        leaves = (torch.randn(2, 3, **double), 0.5 + torch.rand(2, 3, **double))
        rebuild = lambda mean, std: DiagonalGaussian(mean=mean, std=std)  # noqa: E731
    else:
        eye = torch.eye(3, dtype=torch.float64)
        triangle = lambda: eye + 0.5 * torch.rand(2, 3, 3, **double).tril()  # noqa: E731
        old = FullGaussian(mean=torch.randn(2, 3, **double), scale_tril=triangle())
        leaves = (torch.randn(2, 3, **double), triangle())
        rebuild = lambda mean, raw: FullGaussian(mean=mean, scale_tril=raw.tril())  # noqa: E731
    inputs = tuple(x.requires_grad_() for x in leaves)
    assert torch.autograd.gradcheck(lambda *xs: tuple(old.kl_parts(rebuild(*xs)).values()), inputs)


@pytest.mark.parametrize("kind", KINDS)
def test_kl_has_no_slope_where_the_policies_agree(kind):
    old, _ = pair(kind)
    if kind == "categorical":
        leaves = [old.logits.clone().requires_grad_()]
        online = Categorical(logits=leaves[0], sizes=old.sizes)
    else:
        leaves = [old.mean.clone().requires_grad_(), spread(old).clone().requires_grad_()]
        online = (
            DiagonalGaussian(mean=leaves[0], std=leaves[1])
            if kind == "diagonal"
            else FullGaussian(mean=leaves[0], scale_tril=leaves[1])
        )
    sum(part.sum() for part in old.kl_parts(online).values()).backward()
    for leaf in leaves:
        gradient = leaf.grad.tril() if leaf.dim() == 4 else leaf.grad
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-4)


def test_extreme_logits_stay_finite():
    logits = torch.tensor([[1e4, 0.0, -1e4], [0.0, 0.0, 1e3]])
    old = Categorical(logits=logits, sizes=(3,))
    leaf = logits.flip(0).clone().requires_grad_()
    new = Categorical(logits=leaf, sizes=(3,))
    total = old.kl_parts(new)["policy"] + new.log_prob(torch.tensor([[0], [2]])) + new.entropy()
    total.sum().backward()
    assert torch.isfinite(total).all()
    assert torch.isfinite(leaf.grad).all()


# Sampling and mode.


@pytest.mark.parametrize("kind", KINDS)
def test_samples_repeat_with_the_generators_seed_and_differ_along_it(kind):
    policy, _ = pair(kind)
    g, twin = generator(40), generator(40)
    first, second = sample(policy, g), sample(policy, g)
    assert torch.equal(first, sample(policy, twin))
    assert not torch.equal(first, second)


def test_categorical_samples_follow_the_probabilities():
    policy = Categorical(logits=torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5]).expand(40_000, 5), sizes=(2, 3))
    drawn = sample(policy, generator(41))
    assert drawn.dtype == torch.int64
    assert drawn.shape == (40_000, 2)
    first = torch.softmax(torch.tensor([0.0, 1.0]), 0)
    second = torch.softmax(torch.tensor([-1.0, 2.0, 0.5]), 0)
    joint = torch.zeros(2, 3)
    joint.index_put_((drawn[:, 0], drawn[:, 1]), torch.ones(len(drawn)) / len(drawn), accumulate=True)
    torch.testing.assert_close(joint, torch.outer(first, second), rtol=0, atol=0.012)


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_gaussian_samples_have_the_mean_and_covariance(kind):
    base = GAUSSIANS[kind](42, shape=())
    n = 40_000
    scale = spread(base)
    mean = base.mean.expand(n, 3)
    policy = (
        DiagonalGaussian(mean=mean, std=scale.expand(n, 3))
        if kind == "diagonal"
        else FullGaussian(mean=mean, scale_tril=scale.expand(n, 3, 3))
    )
    drawn = sample(policy, generator(43))
    assert drawn.shape == (n, 3)
    assert_close(drawn.mean(0), oracles.as_array(base.mean), rtol=0, atol=0.05)
    assert_close(torch.cov(drawn.T), covariances(base), rtol=0.05, atol=0.05)


def test_categorical_mode_is_the_best_of_each_choice():
    policy = Categorical(logits=torch.tensor([[0.0, 1.0, -1.0, 2.0, 0.5], [3.0, 1.0, 5.0, 2.0, 0.5]]), sizes=(2, 3))
    assert policy.mode().tolist() == [[1, 1], [0, 0]]
    assert policy.mode().dtype == torch.int64


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_gaussian_mode_is_the_mean(kind):
    policy = GAUSSIANS[kind](44)
    assert torch.equal(policy.mode(), policy.mean)
