"""Cores: step equals unroll whatever the resets, nothing crosses a reset, and attention equals its formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from vmpo.config import AgentConfig
from vmpo.networks.cores import Core, RelativeAttention, TransformerLayer, TransformerXL, make_core
from vmpo.records import AgentState

WIDTH = 7


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def transformer(layers: int = 2, memory: int = 5) -> AgentConfig:
    return AgentConfig(
        core="transformer", transformer_layers=layers, transformer_memory=memory, transformer_heads=2,
        transformer_key_size=3, transformer_mlp=10, transformer_width=8,
    )  # fmt: skip


CONFIGS = {
    "none": AgentConfig(core="none"),
    **{f"lstm-{n}": AgentConfig(core="lstm", lstm_layers=n, lstm_units=6) for n in (1, 2, 3)},
    "transformer-short-memory": transformer(memory=3),
    "transformer-long-memory": transformer(memory=20),
    "transformer-no-memory": transformer(memory=0),
}
RECURRENT = [name for name in CONFIGS if name not in ("none", "transformer-no-memory")]


def build(config: AgentConfig, seed: int = 0) -> Core:
    """A core with large weights, so that every path through it is visible in the outputs."""
    torch.manual_seed(seed)
    core = make_core(WIDTH, config)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.normal_(std=0.5)
    return core


def inputs(length: int = 12, batch: int = 4, resets: float = 0.2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(length, batch, WIDTH, generator=generator)
    return x, torch.rand(length, batch, generator=generator) < resets


def warm_state(core: Core, batch: int = 4) -> AgentState:
    """A state in the middle of episodes of different ages."""
    x, first = inputs(9, batch)
    return {k: v.detach() for k, v in core.unroll(x.flip(0), first, core.initial_state(batch))[1].items()}


def steps(core: Core, x: Tensor, first: Tensor, state: AgentState) -> tuple[Tensor, AgentState]:
    outputs = []
    for t in range(len(x)):
        y, state = core.step(x[t], first[t], state)
        outputs.append(y)
    return torch.stack(outputs), state


@pytest.mark.parametrize("resets", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("name", CONFIGS)
def test_unroll_equals_repeated_steps_across_resets(name, resets):
    core = build(CONFIGS[name])
    x, first = inputs(resets=resets)
    state = warm_state(core)
    y, final = core.unroll(x, first, state)
    expected, expected_final = steps(core, x, first, state)
    assert y.shape == (12, 4, core.width)
    torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(final, expected_final, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cut", [1, 5, 11])
@pytest.mark.parametrize("name", CONFIGS)
def test_two_unrolls_equal_one_long_one(name, cut):
    core = build(CONFIGS[name])
    x, first = inputs()
    state = warm_state(core)
    y, final = core.unroll(x, first, state)
    y_one, middle = core.unroll(x[:cut], first[:cut], state)
    y_two, end = core.unroll(x[cut:], first[cut:], middle)
    torch.testing.assert_close(torch.cat([y_one, y_two]), y, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(end, final, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", RECURRENT)
def test_a_reset_equals_a_fresh_start_of_that_environment_alone(name):
    core = build(CONFIGS[name])
    x, _ = inputs()
    first = torch.zeros(12, 4, dtype=torch.bool)
    first[5, 2] = True
    y, final = core.unroll(x, first, warm_state(core))
    fresh, fresh_final = core.unroll(x[5:, 2:3], first[5:, 2:3], core.initial_state(1))
    torch.testing.assert_close(y[5:, 2:3], fresh, atol=1e-5, rtol=1e-5)
    without, _ = core.unroll(x, torch.zeros_like(first), warm_state(core))
    others = [0, 1, 3]
    torch.testing.assert_close(y[:, others], without[:, others], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(y[:5], without[:5], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(y[5, 2], without[5, 2], atol=1e-3)
    more, _ = inputs(3)
    none = torch.zeros(3, 4, dtype=torch.bool)
    y, _ = core.unroll(more, none, final)
    fresh, _ = core.unroll(more[:, 2:3], none[:, 2:3], fresh_final)
    torch.testing.assert_close(y[:, 2:3], fresh, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", RECURRENT)
def test_no_gradient_crosses_a_reset(name):
    core = build(CONFIGS[name])
    x, _ = inputs()
    x.requires_grad_()
    first = torch.zeros(12, 4, dtype=torch.bool)
    first[6, 1] = True
    y, _ = core.unroll(x, first, warm_state(core))
    (gradient,) = torch.autograd.grad(y[6:].square().sum(), x)
    assert not gradient[:6, 1].any()
    assert gradient[5, [0, 2, 3]].any(dim=-1).all()
    assert gradient[6:].any(dim=-1).all()


@pytest.mark.parametrize("name", RECURRENT)
def test_the_past_of_an_episode_reaches_its_present_but_the_future_does_not(name):
    core = build(CONFIGS[name])
    x, _ = inputs()
    x.requires_grad_()
    y, _ = core.unroll(x, torch.zeros(12, 4, dtype=torch.bool), core.initial_state(4))
    (gradient,) = torch.autograd.grad(y[6].square().sum(), x)
    assert gradient[4:7].any(dim=-1).all()
    assert not gradient[7:].any()


def test_lstm_runs_once_per_stretch_without_resets():
    core = build(CONFIGS["lstm-2"])
    calls = []
    core.lstm.register_forward_hook(lambda _, arguments, __: calls.append(len(arguments[0])))
    x, _ = inputs()
    first = torch.zeros(12, 4, dtype=torch.bool)
    first[0, 0] = first[3, 1] = first[3, 2] = first[11, 0] = True
    core.unroll(x, first, core.initial_state(4))
    assert calls == [3, 8, 1]


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_lstm_layers_pass_their_first_input_on(layers):
    """PyTorch's own initialisation leaves 0.15, 0.02 and 0.003 of a unit input."""
    core = make_core(512, AgentConfig(core="lstm", lstm_layers=layers))
    outputs, _ = core.step(torch.randn(64, 512), torch.ones(64, dtype=torch.bool), core.initial_state(64))
    assert 0.1 < outputs.std(dim=0).mean() < 0.3


