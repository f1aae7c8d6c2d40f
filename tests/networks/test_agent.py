"""The whole agent: step equals unroll, what it sees of the step before, the shapes of its heads, and who learns."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from vmpo.config import AgentConfig
from vmpo.networks.agent import Agent, AgentInput, encode_action, encode_reward
from vmpo.records import ActionSpec, ArraySpec, ContinuousActions, DiscreteActions, EnvSpec, tree_map

DISCRETE = DiscreteActions(sizes=(3, 2))
CONTINUOUS = ContinuousActions(low=-np.ones(4), high=np.ones(4))
SMALL = AgentConfig(
    resnet_channels=(4, 8, 8), pixel_features=16, hidden=(12,), text_units=5, head_units=9,
    lstm_units=6, transformer_layers=2, transformer_memory=3, transformer_width=8, transformer_heads=2,
    transformer_key_size=3, transformer_mlp=10,
)  # fmt: skip
CORES = ["none", "lstm", "transformer"]


def spec(action: ActionSpec = DISCRETE, tasks: tuple[str, ...] = ("one", "two")) -> EnvSpec:
    observation = {
        "image": ArraySpec(shape=(3, 12, 16), dtype=np.dtype(np.uint8), kind="pixels"),
        "joints": ArraySpec(shape=(4,), dtype=np.dtype(np.float32), kind="vector"),
        "say": ArraySpec(shape=(3,), dtype=np.dtype(np.int64), kind="text", vocabulary=50),
    }
    return EnvSpec(observation=observation, action=action, tasks=tasks)


def inputs(action: ActionSpec = DISCRETE, length: int = 8, batch: int = 3) -> AgentInput:
    g = torch.Generator().manual_seed(0)
    if isinstance(action, DiscreteActions):
        previous = torch.stack([torch.randint(0, n, (length, batch), generator=g) for n in action.sizes], dim=-1)
    else:
        previous = torch.randn(length, batch, action.width, generator=g)
    return AgentInput(
        observation={
            "image": torch.randint(0, 256, (length, batch, 3, 12, 16), dtype=torch.uint8, generator=g),
            "joints": torch.randn(length, batch, 4, generator=g),
            "say": torch.randint(0, 50, (length, batch, 3), generator=g),
        },
        previous_action=previous,
        previous_reward=torch.randn(length, batch, generator=g),
        first=torch.rand(length, batch, generator=g) < 0.3,
    )


def build(core: str, action: ActionSpec = DISCRETE, **changes) -> Agent:
    torch.manual_seed(0)
    agent = Agent(spec(action), dataclasses.replace(SMALL, core=core, **changes), num_parameters=5)
    with torch.no_grad():
        for parameter in agent.core.parameters():
            parameter.normal_(std=0.5)
    return agent


@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize("core", CORES)
def test_unroll_equals_repeated_steps(core, action):
    agent, seen = build(core, action), inputs(action)
    state = agent.initial_state(3)
    output, final = agent.unroll(seen, state)
    assert (output.policy.shape, output.values.shape) == ((8, 3, 5), (8, 3, 2))
    assert output.features.shape == (8, 3, agent.core.width)
    for t in range(8):
        step, state = agent.step(tree_map(lambda x, t=t: x[t], seen), state)
        for name in ("policy", "values", "features"):
            torch.testing.assert_close(getattr(step, name), getattr(output, name)[t], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(state, final, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("changed", ["previous_action", "previous_reward"])
@pytest.mark.parametrize("core", CORES)
def test_previous_action_and_reward_count_except_at_first(core, changed):
    agent, seen = build(core), tree_map(lambda x: x[0], inputs())
    sizes = torch.tensor(DISCRETE.sizes)
    other = (seen.previous_action + 1) % sizes if changed == "previous_action" else seen.previous_reward + 1.0
    for first in (False, True):
        before = dataclasses.replace(seen, first=torch.full((3,), first))
        after = dataclasses.replace(before, **{changed: other})
        outputs = [agent.step(i, agent.initial_state(3))[0].features for i in (before, after)]
        unchanged = first or core == "none"
        assert torch.equal(*outputs) == unchanged


def test_previous_action_and_reward_can_be_left_out():
    widths = [build("lstm", previous_action_and_reward=flag).core.lstm.input_size for flag in (True, False)]
    assert widths == [16 + 12 + 5 + (3 + 2) + 1, 16 + 12 + 5]
    assert build("lstm", CONTINUOUS).core.lstm.input_size == 16 + 12 + 5 + 4 + 1


def test_discrete_actions_are_encoded_as_one_hot_vectors_side_by_side():
    encoded = encode_action(torch.tensor([[[2, 0]], [[0, 1]]]), DISCRETE)
    assert encoded.tolist() == [[[0, 0, 1, 1, 0]], [[1, 0, 0, 0, 1]]]
    assert encoded.dtype == torch.float32


def test_continuous_actions_are_encoded_as_they_are_up_to_10():
    assert encode_action(torch.tensor([-99.0, -1.5, 0.0, 42.0]), CONTINUOUS).tolist() == [-10.0, -1.5, 0.0, 10.0]


def test_rewards_are_compressed_in_order():
    encoded = encode_reward(torch.tensor([-1000.0, -0.01, 0.0, 0.01, 1000.0])).flatten()
    torch.testing.assert_close(encoded, torch.tensor([-6.9088, -0.00995, 0.0, 0.00995, 6.9088]), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("core", CORES)
def test_nothing_before_a_reset_changes_what_follows(core):
    agent, seen = build(core), inputs()
    first = torch.zeros_like(seen.first)
    first[4] = True
    seen = dataclasses.replace(seen, first=first)
    garbled = tree_map(lambda x: torch.cat([x[:4].flip(0), x[4:]]), seen)
    garbled = dataclasses.replace(garbled, previous_reward=garbled.previous_reward + 3.0 * first)
    output, changed = (agent.unroll(i, agent.initial_state(3))[0].policy for i in (seen, garbled))
    torch.testing.assert_close(output[4:], changed[4:], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(output[:4], changed[:4], atol=1e-3)


def test_heads_have_one_hidden_layer_and_a_readout_with_zero_bias():
    agent = build("lstm")
    assert agent.policy_hidden.width == agent.value_hidden.width == 9
    assert agent.policy_readout.weight.shape == (5, 9)
    assert agent.value_readout.weight.shape == (2, 9)
    assert not agent.policy_readout.bias.any()
    assert not agent.value_readout.bias.any()
    torch.testing.assert_close(agent.value_readout.weight @ agent.value_readout.weight.T, torch.eye(2))
    names = [name for name, value in agent.state_dict().items() if value.shape == (2, 9)]
    assert names == ["value_readout.weight"]


def test_without_head_units_readouts_are_linear_in_the_features():
    agent = build("lstm", head_units=0)
    output, _ = agent.unroll(inputs(), agent.initial_state(3))
    torch.testing.assert_close(output.policy, agent.policy_readout(output.features))
    torch.testing.assert_close(output.values, agent.value_readout(output.features))


def test_policy_init_scale_multiplies_the_readout():
    plain, scaled = build("none"), build("none", policy_init_scale=0.01)
    torch.testing.assert_close(scaled.policy_readout.weight, 0.01 * plain.policy_readout.weight)
    torch.testing.assert_close(scaled.value_readout.weight, plain.value_readout.weight)


@pytest.mark.parametrize("core", CORES)
def test_every_parameter_learns_from_policy_and_value(core):
    agent = build(core)
    output, _ = agent.unroll(inputs(), agent.initial_state(3))
    heads = {"policy": output.policy, "value": output.values}
    for name, out in heads.items():
        agent.zero_grad()
        out.square().sum().backward(retain_graph=True)
        learning = {n for n, p in agent.named_parameters() if p.grad is not None and p.grad.any()}
        other = "value" if name == "policy" else "policy"
        assert learning == {n for n, _ in agent.named_parameters() if not n.startswith(other)}


def test_observations_are_counted_where_valid_and_used_after_commit():
    agent, seen = build("none", normalise_observations=True), inputs()
    valid = ~seen.first
    before = agent.unroll(seen, {})[0].features
    images, vectors = agent.normalisers
    for normaliser, moments in zip((images, vectors), agent.observation_moments(seen.observation, valid), strict=True):
        normaliser.merge(moments)
    assert torch.equal(agent.unroll(seen, {})[0].features, before)
    vectors.commit()
    joints = seen.observation["joints"]
    torch.testing.assert_close(vectors.mean, joints[valid].double().mean(dim=0))
    whitened = (joints - joints[valid].mean(0)) / joints[valid].std(0, correction=0)
    expected = build("none").unroll(dataclasses.replace(seen, observation={**seen.observation, "joints": whitened}), {})
    torch.testing.assert_close(agent.unroll(seen, {})[0].features, expected[0].features, atol=1e-4, rtol=1e-4)
    images.commit()
    assert not torch.allclose(agent.unroll(seen, {})[0].features, expected[0].features, atol=0.1)
    assert build("none").observation_moments(seen.observation, valid) == []


def test_normalisers_and_pixel_control_head_exist_where_asked_for():
    assert build("none").normalisers == []
    assert build("none").pixel_control_head is None
    agent = build("none", normalise_observations=True)
    assert agent.normalisers == [agent.encoder.pixels[0].normaliser, agent.encoder.normaliser]
    single = Agent(spec(DiscreteActions(sizes=(3,))), SMALL, num_parameters=3, pixel_control=True)
    output, _ = single.unroll(inputs(DiscreteActions(sizes=(3,))), single.initial_state(3))
    assert single.pixel_control_head is not None
    assert single.pixel_control_head(output.features).shape == (8, 3, 3, 3, 4)
