"""Pixel control: n-step Q-learning of the change in every cell of the image.

Jaderberg et al. (2017), with the reductions of trfl's ``pixel_control_loss`` brought to a mean over timesteps, as
the V-MPO losses are.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from vmpo.networks.pixel_control import CELL_SIZE


def pixel_rewards(frames: UInt8[Tensor, "frames B C H W"]) -> Float[Tensor, "frames-1 B h w"]:
    """Mean absolute change of intensity, in [0, 1], of each cell between consecutive frames.

    The mean is over the cell's pixels and all channels. With stacked frames, each channel holds a change of the same
    scene some steps old, so the reward is the newest change smoothed over the stack. Rows and columns
    that fill no cell are cropped evenly from both sides.
    """
    height, width = (size // CELL_SIZE for size in frames.shape[-2:])
    top, left = (size % CELL_SIZE // 2 for size in frames.shape[-2:])
    frames = frames[..., top : top + height * CELL_SIZE, left : left + width * CELL_SIZE]
    # The difference of maximum and minimum stays in uint8, where a plain difference would wrap around.
    change = torch.maximum(frames[1:], frames[:-1]) - torch.minimum(frames[1:], frames[:-1])
    cells = change.unflatten(-1, (width, CELL_SIZE)).unflatten(-3, (height, CELL_SIZE))
    return cells.float().mean(dim=(2, 4, 6)) / 255.0


def n_step_targets(
    rewards: Float[Tensor, "T B h w"],
    discounts: Float[Tensor, "T B"],
    valid: Bool[Tensor, "T B"],
    bootstraps: Float[Tensor, "T+1 B h w"],
) -> Float[Tensor, "T B h w"]:
    """Discounted rewards to the end of the unroll plus the bootstrap there: Q(lambda) with lambda = 1.

    An invalid transition cuts the trace: what comes before it bootstraps from the state that it leaves.
    """
    targets = torch.empty_like(rewards)
    target = bootstraps[-1]
    for t in reversed(range(len(rewards))):
        onward = rewards[t] + discounts[t, :, None, None] * target
        target = torch.where(valid[t, :, None, None], onward, bootstraps[t])
        targets[t] = target
    return targets


def pixel_control_loss(
    *,
    actions: Int64[Tensor, "T B"],
    discounts: Float[Tensor, "T B"],
    valid: Bool[Tensor, "T B"],
    q_values: Float[Tensor, "T+1 B A h w"],
    frames: UInt8[Tensor, "T+1 B C H W"],
) -> Float[Tensor, ""]:
    """1/2 (Q - target)^2, summed over the cells and averaged over the valid transitions.

    ``actions[t]`` was chosen at frame t; ``discounts[t]``, already multiplied by the auxiliary discount, and
    ``valid[t]`` belong to its arrival at frame t + 1. An arrival at a new episode's first frame has no pixel change of
    its own: pass it as invalid. Targets bootstrap from max_a Q and carry no gradient.
    Only the Q-values of the taken actions learn.
    """
    targets = n_step_targets(pixel_rewards(frames), discounts, valid, q_values.detach().amax(dim=2))
    index = actions[:, :, None, None, None].expand(-1, -1, 1, *q_values.shape[-2:])
    taken = q_values[:-1].gather(2, index).squeeze(2)
    losses = 0.5 * (taken - targets).square().sum(dim=(2, 3))
    return torch.where(valid, losses, 0.0).sum() / valid.sum().clamp(min=1)
