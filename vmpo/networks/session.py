"""A policy as an actor on the CPU computes it: the agent's own weights, by ONNX Runtime.

A step of some environments is little work, of which torch makes many operations: its pooling also finds the indices
that only a gradient needs, its ReLUs and sums are passes of their own over the memory, and its products with few rows
are slow on some processors. ONNX Runtime takes between two fifths and three quarters of the time (docs/performance.md).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vmpo.networks.activations import Tanh
from vmpo.networks.agent import Agent, AgentInput
from vmpo.networks.cores import LSTM, FeedForward
from vmpo.networks.encoders import Encoder, PixelEncoder, ResidualBlock
from vmpo.networks.normalisers import VectorNormaliser
from vmpo.records import AgentState

IMAGES, VECTORS = 8, 64
"""Environments to a call, whatever the number of threads: images stay in the caches from layer to layer."""

OPSET, IR_VERSION = 17, 8
"""Of ONNX: old ones, which every installed version reads."""


def session_policy(agent: Agent) -> SessionPolicy | None:
    """The agent's policy in ONNX Runtime; None on a GPU and for agents that read, have a transformer or an encoder of
    the user's own: torch computes them."""
    encoder, on_cpu = agent.encoder, agent.value_readout.weight.device.type == "cpu"
    if not on_cpu or type(encoder) is not Encoder or encoder.text_names:
        return None
    return SessionPolicy(agent, encoder) if isinstance(agent.core, FeedForward | LSTM) else None


