"""Products by convolution: torch's own numbers and gradients, and only where they pay."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vmpo.networks import linear
from vmpo.networks.linear import Linear


@pytest.fixture
def convolutions(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes of the images that are convolved."""
    seen: list[torch.Size] = []
    convolve = F.conv2d

    def spy(images: Tensor, *rest: Tensor | None) -> Tensor:
        seen.append(images.shape)
        return convolve(images, *rest)

    monkeypatch.setattr(linear.F, "conv2d", spy)
    return seen


@pytest.mark.parametrize("shape", [(640, 200), (21, 32, 200), (12, 56, 200)], ids=["rows", "unroll", "8 to an image"])
@pytest.mark.parametrize("bias", [True, False])
def test_many_rows_give_what_torch_gives(shape: tuple[int, ...], bias: bool, convolutions: list[torch.Size]) -> None:
    torch.manual_seed(0)
    layer = Linear(200, 160, bias=bias)
    # A view whose rows do not lie together, as gathered heads may have.
    x = torch.randn(*shape[:-1], 2 * shape[-1])[..., ::2].requires_grad_()
    weights = torch.randn(*shape[:-1], 160)

    def results(y: Tensor) -> list[Tensor]:
        return [y, *torch.autograd.grad((y * weights).sum(), [x, *layer.parameters()])]

    actual, expected = results(layer(x)), results(F.linear(x, layer.weight, layer.bias))
    assert len(convolutions) == 1
    for mine, theirs in zip(actual, expected, strict=True):
        assert mine.shape == theirs.shape
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4 * float(theirs.detach().abs().max()))


def test_doubles_are_left_to_torch(convolutions: list[torch.Size]) -> None:
    x, layer = torch.randn(640, 200, dtype=torch.float64), Linear(200, 160).double()
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    assert convolutions == []


@pytest.mark.parametrize(
    ("rows", "width"), [(64, 2048), (2048, 32), (2053, 256)], ids=["few rows", "few weights", "a prime number of rows"]
)
def test_the_rest_is_left_to_torch(rows: int, width: int, convolutions: list[torch.Size]) -> None:
    x, layer = torch.randn(rows, width), Linear(width, width)
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    assert convolutions == []
