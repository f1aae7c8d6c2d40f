"""Linear layers whose products use the whole width of any CPU's vector units."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

ONEDNN = torch.backends.mkldnn.is_available()
"""Whether torch has it, under its former name."""

LARGE = 2**24
"""Multiplications from which on a convolution pays; and it stores the weights in its own order each time."""

MANY = 256
"""Rows from which on that is little beside them."""

WIDTH = 32
"""Rows to an image, at most."""


class Linear(nn.Linear):
    """As torch's, but on a CPU many rows are the pixels of images that are convolved, one pixel at a time.

    Torch leaves products of float32 matrices to MKL, which takes a general path on processors that are not Intel's,
    and convolutions to oneDNN, which asks for AVX-512: twice as fast on the AMD where it was measured
    (docs/performance.md).
    """

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch width"]:
        if x.device.type != "cpu" or x.dtype != torch.float32 or torch.compiler.is_compiling() or not ONEDNN:
            return F.linear(x, self.weight, self.bias)
        rows = x.numel() // self.in_features
        width = math.gcd(rows, WIDTH)
        if rows < MANY or rows * self.weight.numel() < LARGE or width < WIDTH // 4:
            return F.linear(x, self.weight, self.bias)
        # Images of one line with the channels last, which is how the rows lie in memory: nothing is copied.
        images = x.reshape(rows // width, 1, width, self.in_features).permute(0, 3, 1, 2)
        maps = F.conv2d(images, self.weight[:, :, None, None], self.bias)
        return maps.permute(0, 2, 3, 1).reshape(*x.shape[:-1], self.out_features)
