"""What the encoders know of their inputs: running statistics, by which vectors are whitened and images centred.

Not in the paper. Statistics change only on ``commit``: the online and the target network must see the same inputs
within a target period, or the KL between them would measure the statistics. The learner accumulates every batch and
commits with the target update.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn


class RunningStatistics(nn.Module):
    """Mean and variance of each entry over everything that was merged and committed."""

    PRIOR_COUNT = 0.0
    """How many observations the initial variance counts for."""

    mean: Tensor
    var: Tensor
    count: Tensor
    pending_mean: Tensor
    pending_squares: Tensor
    pending_count: Tensor

    def __init__(self, *shape: int, initial_variance: float = 1.0):
        super().__init__()
        self.initial_variance = initial_variance
        for name in ("mean", "var", "pending_mean", "pending_squares"):
            initial = initial_variance if name == "var" else 0.0
            self.register_buffer(name, torch.full(shape, initial, dtype=torch.float64))
        for name in ("count", "pending_count"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def moments(self, x: Shaped[Tensor, "T B ..."], valid: Bool[Tensor, "T B"]) -> Float[Tensor, "3 ..."]:
        """Count, mean and sum of squared deviations of the valid rows."""
        valid = valid.reshape(-1, *(1 for _ in x.shape[2:]))
        x = torch.where(valid, x.flatten(0, 1).double(), 0.0)
        count = valid.sum().double()
        mean = x.sum(0) / count.clamp(min=1.0)
        squares = torch.where(valid, x - mean, 0.0).square().sum(0)
        return torch.stack([count.expand_as(mean), mean, squares])

    @torch.no_grad()
    def merge(self, moments: Float[Tensor, "3 ..."]) -> None:
        """Add what a batch, of this process or another, has seen to the pending statistics (Chan et al. 1983)."""
        counts, mean, squares = moments
        count = counts.flatten()[0]
        total = self.pending_count + count
        delta = mean - self.pending_mean
        share = count / total.clamp(min=1.0)
        self.pending_mean.add_(delta * share)
        self.pending_squares.add_(squares + delta.square() * self.pending_count * share)
        self.pending_count.copy_(total)

    @torch.no_grad()
    def commit(self) -> None:
        """Make the pending statistics the effective ones."""
        squares = self.pending_squares + self.PRIOR_COUNT * self.initial_variance
        variance = squares / (self.pending_count + self.PRIOR_COUNT).clamp(min=1.0)
        self.mean.copy_(self.pending_mean)
        self.var.copy_(torch.where(self.pending_count > 0, variance, self.initial_variance))
        self.count.copy_(self.pending_count)


class VectorNormaliser(RunningStatistics):
    """Whitens each entry of a vector."""

    BOUND = 10.0
    """What an entry is clipped to."""

    def mean_and_scale(self) -> tuple[Float[Tensor, " D"], Float[Tensor, " D"]]:
        """What is taken away, and what the rest is multiplied by."""
        return self.mean, torch.rsqrt(self.var + 1e-8)

    def forward(self, x: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        mean, scale = self.mean_and_scale()
        return ((x - mean.to(x.dtype)) * scale.to(x.dtype)).clamp(-self.BOUND, self.BOUND)


class ImageNormaliser(RunningStatistics):
    """Takes the mean picture away and scales what is left to unit variance over the whole image.

    A screen is mostly background. Divided by 255 it gives every unit of the first layer the same large offset in every
    state, beside which a ball of two pixels is next to nothing (docs/results.md#pong). One scale for all pixels keeps
    those that hardly ever change from growing out of all proportion. One mean picture serves all tasks.
    """

    SAMPLE = 17
    """Every so many timesteps are counted: neighbours in time tell little more, and doubles take time."""
    PRIOR_COUNT = 1.0
    """A game that begins with a still picture would otherwise have its first movements blown up."""

    def __init__(self, channels: int, height: int, width: int):
        super().__init__(channels, height, width, initial_variance=255.0**2)

    def moments(self, x: Shaped[Tensor, "T B C H W"], valid: Bool[Tensor, "T B"]) -> Float[Tensor, "3 C H W"]:
        return super().moments(x[:: self.SAMPLE], valid[:: self.SAMPLE])

    def mean_and_scale(self) -> tuple[Float[Tensor, "1 C H W"], Float[Tensor, ""]]:
        """What is taken away, and what the rest is multiplied by."""
        # A grey level's variance beside it, for a picture that never changes.
        return self.mean[None], torch.rsqrt(self.var.mean() + 1.0)

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C H W"]:
        """In place."""
        mean, scale = self.mean_and_scale()
        # Several times faster if both have their channels at the same place in memory.
        last = images.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if last else torch.contiguous_format
        return images.sub_(mean.to(images.dtype, memory_format=layout)).mul_(scale.to(images.dtype))