class SessionPolicy:
    """Acts as the agent does, after each change of whose weights ``forget`` must be called."""

    def __init__(self, agent: Agent, encoder: Encoder) -> None:
        self._agent, self._encoder = agent, encoder
        self._session: Any = None

    def forget(self) -> None:
        """Take over the agent's weights at the next step; now they may be locked."""
        self._session = None

    def _begin(self) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        # Threads of its own would have to be woken for each layer, or spin on the simulator's cores.
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        graph = _Graph(self._agent, self._encoder)
        self._session = onnxruntime.InferenceSession(graph.serialised(), options, ["CPUExecutionProvider"])
        self._states = graph.states

    def act(self, inputs: AgentInput, state: AgentState) -> tuple[Float[Tensor, "B P"], AgentState]:
        """The policy's parameters of one timestep, as ``Agent.act`` gives them."""
        if self._session is None:
            self._begin()
        encoder = self._encoder
        given = {f"pixels.{name}": inputs.observation[name] for name in encoder.pixel_names}
        if encoder.vector_names:
            given["vector"] = encoder.vector(inputs.observation)
        if self._agent.sees_previous:
            given["previous"] = self._agent.previous(inputs)
        if self._states:
            given |= {"first": inputs.first[:, None], **{name: state[name] for name in self._states}}
        policy, *states = self._run({name: tensor.numpy() for name, tensor in given.items()}, len(inputs.first))
        return policy, dict(zip(self._states, states, strict=True))

    @cached_property
    def _helpers(self) -> ThreadPoolExecutor | None:
        """One thread less than torch has when it is first asked."""
        count = torch.get_num_threads() - 1
        return ThreadPoolExecutor(count, thread_name_prefix="session") if count else None

    def _run(self, given: dict[str, np.ndarray], num_envs: int) -> list[Tensor]:
        size = IMAGES if self._encoder.pixel_names else VECTORS
        chunks = [{name: x[i : i + size] for name, x in given.items()} for i in range(0, num_envs, size)]
        if self._helpers is None or len(chunks) == 1:
            parts = self._each(chunks)
        else:
            share = -(-len(chunks) // torch.get_num_threads())
            mine, *others = (chunks[i : i + share] for i in range(0, len(chunks), share))
            running = [self._helpers.submit(self._each, other) for other in others]
            parts = sum((other.result() for other in running), start=self._each(mine))
        return [torch.from_numpy(np.concatenate(outputs)) for outputs in zip(*parts, strict=True)]

    def _each(self, chunks: list[dict[str, np.ndarray]]) -> list[list[np.ndarray]]:
        return [self._session.run(None, chunk) for chunk in chunks]


class _Graph:
    """An agent's acting step, operation by operation, with its weights as they are."""

    def __init__(self, agent: Agent, encoder: Encoder) -> None:
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self._inputs: list[Any] = []
        self.states: tuple[str, ...] = ()
        """Names of the core's state: inputs, and outputs behind the policy."""
        pairs = zip(encoder.pixel_names, encoder.pixels, strict=True)
        parts = [self._images(name, pixels) for name, pixels in pairs]  # type: ignore[arg-type]
        if encoder.mlp is not None:
            parts.append(self._layer(encoder.mlp.layers, self._vector(encoder.mlp.width_in, encoder.normaliser)))
        if agent.sees_previous:
            parts.append(self._input("previous", np.float32, agent.previous_width))
        x = self._add("Concat", *parts, axis=1)
        after: tuple[str, ...] = ()
        if isinstance(agent.core, LSTM):
            self.states = ("hidden", "cell")
            x, after = self._lstm(agent.core.lstm, x)
        self._outputs = (self._layer(nn.Sequential(agent.policy_hidden.layers, agent.policy_readout), x), *after)

    def serialised(self) -> bytes:
        from onnx import TensorProto, helper

        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in self._outputs]
        graph = helper.make_graph(self._nodes, "policy", self._inputs, outputs, self._weights)
        opset = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION).SerializeToString()

    def _images(self, name: str, encoder: PixelEncoder) -> str:
        x = self._add("Cast", self._input(f"pixels.{name}", encoder.spec.dtype, *encoder.spec.shape), to=1)  # float32
        if encoder.spec.layout == "HWC":
            x = self._add("Transpose", x, perm=[0, 3, 1, 2])
        if encoder.normaliser is None:
            x = self._add("Mul", x, self._weight(torch.tensor(1.0 / 255.0)))
        else:
            mean, scale = encoder.normaliser.mean_and_scale()
            x = self._add("Mul", self._add("Sub", x, self._weight(mean)), self._weight(scale))
        x = self._layer(encoder.convolutions, x)
        # The readout has them in the order of channels_last.
        x = self._add("Flatten", self._add("Transpose", x, perm=[0, 2, 3, 1]))
        return self._add("Relu", self._layer(encoder.readout, x))

    def _vector(self, width: int, normaliser: VectorNormaliser | None) -> str:
        x = self._input("vector", np.float32, width)
        if normaliser is None:
            return x
        mean, scale = normaliser.mean_and_scale()
        x = self._add("Mul", self._add("Sub", x, self._weight(mean)), self._weight(scale))
        return self._add(
            "Clip", x, *(self._weight(torch.tensor(bound)) for bound in (-normaliser.BOUND, normaliser.BOUND))
        )

    def _lstm(self, lstm: nn.LSTM, x: str) -> tuple[str, tuple[str, ...]]:
        """The output and the state after it, each layer's gates in torch's order."""
        first = self._input("first", np.bool_, 1)
        before = [
            self._split(self._input(name, np.float32, lstm.num_layers, lstm.hidden_size), lstm.num_layers)
            for name in self.states
        ]
        after = []
        for (w_x, w_h, b_x, b_h), *memory in zip(lstm.all_weights, *before, strict=True):
            zero = self._weight(torch.tensor(0.0))
            hidden, cell = (self._add("Where", first, zero, self._add("Flatten", each)) for each in memory)
            gates = self._add("Add", self._product(x, w_x, b_x), self._product(hidden, w_h, b_h))
            i, f, g, o = self._split(gates, 4)
            kept = self._add("Mul", self._add("Sigmoid", f), cell)
            cell = self._add("Add", kept, self._add("Mul", self._add("Sigmoid", i), self._add("Tanh", g)))
            x = self._add("Mul", self._add("Sigmoid", o), self._add("Tanh", cell))
            after.append((x, cell))
        axis = self._weight(torch.tensor([1]))
        stacked = (
            self._add("Concat", *(self._add("Unsqueeze", each, axis) for each in layers), axis=1)
            for layers in zip(*after, strict=True)
        )
        return x, tuple(stacked)

    def _layer(self, module: nn.Module, x: str) -> str:
        if isinstance(module, nn.Sequential):
            for layer in module:
                x = self._layer(layer, x)
            return x
        if isinstance(module, ResidualBlock):
            inner = self._layer(module.first, self._add("Relu", x))
            return self._add("Add", self._layer(module.second, self._add("Relu", inner)), x)
        if isinstance(module, nn.Linear):
            return self._product(x, module.weight, module.bias)
        if isinstance(module, nn.Conv2d):
            assert module.bias is not None
            weights = self._weight(module.weight), self._weight(module.bias)
            return self._add("Conv", x, *weights, strides=list(module.stride), pads=[*module.padding] * 2)
        if isinstance(module, nn.MaxPool2d):
            size, stride, padding = module.kernel_size, module.stride, module.padding
            return self._add("MaxPool", x, kernel_shape=[size] * 2, strides=[stride] * 2, pads=[padding] * 4)
        if isinstance(module, nn.LayerNorm):
            weights = self._weight(module.weight), self._weight(module.bias)
            return self._add("LayerNormalization", x, *weights, epsilon=module.eps)
        return self._add({nn.ReLU: "Relu", nn.ELU: "Elu", Tanh: "Tanh"}[type(module)], x)

    def _product(self, x: str, weight: Tensor, bias: Tensor) -> str:
        return self._add("Gemm", x, self._weight(weight), self._weight(bias), transB=1)

    def _split(self, x: str, count: int) -> list[str]:
        """Into equal parts along the first axis behind the batch's."""
        from onnx import helper

        outputs = [f"part{i} of {x}" for i in range(count)]
        self._nodes.append(helper.make_node("Split", [x], outputs, axis=1))
        return outputs

    def _add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        output = f"{kind}{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def _input(self, name: str, dtype: Any, *shape: int) -> str:
        from onnx import helper

        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._inputs.append(helper.make_tensor_value_info(name, kind, ["N", *shape]))
        return name

    def _weight(self, tensor: Tensor) -> str:
        from onnx import numpy_helper

        name = f"weight{len(self._weights)}"
        values = tensor.detach().contiguous()
        values = values.float() if values.is_floating_point() else values
        self._weights.append(numpy_helper.from_array(values.numpy(), name))
        return name
