"""PopArt: the value head works in a space normalised per task, and the outputs survive every change of that space.

van Hasselt et al. 2016, Hessel et al. 2018; V-MPO Sec. 4.1. Statistics are float64: a second moment of 1e12 leaves
float32 no digits for the variance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class PopArtStatistics:
    """First and second moment of the value targets, per task."""

    mean: Float64[Tensor, " N"]
    second_moment: Float64[Tensor, " N"]
    bounds: tuple[float, float] = (1e-2, 1e6)
    """Of the scale, against sparse and exploding rewards."""

    @cached_property
    def scale(self) -> Float64[Tensor, " N"]:
        """Standard deviation of the targets within its bounds."""
        variance = self.second_moment - self.mean.square()
        return variance.clamp(min=0.0).sqrt().clamp(*self.bounds)


def initial_statistics(
    num_tasks: int, device: torch.device | str = "cpu", bounds: tuple[float, float] = (1e-2, 1e6)
) -> PopArtStatistics:
    zeros = torch.zeros(num_tasks, dtype=torch.float64, device=device)
    return PopArtStatistics(mean=zeros, second_moment=zeros + 1.0, bounds=bounds)


def updated(
    statistics: PopArtStatistics,
    targets: Float[Tensor, "T B"],
    tasks: Int64[Tensor, "T B"],
    valid: Bool[Tensor, "T B"],
    rate: float,
    total: Callable[[Tensor], Tensor] = lambda sums: sums,
) -> PopArtStatistics:
    """One statistics step.

    Each task that the batch holds moves by ``rate`` from its old moments towards the moments of its own valid targets.
    How many samples it has does not change the size of the step, and a task that is absent stays where it is. Where the
    batch is spread over processes, ``total`` adds up their sums.
    """
    masked = torch.where(valid, targets.detach(), 0.0).double()
    samples = torch.stack([valid.double(), masked, masked.square()]).flatten(1)
    per_task = samples.new_zeros(3, len(statistics.mean)).index_add_(1, tasks.reshape(-1), samples)
    counts, sums, squares = total(per_task)
    step = rate * (counts > 0).double()
    mean, second_moment = sums / counts.clamp(min=1.0), squares / counts.clamp(min=1.0)
    return replace(
        statistics,
        mean=torch.lerp(statistics.mean, mean, step),
        second_moment=torch.lerp(statistics.second_moment, second_moment, step),
    )


@torch.no_grad()
def rescale_(readout: nn.Linear, old: PopArtStatistics, new: PopArtStatistics) -> None:
    """Change the last layer in place so that ``scale * readout(x) + mean`` is what it was with the old statistics."""
    readout.weight.copy_(readout.weight.double() * (old.scale / new.scale)[:, None])
    readout.bias.copy_((old.scale * readout.bias.double() + old.mean - new.mean) / new.scale)


def normalise(
    x: Float[Tensor, "*batch"], tasks: Int64[Tensor, "*batch"], statistics: PopArtStatistics
) -> Float[Tensor, "*batch"]:
    """From rewards' units to the space of the value head."""
    return ((x.double() - statistics.mean[tasks]) / statistics.scale[tasks]).float()


def denormalise(
    x: Float[Tensor, "*batch"], tasks: Int64[Tensor, "*batch"], statistics: PopArtStatistics
) -> Float[Tensor, "*batch"]:
    """From the space of the value head to rewards' units."""
    return (x.double() * statistics.scale[tasks] + statistics.mean[tasks]).float()
