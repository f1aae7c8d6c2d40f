"""Inputs of the V-MPO loss, what it makes of them, and what the oracle does."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import oracles
import torch

from vmpo.losses.vmpo import vmpo_loss


@dataclass(kw_only=True)
class Inputs:
    """Leaves of one loss computation; every tensor that could receive gradient asks for it."""

    log_probs: torch.Tensor
    advantages: torch.Tensor
    kl_parts: dict[str, torch.Tensor]
    valid: torch.Tensor | None = None
    importance_weights: torch.Tensor | None = None
    temperature: float = 0.7
    alphas: dict[str, float] = field(default_factory=lambda: {"mean": 1.3, "covariance": 0.4})
    epsilon_temperature: float = 0.1
    epsilon_alphas: dict[str, float] = field(default_factory=lambda: {"mean": 0.05, "covariance": 1e-4})
    top_fraction: float = 0.5


@dataclass(kw_only=True)
class Outcome:
    total: torch.Tensor
    metrics: dict[str, torch.Tensor]
    log_probs: torch.Tensor
    advantages: torch.Tensor | None
    kl_parts: dict[str, torch.Tensor]
    temperature: torch.Tensor
    alphas: dict[str, torch.Tensor]
    importance_weights: torch.Tensor | None


def random_inputs(seed: int, length: int = 7, batch: int = 5, masked: bool = True, weighted: bool = False) -> Inputs:
    g = torch.Generator().manual_seed(seed)

    def normal() -> torch.Tensor:
        return torch.randn(length, batch, generator=g)

    return Inputs(
        log_probs=-3.0 + normal(),
        advantages=normal(),
        kl_parts={"mean": normal() ** 2, "covariance": 0.01 * normal() ** 2},
        valid=torch.rand(length, batch, generator=g) > 0.3 if masked else None,
        importance_weights=torch.rand(length, batch, generator=g) if weighted else None,
    )


def gradient(leaf: torch.Tensor | None) -> torch.Tensor | None:
    if leaf is None:
        return None
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def run(x: Inputs) -> Outcome:
    """Loss, metrics and the gradient of the total by each leaf (zero where none arrives)."""
    leaf = lambda value: torch.as_tensor(value).detach().clone().requires_grad_()  # noqa: E731
    log_probs, advantages, temperature = leaf(x.log_probs), leaf(x.advantages), leaf(x.temperature)
    kl_parts = {name: leaf(kl) for name, kl in x.kl_parts.items()}
    alphas = {name: leaf(alpha) for name, alpha in x.alphas.items()}
    weights = None if x.importance_weights is None else leaf(x.importance_weights)
    total, metrics = vmpo_loss(
        log_probs=log_probs,
        advantages=advantages,
        kl_parts=kl_parts,
        temperature=temperature,
        alphas=alphas,
        epsilon_temperature=x.epsilon_temperature,
        epsilon_alphas=x.epsilon_alphas,
        valid=x.valid,
        importance_weights=weights,
        top_fraction=x.top_fraction,
    )
    assert total.shape == ()
    total.backward()
    return Outcome(
        total=total.detach(),
        metrics=metrics,
        log_probs=gradient(log_probs),
        advantages=gradient(advantages),
        kl_parts={name: gradient(kl) for name, kl in kl_parts.items()},
        temperature=gradient(temperature),
        alphas={name: gradient(alpha) for name, alpha in alphas.items()},
        importance_weights=gradient(weights),
    )


def expected(x: Inputs) -> oracles.Loss:
    optional = lambda t: None if t is None else oracles.as_array(t)  # noqa: E731
    single = lambda value: float(torch.tensor(value))  # noqa: E731  # As the float32 leaf holds it.
    return oracles.vmpo_loss(
        oracles.as_array(x.log_probs),
        oracles.as_array(x.advantages),
        {name: oracles.as_array(kl) for name, kl in x.kl_parts.items()},
        single(x.temperature),
        {name: single(alpha) for name, alpha in x.alphas.items()},
        x.epsilon_temperature,
        x.epsilon_alphas,
        valid=optional(x.valid),
        weights=optional(x.importance_weights),
        top_fraction=x.top_fraction,
    )


def assert_agrees(x: Inputs, rtol: float = 2e-5, atol: float = 2e-5) -> None:
    """Values and all gradients against the oracle."""
    ours, paper = run(x), expected(x)
    close = lambda a, b: np.testing.assert_allclose(oracles.as_array(a), b, rtol=rtol, atol=atol)  # noqa: E731
    close(ours.total, paper.total)
    close(torch.as_tensor(ours.metrics["loss_policy"]), paper.policy)
    close(torch.as_tensor(ours.metrics["loss_temperature"]), paper.temperature)
    close(torch.as_tensor(ours.metrics["loss_alpha"]), paper.alpha)
    close(ours.log_probs, paper.log_prob_gradient)
    close(ours.temperature, paper.temperature_gradient)
    for name in x.kl_parts:
        close(ours.kl_parts[name], paper.kl_gradients[name])
        close(ours.alphas[name], paper.alpha_gradients[name])
    assert not ours.advantages.any()
    assert ours.importance_weights is None or not ours.importance_weights.any()


# Oracle.
