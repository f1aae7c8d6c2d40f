"""Policies: what the flat output of a policy head means, and the KL parts that V-MPO constrains one by one.

Each distribution answers ``kl_parts(other)`` = KL(self || other) as named terms. The loss never asks which kind it has.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor
from typing_extensions import Self

from vmpo.records import ActionSpec, DiscreteActions

LOG_TWO_PI = math.log(2.0 * math.pi)


class Distribution(Protocol):
    def sample(self, noise: Tensor) -> Tensor:
        """The action that a draw of the family's ``noise`` stands for."""
        ...

    def mode(self) -> Tensor: ...

    def log_prob(self, action: Tensor) -> Tensor: ...

    def entropy(self) -> Tensor: ...

    def expected_log_prob(self, other: Self) -> Tensor: ...

    def kl_parts(self, other: Self) -> dict[str, Tensor]: ...


@dataclass(frozen=True, kw_only=True)
class Categorical:
    """Independent categoricals side by side; one of them is the ordinary discrete policy."""

    logits: Float[Tensor, "*batch N"]
    sizes: tuple[int, ...]

    @functools.cached_property
    def _log_probs(self) -> list[Tensor]:
        return [F.log_softmax(part, dim=-1) for part in self.logits.split(self.sizes, dim=-1)]

    def sample(self, noise: Float[Tensor, "*batch N"]) -> Int64[Tensor, "*batch K"]:
        """Exponential races: the smallest of E_i / p_i falls on i with probability p_i; ``noise`` is log E."""
        return self._largest(self.logits - noise)

    def mode(self) -> Int64[Tensor, "*batch K"]:
        return self._largest(self.logits)

    def _largest(self, scores: Float[Tensor, "*batch N"]) -> Int64[Tensor, "*batch K"]:
        if len(self.sizes) == 1:
            return scores.argmax(dim=-1, keepdim=True)
        return torch.cat([part.argmax(dim=-1, keepdim=True) for part in scores.split(self.sizes, dim=-1)], dim=-1)

    def log_prob(self, action: Int64[Tensor, "*batch K"]) -> Float[Tensor, "*batch"]:
        return _total(p.gather(-1, action[..., i : i + 1])[..., 0] for i, p in enumerate(self._log_probs))

    def entropy(self) -> Float[Tensor, "*batch"]:
        return -_total((p.exp() * p).sum(dim=-1) for p in self._log_probs)

    def expected_log_prob(self, other: Categorical) -> Float[Tensor, "*batch"]:
        """E log other(a) for a ~ self."""
        pairs = zip(self._log_probs, other._log_probs, strict=True)
        return _total((p.exp() * q).sum(dim=-1) for p, q in pairs)

    def kl_parts(self, other: Categorical) -> dict[str, Float[Tensor, "*batch"]]:
        """One part: KL(self || other), summed over independent categoricals."""
        pairs = zip(self._log_probs, other._log_probs, strict=True)
        return {"policy": _total((p.exp() * (p - q)).sum(dim=-1) for p, q in pairs)}


def _total(parts: Iterable[Tensor]) -> Tensor:
    return functools.reduce(torch.add, parts)


