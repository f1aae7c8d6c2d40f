"""tanh by NumPy: torch's values and gradients, whatever asks for them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vmpo.networks.activations import Tanh


def inputs() -> torch.Tensor:
    spread = torch.logspace(-30, 1.5, 500)
    return torch.cat([-spread, torch.zeros(24), spread]).view(128, 8)


def test_tanh_is_exact_to_the_last_digits():
    exact = np.tanh(inputs().double().numpy())
    np.testing.assert_allclose(Tanh()(inputs()).numpy(), exact, rtol=2.5e-7)
    special = Tanh()(torch.tensor([torch.inf, -torch.inf, torch.nan]))
    np.testing.assert_array_equal(special.numpy(), [1.0, -1.0, np.nan])


def test_its_gradients_are_those_of_torch():
    ours, theirs = (inputs().t().requires_grad_() for _ in range(2))
    gradient = torch.randn(8, 128)
    Tanh()(ours).backward(gradient)
    theirs.tanh().backward(gradient)
    assert ours.grad is not None
    assert theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_every_mode_has_the_same_values(mode):
    with mode():
        values = Tanh()(inputs())
    torch.testing.assert_close(values, inputs().tanh(), rtol=2.5e-7, atol=0.0)
    torch.testing.assert_close(Tanh()(inputs().double()), inputs().double().tanh(), rtol=1e-15, atol=0.0)


def test_an_exported_graph_holds_the_operation_itself():
    program = torch.export.export(torch.nn.Sequential(Tanh()), (inputs(),), strict=False)
    assert "aten.tanh.default" in str(program.graph)
    torch.testing.assert_close(program.module()(inputs()), Tanh()(inputs()), rtol=2.5e-7, atol=0.0)
