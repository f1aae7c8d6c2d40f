"""Return targets for the value function: n-step returns, GAE and V-trace, all pure and ``[T, B]``.

``rewards[t]`` and ``discounts[t]`` belong to the transition from s_t to s_{t+1}; discounts include the agent's discount
and are 0 on termination. Where ``valid[t]`` is False the transition leads from a final observation to the next episode:
the target of s_t is its own value, so that the step before it bootstraps there and nothing crosses the reset.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class VTrace:
    returns: Float[Tensor, "T B"]
    advantages: Float[Tensor, "T B"]


def n_step_returns(
    rewards: Float[Tensor, "T B"],
    discounts: Float[Tensor, "T B"],
    values: Float[Tensor, "T B"],
    bootstrap: Float[Tensor, " B"],
    valid: Bool[Tensor, "T B"] | None = None,
) -> Float[Tensor, "T B"]:
    """Discounted rewards to the end of the unroll, then the value of its last observation.

    V-MPO Sec. 4.1: G_l = sum_k gamma^(k-l) r_k + gamma^(t+n-l) V(s_{t+n}). No gradient flows into the target.
    """
    return gae_returns(rewards, discounts, values, bootstrap, valid, trace_decay=1.0)


def gae_returns(
    rewards: Float[Tensor, "T B"],
    discounts: Float[Tensor, "T B"],
    values: Float[Tensor, "T B"],
    bootstrap: Float[Tensor, " B"],
    valid: Bool[Tensor, "T B"] | None = None,
    trace_decay: float = 0.95,
) -> Float[Tensor, "T B"]:
    """Lambda-returns: V(s_t) plus the generalised advantage estimate (Schulman et al. 2016), by backward recursion.

    G_t = r_t + gamma ((1 - lambda) V(s_{t+1}) + lambda G_{t+1}). No gradient flows into the target.
    """
    rewards, discounts, values, bootstrap = (x.detach() for x in (rewards, discounts, values, bootstrap))
    returns = torch.empty_like(values)
    following_value = following_return = bootstrap
    for t in reversed(range(len(values))):
        mixed = torch.lerp(following_value, following_return, trace_decay)
        target = rewards[t] + discounts[t] * mixed
        returns[t] = target if valid is None else torch.where(valid[t], target, values[t])
        following_value, following_return = values[t], returns[t]
    return returns


def vtrace(
    rewards: Float[Tensor, "T B"],
    discounts: Float[Tensor, "T B"],
    values: Float[Tensor, "T B"],
    bootstrap: Float[Tensor, " B"],
    log_ratios: Float[Tensor, "T B"],
    valid: Bool[Tensor, "T B"] | None = None,
    trace_decay: float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
) -> VTrace:
    """V-trace targets and the advantages that go with them (Espeholt et al. 2018, Eqs. 1 and 4).

    ``log_ratios`` are log pi_target - log pi_behaviour. The advantage is r + gamma v_{t+1} - V(s_t), without the factor
    rho: V-MPO weighs its samples itself (App. E). No gradient flows into either.
    """
    rewards, discounts, values, bootstrap, log_ratios = (
        x.detach() for x in (rewards, discounts, values, bootstrap, log_ratios)
    )
    ratios = log_ratios.exp()
    rho, trace = ratios.clamp(max=clip_rho), trace_decay * ratios.clamp(max=clip_c)
    if valid is not None:
        # With no reward, discount or ratio the target of s_t is V(s_t), whatever stands in the masked entries.
        rewards, discounts, rho, trace = (torch.where(valid, x, 0.0) for x in (rewards, discounts, rho, trace))
    returns, advantages = torch.empty_like(values), torch.empty_like(values)
    following_value = following_return = bootstrap
    for t in reversed(range(len(values))):
        difference = rho[t] * (rewards[t] + discounts[t] * following_value - values[t])
        returns[t] = values[t] + difference + discounts[t] * trace[t] * (following_return - following_value)
        advantages[t] = rewards[t] + discounts[t] * following_return - values[t]
        following_value, following_return = values[t], returns[t]
    return VTrace(returns=returns, advantages=advantages if valid is None else torch.where(valid, advantages, 0.0))


def masked_mean(x: Float[Tensor, "T B"], valid: Bool[Tensor, "T B"]) -> Float[Tensor, ""]:
    """Mean over the valid samples; 0 if there is none."""
    return torch.where(valid, x, 0.0).sum() / valid.sum().clamp(min=1)


def explained_variance(
    returns: Float[Tensor, "T B"], predictions: Float[Tensor, "T B"], valid: Bool[Tensor, "T B"]
) -> Float[Tensor, ""]:
    """1 - Var(G - V) / Var(G) over the valid samples: 1 is perfect, 0 no better than a constant."""

    def variance(x: Tensor) -> Tensor:
        return masked_mean((x - masked_mean(x, valid)).square(), valid)

    return 1.0 - variance(returns - predictions) / variance(returns).clamp(min=1e-12)
