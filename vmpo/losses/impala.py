"""The policy loss of IMPALA (Espeholt et al. 2018, Sec. 4.2), a baseline on the same agents, actors and learner."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vmpo.values import masked_mean


def impala_loss(
    *,
    log_probs: Float[Tensor, "T B"],
    behaviour_log_probs: Float[Tensor, "T B"],
    advantages: Float[Tensor, "T B"],
    entropies: Float[Tensor, "T B"],
    valid: Bool[Tensor, "T B"],
    entropy_cost: float,
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """-mean(rho A log pi) - cost mean(H), with rho = min(1, pi / mu).

    The advantage is V-trace's r + gamma v_{t+1} - V(s_t). Only log pi and the entropy receive gradient. The paper sums
    over the batch; a mean leaves the step size independent of its size.
    """
    # Masked here as well: what stands in a masked entry may not be finite, and zero times that is not zero.
    rho = torch.where(valid, log_probs - behaviour_log_probs, 0.0).detach().exp().clamp(max=1.0)
    weights = torch.where(valid, rho * advantages.detach(), 0.0)
    policy_loss = -masked_mean(weights * log_probs, valid)
    loss = policy_loss - entropy_cost * masked_mean(entropies, valid)
    return loss, {"loss_policy": policy_loss.detach(), "rho": masked_mean(rho, valid)}