@pytest.mark.parametrize("memory", [1, 4])
def test_transformer_window_is_its_memory_and_no_more(memory):
    core = build(transformer(layers=1, memory=memory))
    x, _ = inputs()
    x.requires_grad_()
    y, _ = core.unroll(x, torch.zeros(12, 4, dtype=torch.bool), core.initial_state(4))
    (gradient,) = torch.autograd.grad(y[9].square().sum(), x)
    seen = gradient.any(dim=-1).all(dim=1)
    assert seen.tolist() == [9 - memory <= t <= 9 for t in range(12)]
    assert not gradient[: 9 - memory].any()


def test_transformer_window_reaches_into_the_memory_of_the_last_unroll():
    core = build(transformer(layers=1, memory=4))
    x, first = inputs(1, resets=0.0)
    state = core.initial_state(4)
    state["memory_valid"][:] = True
    before, _ = core.step(x[0], first[0], state)
    for slot in range(4):
        memory = state["memory"].clone()
        memory[:, 0, slot, 0] += 1.0
        after, _ = core.step(x[0], first[0], {**state, "memory": memory})
        assert ((after - before).abs() > 1e-6).any(dim=-1).all()
        hidden = {"memory": memory, "memory_valid": torch.zeros(4, 4, dtype=torch.bool)}
        alone, _ = core.step(x[0], first[0], core.initial_state(4))
        torch.testing.assert_close(core.step(x[0], first[0], hidden)[0], alone)


def test_transformer_memory_carries_no_gradient_between_unrolls():
    core = build(transformer())
    x, first = inputs(resets=0.0)
    x.requires_grad_()
    _, state = core.unroll(x[:6], first[:6], core.initial_state(4))
    assert not any(value.requires_grad for value in state.values())
    attached = {**state, "memory": state["memory"].clone().requires_grad_()}
    y, _ = core.unroll(x[6:], first[6:], attached)
    (gradient,) = torch.autograd.grad(y[3].square().sum(), x, retain_graph=True)
    assert gradient[6:10].any(dim=-1).all()
    assert torch.autograd.grad(y.square().sum(), attached["memory"], allow_unused=True) == (None,)


