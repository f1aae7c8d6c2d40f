"""A small feed-forward policy as an actor on the CPU computes it: the agent's own weights, by NumPy.

Between two steps of a simulator torch's code has left the processor's caches, and an operation on 64 x 64 numbers costs
its call, not its arithmetic. Simulators of such tasks are NumPy themselves, which then stays where it is: the step of
an actor with 64 CartPoles takes 0.6 of the time (docs/performance.md). Larger networks are faster in torch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vmpo.networks.activations import Tanh
from vmpo.networks.agent import Agent, AgentInput
from vmpo.networks.cores import FeedForward
from vmpo.networks.encoders import Encoder
from vmpo.networks.normalisers import VectorNormaliser
from vmpo.records import AgentState

LARGEST = 64**3
"""Multiplications of a layer, for all environments, up to which NumPy's product keeps to one thread."""

Layer = Callable[[np.ndarray], np.ndarray]

ACTIVATIONS: dict[type[nn.Module], Layer] = {Tanh: np.tanh, nn.ReLU: lambda x: np.maximum(x, 0.0)}


class SmallPolicy:
    """Acts as the agent that it was made from does. Arrays are views of that agent's tensors, so that weights which are
    loaded into it arrive here too."""

    def __init__(self, encoder: Encoder, layers: list[Layer]) -> None:
        self._names, self._layers = encoder.vector_names, layers

    def act(self, inputs: AgentInput, state: AgentState) -> tuple[Float[Tensor, "B P"], AgentState]:
        """The policy's parameters of one timestep, as ``Agent.act`` gives them."""
        parts = [inputs.observation[name].numpy() for name in self._names]
        x = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
        x = x.astype(np.float32, copy=False)
        # What is not finite is dealt with where its unroll ends (acting/faults.py), not warned of at every step.
        with np.errstate(all="ignore"):
            for layer in self._layers:
                x = layer(x)
        return torch.from_numpy(x), state


def small_policy(agent: Agent, num_envs: int) -> SmallPolicy | None:
    """The agent's policy in NumPy if it is small, has no memory and sees vectors alone; else None."""
    encoder = agent.encoder
    if agent.value_readout.weight.device.type != "cpu" or not isinstance(agent.core, FeedForward):
        return None
    if not isinstance(encoder, Encoder) or encoder.mlp is None or encoder.pixel_names or encoder.text_names:
        return None
    modules = [*encoder.mlp.layers, *agent.policy_hidden.layers, agent.policy_readout]
    layers = [_layer(module, num_envs) for module in modules]
    if encoder.normaliser is not None:
        layers.insert(0, _normalise(encoder.normaliser))
    known = [layer for layer in layers if layer is not None]
    return SmallPolicy(encoder, known) if len(known) == len(layers) else None


def _layer(module: nn.Module, num_envs: int) -> Layer | None:
    if not isinstance(module, nn.Linear):
        return ACTIVATIONS.get(type(module))
    if num_envs * module.weight.numel() > LARGEST:
        return None
    weight, bias = module.weight.detach().numpy().T, module.bias.detach().numpy()
    return lambda x: x @ weight + bias


def _normalise(normaliser: VectorNormaliser) -> Layer:
    mean, var = normaliser.mean.numpy(), normaliser.var.numpy()

    def normalise(x: np.ndarray) -> np.ndarray:
        scale = 1.0 / np.sqrt(var + 1e-8)
        return ((x - mean.astype(np.float32)) * scale.astype(np.float32)).clip(-10.0, 10.0)

    return normalise
