"""The clipped surrogate of PPO (Schulman et al. 2017, Eq. 7), a baseline on the same agents, actors and learner.

Epochs and minibatches are the learner's ``passes`` and ``batch_size``. Unlike most implementations, advantages are
estimated anew for every minibatch by the newest value function, as V-MPO's are here.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vmpo.values import masked_mean


def ppo_loss(
    *,
    log_probs: Float[Tensor, "T B"],
    behaviour_log_probs: Float[Tensor, "T B"],
    advantages: Float[Tensor, "T B"],
    entropies: Float[Tensor, "T B"],
    valid: Bool[Tensor, "T B"],
    clip_ratio: float,
    entropy_cost: float,
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """-mean(min(r A, clip(r, 1 - c, 1 + c) A)) - cost mean(H), with r = pi / mu and A standardised over the minibatch.

    Only log pi and the entropy receive gradient, log pi none where the clipped term is the smaller one.
    """
    # Where a sample is masked, a ratio of one: the exponential of what stands there may overflow.
    ratios = torch.where(valid, log_probs - behaviour_log_probs.detach(), 0.0).exp()
    advantages = standardised(advantages.detach(), valid)
    clipped = ratios.clamp(1.0 - clip_ratio, 1.0 + clip_ratio)
    policy_loss = -masked_mean(torch.minimum(ratios * advantages, clipped * advantages), valid)
    loss = policy_loss - entropy_cost * masked_mean(entropies, valid)
    moved = masked_mean(((ratios - 1.0).abs() > clip_ratio).to(ratios.dtype), valid)
    return loss, {"loss_policy": policy_loss.detach(), "clipped": moved.detach()}


def standardised(x: Float[Tensor, "T B"], valid: Bool[Tensor, "T B"]) -> Float[Tensor, "T B"]:
    """Mean 0 and variance 1 over the valid samples."""
    centred = x - masked_mean(x, valid)
    return centred / (masked_mean(centred.square(), valid).sqrt() + 1e-8)