def test_transformer_is_finite_when_a_timestep_sees_only_itself():
    core = build(transformer())
    x, first = inputs(resets=1.0)
    y, _ = core.unroll(x, first, core.initial_state(4))
    y.square().sum().backward()
    assert y.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in core.parameters())


def test_relative_attention_equals_its_formula():
    """Dai et al. (2019), the sum of their terms a to d, one query and one key at a time."""
    config, length, batch = transformer(memory=3), 4, 2
    torch.manual_seed(0)
    attention = RelativeAttention(config)
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    context = torch.randn(batch, 3 + length, 8)
    visible = torch.rand(batch, 1, length, 3 + length) < 0.7
    visible[:, 0, range(length), range(3, 3 + length)] = True
    actual = attention(context[:, 3:], context, visible).detach().numpy()
    p = {name: value.detach().numpy() for name, value in attention.named_parameters()}
    expected = np.zeros((batch, length, 8))
    for b, i in np.ndindex(batch, length):
        heads = []
        for h in range(2):
            rows = slice(3 * h, 3 * h + 3)
            query = p["query.weight"][rows] @ context[b, 3 + i].numpy()
            scores, values = [], []
            for j in range(i, i + 4):
                if not visible[b, 0, i, j]:
                    continue
                angles = (3 + i - j) / 10_000 ** (np.arange(0, 8, 2) / 8)
                position = p["position.weight"][rows] @ np.concatenate([np.sin(angles), np.cos(angles)])
                key = p["key_value.weight"][:6][rows] @ context[b, j].numpy()
                by_content = (query + p["content_bias"][h, 0]) @ key
                scores.append((by_content + (query + p["position_bias"][h, 0]) @ position) / np.sqrt(3))
                values.append(p["key_value.weight"][6:][rows] @ context[b, j].numpy())
            weights = np.exp(scores) / np.exp(scores).sum()
            heads.append(weights @ np.array(values))
        expected[b, i] = p["output.weight"] @ np.concatenate(heads)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_transformer_layer_normalises_the_inputs_of_both_sub_blocks():
    torch.manual_seed(0)
    layer = TransformerLayer(transformer(memory=3))
    context = 5.0 * torch.randn(2, 7, 8)
    visible = torch.ones(2, 1, 4, 7, dtype=torch.bool)
    normalised = functional.layer_norm(context, (8,))
    x = context[:, 3:] + layer.attention(normalised[:, 3:], normalised, visible)
    torch.testing.assert_close(layer(context, visible), x + layer.mlp(functional.layer_norm(x, (8,))))


def test_transformer_residual_stream_is_normalised_at_its_end_only():
    core = make_core(WIDTH, transformer(layers=1))
    layer = core.layers[0]
    for parameter in (layer.attention.output.weight, layer.mlp[2].weight):
        torch.nn.init.zeros_(parameter)
    x, first = inputs(resets=0.0)
    y, _ = core.unroll(x, first, core.initial_state(4))
    torch.testing.assert_close(y, core.output_norm(core.input(x)))


def test_initial_states_are_zeros_of_the_documented_shapes():
    assert build(CONFIGS["none"]).initial_state(3) == {}
    lstm = build(CONFIGS["lstm-3"]).initial_state(3)
    assert {name: tuple(value.shape) for name, value in lstm.items()} == {"hidden": (3, 3, 6), "cell": (3, 3, 6)}
    state = build(transformer(layers=2, memory=5)).initial_state(3)
    assert {k: tuple(v.shape) for k, v in state.items()} == {"memory": (3, 2, 5, 8), "memory_valid": (3, 5)}
    assert not any(value.any() for value in (*lstm.values(), *state.values()))
    assert state["memory_valid"].dtype == torch.bool


def test_transformer_has_the_layers_of_table_6():
    core = make_core(256, AgentConfig(core="transformer"))
    assert isinstance(core, TransformerXL)
    assert core.width == 256
    attention = 256 * 128 * 5 + 2 * 128
    mlp = 256 * 512 + 512 + 512 * 256 + 256
    norms = 4 * 256
    ends = 256 * 256 + 256 + 2 * 256
    assert sum(p.numel() for p in core.parameters()) == 8 * (attention + mlp + norms) + ends
