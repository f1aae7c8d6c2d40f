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
from torch.nn import functional as F


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
    """Lambda-returns: V(s_t) plus the generalised advantage estimate (Schulman et al. 2016).

    G_t = r_t + gamma ((1 - lambda) V(s_{t+1}) + lambda G_{t+1}). No gradient flows into the target.
    """
    rewards, discounts, values, bootstrap = (x.detach() for x in (rewards, discounts, values, bootstrap))
    following_values = torch.cat([values[1:], bootstrap[None]])
    offsets, factors = rewards + (1.0 - trace_decay) * discounts * following_values, trace_decay * discounts
    if valid is not None:
        offsets, factors = torch.where(valid, offsets, values), torch.where(valid, factors, 0.0)
    return backward_recursion(offsets, factors, bootstrap)


def backward_recursion(
    offsets: Float[Tensor, "T B"], factors: Float[Tensor, "T B"], last: Float[Tensor, " B"]
) -> Float[Tensor, "T B"]:
    """x_t = offset_t + factor_t x_{t+1} for all t at once, where x_T is given.

    After each round an entry has taken in twice as many of those behind it: log2 T operations on whole tensors in place
    of T on slices.
    """
    length, span = len(offsets), 1
    offsets = torch.cat([offsets[:-1], torch.addcmul(offsets[-1:], factors[-1:], last[None])])
    while span < length:
        # Behind the end stands nothing more.
        offsets = torch.addcmul(offsets, factors, F.pad(offsets[span:], (0, 0, 0, span)))
        factors = factors * F.pad(factors[span:], (0, 0, 0, span))
        span *= 2
    return offsets


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
    following_values = torch.cat([values[1:], bootstrap[None]])
    differences = rho * (rewards + discounts * following_values - values)
    # v_t - V(s_t) = difference_t + gamma c_t (v_{t+1} - V(s_{t+1})).
    returns = values + backward_recursion(differences, discounts * trace, torch.zeros_like(bootstrap))
    advantages = rewards + discounts * torch.cat([returns[1:], bootstrap[None]]) - values
    return VTrace(returns=returns, advantages=advantages if valid is None else torch.where(valid, advantages, 0.0))


def masked_mean(x: Float[Tensor, "T B"], valid: Bool[Tensor, "T B"]) -> Float[Tensor, ""]:
    """Mean over the valid samples; 0 if there is none."""
    return torch.where(valid, x, 0.0).sum() / valid.sum().clamp(min=1)


def explained_variance(
    returns: Float[Tensor, "T B"], predictions: Float[Tensor, "T B"], valid: Bool[Tensor, "T B"]
) -> Float[Tensor, ""]:
    """1 - Var(G - V) / Var(G) over the valid samples: 1 is perfect, 0 no better than a constant."""
    both = torch.stack([returns - predictions, returns]).masked_fill(~valid, 0.0)
    count = valid.sum().clamp(min=1)
    centred = both - both.sum(dim=(1, 2), keepdim=True) / count
    unexplained, whole = (valid * centred.square()).sum(dim=(1, 2)) / count
    return 1.0 - unexplained / whole.clamp(min=1e-12)