@dataclass(frozen=True, kw_only=True)
class DiagonalGaussian:
    mean: Float[Tensor, "*batch d"]
    std: Float[Tensor, "*batch d"]

    @functools.cached_property
    def _log_std(self) -> Float[Tensor, "*batch d"]:
        return self.std.log()

    def sample(self, noise: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        return torch.addcmul(self.mean, self.std, noise)

    def mode(self) -> Float[Tensor, "*batch d"]:
        return self.mean

    def log_prob(self, action: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
        z = (action - self.mean) / self.std
        return -(0.5 * z.square() + self._log_std + 0.5 * LOG_TWO_PI).sum(dim=-1)

    def entropy(self) -> Float[Tensor, "*batch"]:
        return (self._log_std + 0.5 * (1.0 + LOG_TWO_PI)).sum(dim=-1)

    def expected_log_prob(self, other: DiagonalGaussian) -> Float[Tensor, "*batch"]:
        """E log other(a) for a ~ self: what the mean would have, less what the spread around it costs."""
        return other.log_prob(self.mean) - 0.5 * (self.std / other.std).square().sum(dim=-1)

    def kl_parts(self, other: DiagonalGaussian) -> dict[str, Float[Tensor, "*batch"]]:
        """The mean part under the old covariance and the covariance part (V-MPO App. C); self is the old policy."""
        log_variance_ratio = 2.0 * (self._log_std - other._log_std)
        return {
            "mean": 0.5 * ((other.mean - self.mean) / self.std).square().sum(dim=-1),
            "covariance": 0.5 * (log_variance_ratio.exp() - 1.0 - log_variance_ratio).sum(dim=-1),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FullGaussian:
    mean: Float[Tensor, "*batch d"]
    scale_tril: Float[Tensor, "*batch d d"]
    """Cholesky factor of the covariance: lower triangular with a positive diagonal."""

    def _half_log_determinant(self) -> Float[Tensor, "*batch"]:
        return self.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)

    def _whiten(self, vectors: Float[Tensor, "*batch d k"]) -> Float[Tensor, "*batch d k"]:
        return torch.linalg.solve_triangular(self.scale_tril, vectors, upper=False)

    def sample(self, noise: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        return self.mean + (self.scale_tril @ noise[..., None])[..., 0]

    def mode(self) -> Float[Tensor, "*batch d"]:
        return self.mean

    def log_prob(self, action: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
        z = self._whiten((action - self.mean)[..., None])[..., 0]
        dimension = self.mean.shape[-1]
        return -0.5 * z.square().sum(dim=-1) - self._half_log_determinant() - 0.5 * dimension * LOG_TWO_PI

    def entropy(self) -> Float[Tensor, "*batch"]:
        return self._half_log_determinant() + 0.5 * self.mean.shape[-1] * (1.0 + LOG_TWO_PI)

    def expected_log_prob(self, other: FullGaussian) -> Float[Tensor, "*batch"]:
        """E log other(a) for a ~ self: what the mean would have, less what the spread around it costs."""
        return other.log_prob(self.mean) - 0.5 * other._whiten(self.scale_tril).square().sum(dim=(-2, -1))

    def kl_parts(self, other: FullGaussian) -> dict[str, Float[Tensor, "*batch"]]:
        """The mean part under the old covariance and the covariance part (V-MPO App. C); self is the old policy.

        Tr(Sigma_new^-1 Sigma_old) is the squared Frobenius norm of L_new^-1 L_old.
        """
        trace = other._whiten(self.scale_tril).square().sum(dim=(-2, -1))
        log_determinant_ratio = 2.0 * (other._half_log_determinant() - self._half_log_determinant())
        return {
            "mean": 0.5 * self._whiten((other.mean - self.mean)[..., None]).square().sum(dim=(-2, -1)),
            "covariance": 0.5 * (trace - self.mean.shape[-1] + log_determinant_ratio),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFamily:
    """The distributions that a flat vector of head outputs stands for."""

    actions: ActionSpec
    covariance: Literal["diagonal", "full"] = "diagonal"
    initial_std: float = 1.0
    minimum_std: float = 1e-3
    bounded_mean: bool = False
    """Keep a Gaussian's mean in the unit box: far outside of it all samples are clipped to one action."""

    @property
    def kl_names(self) -> tuple[str, ...]:
        return ("policy",) if isinstance(self.actions, DiscreteActions) else ("mean", "covariance")

    @property
    def num_parameters(self) -> int:
        if isinstance(self.actions, DiscreteActions):
            return sum(self.actions.sizes)
        d = self.actions.width
        return 2 * d if self.covariance == "diagonal" else d + d * (d + 1) // 2

    def noise(self, *batch: int, generator: torch.Generator) -> Float[Tensor, "*batch N"]:
        """What samples are made of, on the generator's device: logs of exponentials for choices, normals for reals."""
        discrete = isinstance(self.actions, DiscreteActions)
        width = sum(self.actions.sizes) if isinstance(self.actions, DiscreteActions) else self.actions.width
        empty = torch.empty(*batch, width, device=generator.device)
        return empty.exponential_(generator=generator).log_() if discrete else empty.normal_(generator=generator)

    def distribution(self, parameters: Float[Tensor, "*batch P"]) -> Distribution:
        """Zeros stand for equal logits, or for a mean of zero with the initial standard deviation."""
        if isinstance(self.actions, DiscreteActions):
            return Categorical(logits=parameters, sizes=self.actions.sizes)
        d = self.actions.width
        mean, rest = parameters[..., :d], parameters[..., d:]
        if self.bounded_mean:
            mean = mean.tanh()
        if self.covariance == "diagonal":
            return DiagonalGaussian(mean=mean, std=self._positive(rest))
        rows, columns = torch.tril_indices(d, d, offset=-1, device=parameters.device)
        scale_tril = torch.diag_embed(self._positive(rest[..., :d]))
        scale_tril[..., rows, columns] = self.initial_std * rest[..., d:]
        return FullGaussian(mean=mean, scale_tril=scale_tril)

    def _positive(self, raw: Tensor) -> Tensor:
        """Softplus shifted to pass through the initial standard deviation at zero."""
        offset = math.log(math.expm1(self.initial_std - self.minimum_std))
        return F.softplus(raw + offset) + self.minimum_std
