"""IMPALA's and PPO's policy losses against slow transcriptions of their formulas: values, and who receives gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vmpo.losses.impala import impala_loss
from vmpo.losses.ppo import ppo_loss, standardised

LENGTH, BATCH = 6, 4


def inputs(seed: int, masked: bool = True) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)

    def normal() -> torch.Tensor:
        return torch.randn(LENGTH, BATCH, generator=g)

    log_probs = -1.5 + normal()
    return {
        "log_probs": log_probs.requires_grad_(),
        "behaviour_log_probs": (log_probs + 0.5 * normal()).detach().requires_grad_(),
        "advantages": (3.0 * normal() + 1.0).requires_grad_(),
        "entropies": normal().abs().requires_grad_(),
        "valid": torch.rand(LENGTH, BATCH, generator=g) > 0.3 if masked else torch.ones(LENGTH, BATCH).bool(),
    }


def rows(x: dict[str, torch.Tensor]) -> list[tuple[float, float, float, float]]:
    """log pi, log mu, A and H of the valid samples, one after another."""
    arrays = [x[k].detach().double().numpy() for k in ("log_probs", "behaviour_log_probs", "advantages", "entropies")]
    return [tuple(a[i] for a in arrays) for i in np.ndindex(LENGTH, BATCH) if x["valid"][i]]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_impala_is_its_formula(seed, masked):
    x = inputs(seed, masked)
    total = 0.0
    for log_pi, log_mu, advantage, entropy in rows(x):
        total -= min(1.0, np.exp(log_pi - log_mu)) * advantage * log_pi + 0.03 * entropy
    loss, _ = impala_loss(**x, entropy_cost=0.03)
    assert loss.item() == pytest.approx(total / len(rows(x)), rel=1e-5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_ppo_is_its_formula(seed, masked):
    x = inputs(seed, masked)
    advantages = np.array([advantage for _, _, advantage, _ in rows(x)])
    total = 0.0
    for log_pi, log_mu, advantage, entropy in rows(x):
        ratio, advantage = np.exp(log_pi - log_mu), (advantage - advantages.mean()) / advantages.std()
        total -= min(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage) + 0.03 * entropy
    loss, metrics = ppo_loss(**x, clip_ratio=0.2, entropy_cost=0.03)
    assert loss.item() == pytest.approx(total / len(rows(x)), rel=1e-4)
    outside = [abs(np.exp(log_pi - log_mu) - 1) > 0.2 for log_pi, log_mu, _, _ in rows(x)]
    assert metrics["clipped"].item() == pytest.approx(np.mean(outside))


@pytest.mark.parametrize("loss", ["impala", "ppo"])
def test_only_the_policy_and_its_entropy_receive_gradient(loss):
    x = inputs(5)
    total, _ = impala_loss(**x, entropy_cost=0.1) if loss == "impala" else ppo_loss(**x, clip_ratio=9, entropy_cost=0.1)
    total.backward()
    assert x["advantages"].grad is None
    assert x["behaviour_log_probs"].grad is None
    assert (x["log_probs"].grad[x["valid"]] != 0).all()
    assert (x["log_probs"].grad[~x["valid"]] == 0).all()
    torch.testing.assert_close(x["entropies"].grad, -0.1 * x["valid"] / x["valid"].sum())


def test_impalas_gradient_is_the_weighted_score():
    """The ratio is a weight: it is not differentiated."""
    x = inputs(6, masked=False)
    impala_loss(**x, entropy_cost=0.0)[0].backward()
    rho = (x["log_probs"] - x["behaviour_log_probs"]).exp().clamp(max=1.0)
    torch.testing.assert_close(x["log_probs"].grad, (-rho * x["advantages"] / rho.numel()).detach())


def test_ppo_stops_where_the_ratio_has_moved_far_enough_and_not_where_it_moved_back():
    """Good samples that became likelier and bad ones that became rarer are done with; the others are not."""
    x = inputs(7, masked=False)
    ppo_loss(**x, clip_ratio=0.2, entropy_cost=0.0)[0].backward()
    ratio = (x["log_probs"] - x["behaviour_log_probs"]).exp()
    good = standardised(x["advantages"].detach(), x["valid"]) > 0
    done = (good & (ratio > 1.2)) | (~good & (ratio < 0.8))
    assert done.any()
    assert torch.equal(x["log_probs"].grad == 0, done)


@pytest.mark.parametrize("loss", ["impala", "ppo"])
@pytest.mark.parametrize("garbage", [float("inf"), float("nan"), -1e30])
def test_masked_entries_may_hold_anything(loss, garbage):
    def gradient(fill: float) -> torch.Tensor:
        x = inputs(8)
        for name in ("behaviour_log_probs", "advantages"):
            x[name] = torch.where(x["valid"], x[name], fill).detach()
        options = {} if loss == "impala" else {"clip_ratio": 0.2}
        (impala_loss if loss == "impala" else ppo_loss)(**x, **options, entropy_cost=0.1)[0].backward()
        return x["log_probs"].grad

    assert torch.equal(gradient(garbage), gradient(0.0))
