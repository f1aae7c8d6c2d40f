"""What carries memory through an episode: nothing, an LSTM, or a Transformer-XL.

The only place where recurrent state is reset: where ``first`` is True, the state is forgotten before that input is
processed. ``step`` gives what an unroll of one timestep does, up to rounding.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from vmpo.config import AgentConfig
from vmpo.networks.encoders import orthogonal, recurrent
from vmpo.networks.linear import Linear
from vmpo.records import AgentState


class Core(nn.Module):
    """Maps inputs of width D to outputs of ``width``, step by step or a whole unroll at once."""

    width: int

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> AgentState:
        """The state before anything was seen: zeros, each tensor ``[B, ...]``."""
        raise NotImplementedError

    def unroll(
        self, x: Float[Tensor, "T B D"], first: Bool[Tensor, "T B"], state: AgentState
    ) -> tuple[Float[Tensor, "T B width"], AgentState]:
        """Outputs of T consecutive timesteps and the state after the last."""
        raise NotImplementedError

    def step(
        self, x: Float[Tensor, "B D"], first: Bool[Tensor, " B"], state: AgentState
    ) -> tuple[Float[Tensor, "B width"], AgentState]:
        """Output of one timestep and the state after it."""
        y, state = self.unroll(x[None], first[None], state)
        return y[0], state


class FeedForward(Core):
    """No memory: the input is the output."""

    def __init__(self, width_in: int):
        super().__init__()
        self.width = width_in

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> AgentState:
        return {}

    def unroll(
        self, x: Float[Tensor, "T B D"], first: Bool[Tensor, "T B"], state: AgentState
    ) -> tuple[Float[Tensor, "T B width"], AgentState]:
        return x, state

    def step(
        self, x: Float[Tensor, "B D"], first: Bool[Tensor, " B"], state: AgentState
    ) -> tuple[Float[Tensor, "B width"], AgentState]:
        return x, state


class LSTM(Core):
    """Stacked LSTM layers (App. F: one to three of 256 units).

    State: ``hidden`` and ``cell``, each ``[B, layers, units]``. Gradients flow back through time up to a reset.
    """

    def __init__(self, width_in: int, layers: int, units: int):
        super().__init__()
        self.lstm = recurrent(nn.LSTM(width_in, units, layers))
        self.width = units

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> AgentState:
        shape = (batch_size, self.lstm.num_layers, self.lstm.hidden_size)
        return {"hidden": torch.zeros(shape, device=device), "cell": torch.zeros(shape, device=device)}

    def unroll(
        self, x: Float[Tensor, "T B D"], first: Bool[Tensor, "T B"], state: AgentState
    ) -> tuple[Float[Tensor, "T B width"], AgentState]:
        """One fused call per stretch of timesteps in which no environment resets."""
        starts = [0]
        if len(x) > 1:  # The one synchronisation of an unroll; a single step needs none.
            starts += (first[1:].any(dim=1).nonzero().flatten() + 1).tolist()
        hidden, cell = (state[name].transpose(0, 1).contiguous() for name in ("hidden", "cell"))
        outputs = []
        for start, end in zip(starts, [*starts[1:], len(x)], strict=True):
            reset = first[start][None, :, None]
            hidden, cell = hidden.masked_fill(reset, 0.0), cell.masked_fill(reset, 0.0)
            output, (hidden, cell) = self.lstm(x[start:end], (hidden, cell))
            outputs.append(output)
        return torch.cat(outputs), {"hidden": hidden.transpose(0, 1), "cell": cell.transpose(0, 1)}

    def step(
        self, x: Float[Tensor, "B D"], first: Bool[Tensor, " B"], state: AgentState
    ) -> tuple[Float[Tensor, "B width"], AgentState]:
        """Cell by cell: the fused call of an unroll reorders its weights each time, which takes longer than a step."""
        reset = first[:, None, None]
        before = zip(*(state[name].masked_fill(reset, 0.0).unbind(1) for name in ("hidden", "cell")), strict=True)
        after = []
        for weights, memory in zip(self.lstm.all_weights, before, strict=True):
            after.append(torch.lstm_cell(x, memory, *weights))
            x = after[-1][0]
        hidden, cell = (torch.stack(layers, dim=1) for layers in zip(*after, strict=True))
        return x, {"hidden": hidden, "cell": cell}


class RelativeAttention(nn.Module):
    """Attention of each timestep to itself and the M before it, by content and by distance.

    Dai et al. (2019), Sec. 3.3: (q + u)·k + (q + v)·W R_distance, over sinusoidal R. Each layer has its own biases u
    and v, which start at zero. Every query has the same window, so it does not matter where an unroll begins.
    """

    distances: Tensor

    def __init__(self, config: AgentConfig):
        super().__init__()
        width, inner = config.transformer_width, config.transformer_heads * config.transformer_key_size
        self.heads, self.memory = config.transformer_heads, config.transformer_memory
        self.query = Linear(width, inner, bias=False)
        self.key_value = Linear(width, 2 * inner, bias=False)
        self.position = Linear(width, inner, bias=False)
        self.output = Linear(inner, width, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(self.heads, 1, config.transformer_key_size))
        self.position_bias = nn.Parameter(torch.zeros(self.heads, 1, config.transformer_key_size))
        # From the oldest key of a window, M steps back, to the query itself, 0 steps back.
        self.register_buffer("distances", sinusoids(torch.arange(self.memory, -1, -1), width), persistent=False)

    def forward(
        self,
        queries: Float[Tensor, "B T W"],
        context: Float[Tensor, "B keys W"],
        visible: Bool[Tensor, "B 1 T keys"],
    ) -> Float[Tensor, "B T W"]:
        query = self._split_heads(self.query(queries))
        key, value = (self._split_heads(x) for x in self.key_value(context).chunk(2, dim=-1))
        position = self._split_heads(self.position(self.distances)[None])
        by_distance = (query + self.position_bias) @ position.transpose(-1, -2) / query.shape[-1] ** 0.5
        bias = window_to_keys(by_distance).masked_fill(~visible, -torch.inf)
        attended = F.scaled_dot_product_attention(query + self.content_bias, key, value, attn_mask=bias)
        return self.output(attended.transpose(1, 2).flatten(2))

    def _split_heads(self, x: Float[Tensor, "B S inner"]) -> Float[Tensor, "B heads S key"]:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def sinusoids(positions: Int64[Tensor, " S"], width: int) -> Float[Tensor, "S width"]:
    """Sines, then cosines, of wavelengths from 2 pi to 10,000 x 2 pi (Vaswani et al. 2017)."""
    exponents = torch.arange(0, width, 2, dtype=torch.float32) / width
    angles = positions[:, None] * torch.pow(10_000.0, -exponents)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[:, :width]


def window_to_keys(x: Float[Tensor, "B H T window"]) -> Float[Tensor, "B H T keys"]:
    """Shift row t right by t, so that column j of a row is key j; keys outside the row's window get minus infinity.

    The shift of Dai et al. (2019), App. B: pad, then read the same memory with rows that are one shorter.
    """
    length, window = x.shape[-2:]
    padded = F.pad(x, (0, length), value=-torch.inf).flatten(-2)
    return padded[..., :-length].unflatten(-1, (length, window + length - 1))


class TransformerLayer(nn.Module):
    """x + attention(LN(x)), then x + mlp(LN(x)): normalised on the inputs of each sub-block only (App. F)."""

    def __init__(self, config: AgentConfig):
        super().__init__()
        width = config.transformer_width
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = RelativeAttention(config)
        self.mlp = nn.Sequential(
            Linear(width, config.transformer_mlp), nn.ReLU(), Linear(config.transformer_mlp, width)
        )

    def forward(
        self,
        context: Float[Tensor, "B keys W"],
        visible: Bool[Tensor, "B 1 T keys"],
    ) -> Float[Tensor, "B T W"]:
        length = visible.shape[2]
        normalised = self.attention_norm(context)
        x = context[:, -length:] + self.attention(normalised[:, -length:], normalised, visible)
        return x + self.mlp(self.mlp_norm(x))


class TransformerXL(Core):
    """Transformer-XL (Dai et al. 2019) as in App. F and Table 6, with GPT-2's final layer norm (the paper is silent).

    State: ``memory`` ``[B, layers, M, width]``, the inputs of each layer at the last M timesteps, and ``memory_valid``
    ``[B, M]``, which of them belong to the running episode. Keys of earlier episodes are masked. Gradients flow through
    the keys of this unroll and stop at the memory. Weights start normal with deviation 0.02, the input orthogonal.
    """

    def __init__(self, width_in: int, config: AgentConfig):
        super().__init__()
        self.memory = config.transformer_memory
        self.width = config.transformer_width
        self.layers = nn.ModuleList([TransformerLayer(config) for _ in range(config.transformer_layers)])
        for module in self.layers.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        self.input = orthogonal(Linear(width_in, self.width), gain=1.0)
        self.output_norm = nn.LayerNorm(self.width)

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> AgentState:
        shape = (batch_size, len(self.layers), self.memory, self.width)
        valid = torch.zeros(batch_size, self.memory, dtype=torch.bool, device=device)
        return {"memory": torch.zeros(shape, device=device), "memory_valid": valid}

    def unroll(
        self, x: Float[Tensor, "T B D"], first: Bool[Tensor, "T B"], state: AgentState
    ) -> tuple[Float[Tensor, "T B width"], AgentState]:
        memory = state["memory"].detach()
        episode = first.T.cumsum(dim=1)
        # The memory continues episode 0 of this unroll; -1 is no episode of it.
        remembered = torch.where(state["memory_valid"], 0, -1)
        key_episode = torch.cat([remembered, episode], dim=1)
        visible = (episode[:, :, None] == key_episode[:, None, :])[:, None]
        y = self.input(x).transpose(0, 1)
        memories = []
        for index, layer in enumerate(self.layers):
            context = torch.cat([memory[:, index], y], dim=1)
            memories.append(context[:, len(x) :].detach())
            y = layer(context, visible)
        valid = (key_episode == episode[:, -1:])[:, len(x) :]
        return self.output_norm(y).transpose(0, 1), {"memory": torch.stack(memories, dim=1), "memory_valid": valid}


def make_core(width_in: int, config: AgentConfig) -> Core:
    """The core that the configuration names."""
    if config.core == "lstm":
        return LSTM(width_in, config.lstm_layers, config.lstm_units)
    if config.core == "transformer":
        return TransformerXL(width_in, config)
    return FeedForward(width_in)
