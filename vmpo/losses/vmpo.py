"""The V-MPO loss (Song et al. 2019, Eqs. 2 to 5), pure and line by line.

``vmpo_loss`` is the whole of it for one minibatch: the E-step, which weighs samples, followed by the M-step, which fits
the policy to the weights under KL constraints. They are apart so that the E-step may be taken over the gathered
advantages of all replicas (``top_scope="global"``) while each replica fits its own samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Scalar = Float[Tensor, ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class EStep:
    weights: Float[Tensor, "T B"]
    """psi: sums to one over the selected samples, zero elsewhere; carries no gradient."""
    temperature_loss: Scalar
    metrics: dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class MStep:
    policy_loss: Scalar
    alpha_loss: Scalar
    metrics: dict[str, Tensor]


def vmpo_loss(
    *,
    log_probs: Float[Tensor, "T B"],
    advantages: Float[Tensor, "T B"],
    kl_parts: dict[str, Float[Tensor, "T B"]],
    temperature: Scalar,
    alphas: dict[str, Scalar],
    epsilon_temperature: float,
    epsilon_alphas: dict[str, float],
    valid: Bool[Tensor, "T B"] | None = None,
    importance_weights: Float[Tensor, "T B"] | None = None,
    top_fraction: float = 0.5,
) -> tuple[Scalar, dict[str, Tensor]]:
    """L_pi + L_eta + sum of L_alpha (Eq. 2).

    The policy learns from L_pi and L_alpha, the temperature from L_eta, each alpha from its own L_alpha.
    """
    valid = torch.ones_like(advantages, dtype=torch.bool) if valid is None else valid
    improvement = e_step(
        advantages=advantages,
        temperature=temperature,
        epsilon=epsilon_temperature,
        selected=select_top(advantages, valid, top_fraction),
        importance_weights=importance_weights,
    )
    fit = m_step(
        log_probs=log_probs,
        weights=improvement.weights,
        kl_parts=kl_parts,
        alphas=alphas,
        epsilons=epsilon_alphas,
        valid=valid,
    )
    total = fit.policy_loss + improvement.temperature_loss + fit.alpha_loss
    return total, {**improvement.metrics, **fit.metrics}


def select_top(
    advantages: Float[Tensor, "T B"], valid: Bool[Tensor, "T B"], fraction: float = 0.5
) -> Bool[Tensor, "T B"]:
    """D~: exactly floor(fraction n) of the n valid samples, those of the highest advantage (Sec. 4.2.1).

    A stable sort breaks ties by position, so equal advantages never select everything or nothing.
    """
    # Mask before sorting: reset steps would otherwise take up places.
    masked = advantages.detach().masked_fill(~valid, -torch.inf).flatten()
    order = masked.sort(descending=True, stable=True).indices
    count = (fraction * valid.sum()).floor().long()
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(order), device=order.device)
    return (ranks < count).view_as(valid) & valid


def e_step(
    *,
    advantages: Float[Tensor, "T B"],
    temperature: Scalar,
    epsilon: float,
    selected: Bool[Tensor, "T B"],
    importance_weights: Float[Tensor, "T B"] | None = None,
) -> EStep:
    """Weights psi = softmax of A / eta over D~ (Eq. 3), and L_eta = eta eps + eta log mean exp(A / eta) (Eq. 4).

    Importance weights rho multiply exp(A / eta) in both (App. E). Only the temperature receives gradient, from L_eta.
    """
    samples = _centre(advantages, selected, importance_weights)
    logits = torch.where(samples.support, samples.advantages / temperature, 0.0) + samples.log_rho
    log_normaliser = logits.flatten().logsumexp(dim=0)
    loss = samples.highest + temperature * (epsilon + log_normaliser - samples.log_count)
    # Without a sample there is nothing to weigh: no loss, and no gradient.
    loss = torch.where(samples.any, loss, 0.0 * temperature)
    weights = torch.where(samples.support, (logits - log_normaliser).exp(), 0.0).detach()

    # KL of psi against the samples' own distribution, which the temperature is to hold at epsilon.
    log_weight_ratios = logits - samples.log_rho.nan_to_num(neginf=0.0) - log_normaliser + samples.log_count
    kl = torch.where(samples.support, weights * log_weight_ratios, 0.0).sum().detach()
    metrics = {
        "loss_temperature": loss.detach(),
        "e_step_kl": kl,
        "e_step_kl_over_bound": kl / epsilon,
        "effective_sample_size": torch.where(samples.any, 1.0 / weights.square().sum(), 0.0),
        "temperature": temperature.detach(),
    }
    return EStep(weights=weights, temperature_loss=loss, metrics=metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Centred:
    """The selected samples, shifted by their highest advantage: A / eta then keeps its digits at any temperature."""

    advantages: Float[Tensor, "T B"]
    """A - max A over the support, 0 elsewhere."""
    log_rho: Float[Tensor, "T B"]
    """-inf outside the support, unless that is empty."""
    highest: Scalar
    log_count: Scalar
    """log |D~|."""
    support: Bool[Tensor, "T B"]
    """Selected, and of an importance weight above zero."""
    any: Bool[Tensor, ""]


def _centre(advantages: Tensor, selected: Tensor, importance_weights: Tensor | None) -> _Centred:
    advantages = advantages.detach()
    rho = torch.ones_like(advantages) if importance_weights is None else importance_weights.detach()
    support = selected & (rho > 0)
    highest = torch.where(support, advantages, -torch.inf).amax().nan_to_num(neginf=0.0)
    return _Centred(
        advantages=torch.where(support, advantages - highest, 0.0),
        log_rho=torch.where(support, rho.log(), torch.where(support.any(), -torch.inf, 0.0)),
        highest=highest,
        log_count=selected.sum().clamp(min=1).to(advantages.dtype).log(),
        support=support,
        any=support.any(),
    )


def solve_temperature(
    advantages: Float[Tensor, "T B"],
    selected: Bool[Tensor, "T B"],
    epsilon: float,
    importance_weights: Float[Tensor, "T B"] | None = None,
    iterations: int = 8,
) -> Scalar:
    """The eta that minimises L_eta (Eq. 4) on this batch; not in the paper, which takes one gradient step.

    L_eta is convex and its slope is eps - KL(psi_eta), so KL is to meet eps. Newton's method on log KL against log eta,
    which is close to a straight line (KL ~ Var(A) / 2 eta^2), within a bracket that is halved where a step would leave
    it. Where no eta reaches the bound (all advantages equal) the smallest is returned, and psi is uniform.
    """
    samples = _centre(
        advantages.double(), selected, None if importance_weights is None else importance_weights.double()
    )
    centred, log_rho = samples.advantages.flatten(), samples.log_rho.flatten()
    powers = torch.stack([torch.ones_like(centred), centred, centred.square()])
    spread = (-centred).amax().clamp(min=1e-6)
    log_eta = spread.log()
    low, high = log_eta - 20.0, log_eta + 20.0
    for _ in range(iterations):
        scale = (-log_eta).exp()
        # Sums of rho exp(A / eta), and of that times A and A^2; the highest A is 0, so nothing overflows.
        total, first, second = (powers @ torch.addcmul(log_rho, centred, scale).exp()).unbind()
        mean = scale * first / total
        kl = mean - total.log() + samples.log_count
        above = kl > epsilon
        low, high = torch.where(above, log_eta, low), torch.where(above, high, log_eta)
        # d KL / d log eta = -Var(A / eta) under psi.
        slope = (scale.square() * second / total - mean.square()) / kl
        newton = log_eta + (kl.log() - math.log(epsilon)) / slope
        # At the root, rounding may put the step a hair outside: bisecting then would throw it far away again.
        inside = (newton > low - 1e-9) & (newton < high + 1e-9)
        log_eta = torch.where(inside, newton, 0.5 * (low + high))
    return log_eta.exp().to(advantages.dtype)


def m_step(
    *,
    log_probs: Float[Tensor, "T B"],
    weights: Float[Tensor, "T B"],
    kl_parts: dict[str, Float[Tensor, "T B"]],
    alphas: dict[str, Scalar],
    epsilons: dict[str, float],
    valid: Bool[Tensor, "T B"],
    expected_log_probs: Float[Tensor, "T B"] | None = None,
) -> MStep:
    """L_pi = -sum psi log pi (Eq. 3), a sum; L_alpha = alpha (eps - sg[KL]) + sg[alpha] KL for each KL part (Eq. 5).

    KL is the mean over all valid samples, not over D~. Gaussians have two parts and two alphas (App. C).

    ``expected_log_probs``, E log pi(a) under the policy that acted, make a control variate; not in the paper. The mean
    over all samples of log pi(a) - E log pi(a) is zero in expectation, but its noise is that of L_pi: psi is positive,
    so that the policy is drawn to whatever was sampled, and finite samples make it ever more certain of that.
    """
    # Where the weight is zero the sample is not in D~; its log-probability may be anything.
    policy_loss = -(weights * torch.where(weights > 0, log_probs, 0.0)).sum()
    count = valid.sum().clamp(min=1)
    if expected_log_probs is not None:
        policy_loss = policy_loss + torch.where(valid, log_probs - expected_log_probs, 0.0).sum() / count
    alpha_loss = torch.zeros_like(policy_loss)
    metrics: dict[str, Tensor] = {}
    for name, kl in kl_parts.items():
        alpha, epsilon = alphas[name], epsilons[name]
        mean_kl = torch.where(valid, kl, 0.0).sum() / count
        slack = torch.where(valid.any(), epsilon - mean_kl.detach(), 0.0)
        alpha_loss = alpha_loss + alpha * slack + alpha.detach() * mean_kl
        metrics[f"kl/{name}"] = mean_kl.detach()
        metrics[f"kl_over_bound/{name}"] = mean_kl.detach() / epsilon
        metrics[f"alpha/{name}"] = alpha.detach()
    metrics["loss_policy"] = policy_loss.detach()
    metrics["loss_alpha"] = alpha_loss.detach()
    return MStep(policy_loss=policy_loss, alpha_loss=alpha_loss, metrics=metrics)
