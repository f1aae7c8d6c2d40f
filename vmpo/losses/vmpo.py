"""The V-MPO loss (Song et al. 2019, Eqs. 2 to 5), pure and line by line.

``vmpo_loss`` is the whole of it for one minibatch: the E-step, which weighs samples, followed by the M-step, which fits
the policy to the weights under KL constraints. They are apart so that the E-step may be taken over the gathered
advantages of all replicas (``top_scope="global"``) while each replica fits its own samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
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
    temperature: Scalar | None,
    alphas: dict[str, Scalar],
    epsilon_temperature: float,
    epsilon_alphas: dict[str, float],
    valid: Bool[Tensor, "T B"] | None = None,
    importance_weights: Float[Tensor, "T B"] | None = None,
    top_fraction: float = 0.5,
    expected_log_probs: Float[Tensor, "T B"] | None = None,
    improvement: EStep | None = None,
) -> tuple[Scalar, dict[str, Tensor]]:
    """L_pi + L_eta + sum of L_alpha (Eq. 2).

    The policy learns from L_pi and L_alpha, the temperature from L_eta, each alpha from its own L_alpha.
    ``improvement`` is an E-step that was taken over more samples than these, with the weights of these.
    """
    valid = torch.ones_like(advantages, dtype=torch.bool) if valid is None else valid
    improvement = improvement or e_step(
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
        expected_log_probs=expected_log_probs,
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
    chosen = torch.arange(len(order), device=order.device) < count
    return torch.zeros_like(chosen).scatter_(0, order, chosen).view_as(valid) & valid


def e_step(
    *,
    advantages: Float[Tensor, "T B"],
    temperature: Scalar | None,
    epsilon: float,
    selected: Bool[Tensor, "T B"],
    importance_weights: Float[Tensor, "T B"] | None = None,
) -> EStep:
    """Weights psi = softmax of A / eta over D~ (Eq. 3), and L_eta = eta eps + eta log mean exp(A / eta) (Eq. 4).

    Importance weights rho multiply exp(A / eta) in both (App. E). Only the temperature receives gradient, from L_eta;
    without one, that which minimises L_eta is taken.
    """
    samples = centre(advantages, selected, importance_weights)
    temperature = solve_temperature(samples, epsilon) if temperature is None else temperature
    logits = samples.log_rho + samples.advantages / temperature
    log_mean = logits.flatten().logsumexp(dim=0) - samples.count.to(logits.dtype).log()
    loss = samples.highest + temperature * (epsilon + log_mean)
    # Without a sample there is nothing to weigh: no loss, and no gradient.
    loss = torch.where(samples.any, loss, 0.0 * temperature)
    weights = logits.detach().flatten().softmax(dim=0).view_as(logits).masked_fill(samples.outside, 0.0)

    # KL of psi against the samples' own distribution, which the temperature is to hold at epsilon.
    kl = (weights * samples.advantages).sum() / temperature.detach() - log_mean.detach()
    kl = torch.where(samples.any, kl, 0.0)
    metrics = {
        "loss_temperature": loss.detach(),
        "e_step_kl": kl,
        "e_step_kl_over_bound": kl / epsilon,
        "effective_sample_size": torch.where(samples.any, 1.0 / weights.square().sum(), 0.0),
        "temperature": temperature.detach(),
    }
    return EStep(weights=weights, temperature_loss=loss, metrics=metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Centred:
    """The selected samples, shifted by their highest advantage: A / eta then keeps its digits at any temperature."""

    advantages: Float[Tensor, "T B"]
    """A - max A over the support, 0 elsewhere."""
    log_rho: Float[Tensor, "T B"]
    """-inf outside the support, unless that is empty."""
    highest: Scalar
    count: Int64[Tensor, ""]
    """|D~|, or 1 if that is empty."""
    outside: Bool[Tensor, "T B"]
    """Not selected, or of an importance weight of zero."""
    any: Bool[Tensor, ""]


def centre(
    advantages: Float[Tensor, "T B"],
    selected: Bool[Tensor, "T B"],
    importance_weights: Float[Tensor, "T B"] | None = None,
) -> Centred:
    advantages, support, log_rho = advantages.detach(), selected, torch.zeros_like(advantages)
    if importance_weights is not None:
        support, log_rho = selected & (importance_weights > 0), importance_weights.detach().log()
    outside, found = ~support, support.any()
    highest = torch.where(found, advantages.masked_fill(outside, -torch.inf).amax(), 0.0)
    return Centred(
        advantages=(advantages - highest).masked_fill(outside, 0.0),
        log_rho=log_rho.masked_fill(outside, -torch.inf).masked_fill(~found, 0.0),
        highest=highest,
        count=selected.sum().clamp(min=1),
        outside=outside,
        any=found,
    )


STEP, RUNGS_ABOVE, RUNGS_BELOW = 0.5, 8, 40
"""Of the ladder, in log eta: its step, and how many rungs are above, and how many from there on down, the highest
temperature that may be needed without weights."""


def solve_temperature(samples: Centred, epsilon: float, iterations: int = 2) -> Scalar:
    """The eta that minimises L_eta (Eq. 4) on this batch; not in the paper, which takes one gradient step.

    L_eta is convex and its slope is eps - KL(psi_eta), so KL is to meet eps. A ladder of temperatures, evaluated at
    once, brackets it; Newton's method on log KL against log eta, which is close to a straight line (KL ~ Var(A) / 2
    eta^2), does the rest from where a line between the two rungs crosses eps. Where no eta reaches the bound (all
    advantages equal) the lowest that is looked at is returned, and psi is uniform.
    """
    coarse, coarse_rho = samples.advantages.flatten(), samples.log_rho.flatten()
    log_count = samples.count.double().log()
    # Without weights, no temperature above range / sqrt(8 eps) has a KL of eps (Hoeffding); with them, some may.
    highest = (coarse.amin().neg().clamp(min=1e-6) / math.sqrt(8.0 * epsilon)).log()
    rungs = highest + STEP * torch.arange(RUNGS_ABOVE, -RUNGS_BELOW, -1, device=coarse.device)
    scales = rungs.neg().exp()
    # Where the exponential underflows it takes a hundred times as long; e^-80 is nothing beside the highest sample's 1.
    weights = torch.addcmul(coarse_rho, coarse, scales[:, None]).clamp_(min=-80.0).exp_()
    totals = weights.sum(dim=1)
    kls = scales * (weights @ coarse) / totals - totals.log() + log_count.to(coarse)
    below = torch.searchsorted(kls, epsilon).clamp(1, len(rungs) - 1)
    pair = torch.stack([below - 1, below])
    upper, lower = rungs[pair].double().unbind()
    upper_log_kl, lower_log_kl = kls[pair].clamp(min=1e-30).double().log().unbind()
    crossing = ((math.log(epsilon) - upper_log_kl) / (lower_log_kl - upper_log_kl)).nan_to_num(1.0).clamp(0.0, 1.0)
    log_eta = torch.lerp(upper, lower, crossing)

    centred, log_rho = coarse.double(), coarse_rho.double()
    powers = torch.stack([torch.ones_like(centred), centred, centred.square()])
    for _ in range(iterations):
        scale = log_eta.neg().exp()
        # Sums of rho exp(A / eta), and of that times A and A^2; the highest A is 0, so nothing overflows.
        total, first, second = (powers @ torch.addcmul(log_rho, centred, scale).clamp_(min=-700.0).exp_()).unbind()
        mean = scale * first / total
        kl = (mean - total.log() + log_count).clamp(min=1e-300)
        # d KL / d log eta = -Var(A / eta) under psi.
        variance = scale.square() * second / total - mean.square()
        log_eta = (log_eta + (kl.log() - math.log(epsilon)) * kl / variance).clamp(lower - STEP, upper + STEP)
    return log_eta.exp().to(samples.advantages.dtype)


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
