"""What the policy learns from a minibatch: V-MPO, or a baseline on the same samples.

An objective turns an ``Evaluation`` into a loss and metrics. ``OBJECTIVES`` names them for ``loss.algorithm``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from vmpo.config import LossConfig
from vmpo.errors import RunFailed, told, unknown
from vmpo.losses.impala import impala_loss
from vmpo.losses.ppo import ppo_loss
from vmpo.losses.vmpo import EStep, e_step, select_top, vmpo_loss
from vmpo.user_code import find
from vmpo.values import masked_mean

MULTIPLIER_FLOOR = 1e-8
"""eta_min = alpha_min (Sec. 4.2.2)."""


class Multipliers(nn.Module):
    """The Lagrange multipliers eta and alpha: positive parameters that live in the optimiser beside the network."""

    def __init__(self, config: LossConfig, kl_names: Iterable[str]) -> None:
        super().__init__()
        initial = {
            "policy": (config.initial_alpha_policy, config.epsilon_policy),
            "mean": (config.initial_alpha_mean, config.epsilon_mean),
            "covariance": (config.initial_alpha_covariance, config.epsilon_covariance),
        }
        kl_names = list(kl_names)
        self.temperature = nn.Parameter(torch.tensor(config.initial_temperature))
        self.alphas = nn.ParameterDict({name: nn.Parameter(torch.tensor(initial[name][0])) for name in kl_names})
        self.epsilons = {name: float(initial[name][1] or 0.0) for name in kl_names}
        """The bound that goes with each alpha."""

    @torch.no_grad()
    def project_(self) -> None:
        """Back to positive values after an update. Inside the loss, a clamp would stop their gradient at the floor."""
        for parameter in self.parameters():
            parameter.clamp_(min=MULTIPLIER_FLOOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One minibatch after the forward pass: what the losses need, ``[T, B]``."""

    log_probs: Float[Tensor, "T B"]
    expected_log_probs: Float[Tensor, "T B"] | None
    """E log pi(a) under the policy that acted, for the control variate."""
    behaviour_log_probs: Float[Tensor, "T B"] | None
    """Of the policy that acted; for the baselines."""
    entropies: Float[Tensor, "T B"]
    kl_parts: dict[str, Float[Tensor, "T B"]]
    normalised_values: Float[Tensor, "T B"]
    returns: Float[Tensor, "T B"]
    advantages: Float[Tensor, "T B"]
    importance_weights: Float[Tensor, "T B"] | None
    valid: Bool[Tensor, "T B"]
    tasks: Int64[Tensor, "T B"]
    pixel_control: Tensor | None
    metrics: dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What the E-step needs of all replicas side by side, ``[T, R * B]``."""

    advantages: Float[Tensor, "T RB"]
    importance_weights: Float[Tensor, "T RB"] | None
    valid: Bool[Tensor, "T RB"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A replica's part of what was gathered."""

    of: Gathered
    index: int
    count: int


class Objective(Protocol):
    def __call__(
        self, samples: Evaluation, multipliers: Multipliers, config: LossConfig, share: Share | None
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]: ...


def vmpo(
    samples: Evaluation, multipliers: Multipliers, config: LossConfig, share: Share | None
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """L_V-MPO (Eq. 2), with the E-step over this replica or over all that were gathered."""
    temperature = None if config.exact_temperature else multipliers.temperature
    loss, metrics = vmpo_loss(
        log_probs=samples.log_probs,
        advantages=samples.advantages,
        kl_parts=samples.kl_parts,
        temperature=temperature,
        alphas=dict(multipliers.alphas.items()),
        epsilon_temperature=config.epsilon_temperature,
        epsilon_alphas=multipliers.epsilons,
        valid=samples.valid,
        importance_weights=samples.importance_weights,
        top_fraction=config.top_fraction,
        expected_log_probs=samples.expected_log_probs,
        improvement=None if share is None else _shared_improvement(share, temperature, config),
    )
    if temperature is None:
        with torch.no_grad():
            multipliers.temperature.copy_(metrics["temperature"])
    if config.entropy_cost:
        loss = loss - config.entropy_cost * masked_mean(samples.entropies, samples.valid)
    return loss, metrics


def _shared_improvement(share: Share, temperature: Tensor | None, config: LossConfig) -> EStep:
    """The E-step over everything that was gathered, with the weights of one replica."""
    everything = share.of
    improvement = e_step(
        advantages=everything.advantages,
        temperature=temperature,
        epsilon=config.epsilon_temperature,
        selected=select_top(everything.advantages, everything.valid, config.top_fraction),
        importance_weights=everything.importance_weights,
    )
    # The average over replicas of R psi log pi is then the sum over the whole batch of Eq. 3.
    weights = improvement.weights.chunk(share.count, dim=1)[share.index]
    return replace(improvement, weights=share.count * weights)


def impala(
    samples: Evaluation, multipliers: Multipliers, config: LossConfig, share: Share | None
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """Needs ``loss.returns="vtrace"`` to be IMPALA; with others it is an advantage actor-critic."""
    assert samples.behaviour_log_probs is not None
    loss, metrics = impala_loss(
        log_probs=samples.log_probs,
        behaviour_log_probs=samples.behaviour_log_probs,
        advantages=samples.advantages,
        entropies=samples.entropies,
        valid=samples.valid,
        entropy_cost=_entropy_cost(config),
    )
    return loss, metrics | _distances(samples)


def ppo(
    samples: Evaluation, multipliers: Multipliers, config: LossConfig, share: Share | None
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    assert samples.behaviour_log_probs is not None
    loss, metrics = ppo_loss(
        log_probs=samples.log_probs,
        behaviour_log_probs=samples.behaviour_log_probs,
        advantages=samples.advantages,
        entropies=samples.entropies,
        valid=samples.valid,
        clip_ratio=config.clip_ratio,
        entropy_cost=_entropy_cost(config),
    )
    return loss, metrics | _distances(samples)


def _entropy_cost(config: LossConfig) -> float:
    return 0.01 if config.entropy_cost is None else config.entropy_cost


def _distances(samples: Evaluation) -> dict[str, Tensor]:
    """How far the policy has moved from the one that acted."""
    return {f"kl/{name}": masked_mean(kl.detach(), samples.valid) for name, kl in samples.kl_parts.items()}


BASELINES: dict[str, Objective] = {"impala": impala, "ppo": ppo}
"""They have no E-step, hence neither a share in one nor a control variate."""

OBJECTIVES: dict[str, Objective] = {"vmpo": vmpo, **BASELINES}


def _own(name: str, loss: Objective) -> Objective:
    """One of the user's, which ends the run where it fails."""

    def call(
        samples: Evaluation, multipliers: Multipliers, config: LossConfig, share: Share | None
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        try:
            return loss(samples, multipliers, config, share)
        except Exception as error:
            raise RunFailed(f"the loss {name} failed: {told(error)}") from error

    return call


def objective(algorithm: str) -> Objective:
    """By name, or ``my_module:my_loss`` of the user's."""
    if ":" in algorithm:
        return _own(algorithm, find("loss", algorithm))
    if algorithm not in OBJECTIVES:
        raise unknown("algorithm", algorithm, OBJECTIVES)
    return OBJECTIVES[algorithm]
