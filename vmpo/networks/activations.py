"""The activations that a configuration can name."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn


class Tanh(nn.Tanh):
    """On the CPU by NumPy, whose tanh on one thread takes a tenth of torch's time, within 1.4 units in the last place
    (docs/performance.md)."""

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        if x.device.type != "cpu" or x.dtype != torch.float32 or torch.compiler.is_compiling():
            return x.tanh()
        return _NumpyTanh.apply(x) if torch.is_grad_enabled() else _tanh(x)


class _NumpyTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = _tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(gradient, y)


def _tanh(x: Tensor) -> Tensor:
    values = x.detach().numpy()
    return torch.from_numpy(np.tanh(values, out=np.empty_like(values)))


ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "elu": nn.ELU, "tanh": Tanh}
