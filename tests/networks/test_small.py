"""Small policies in NumPy: the agent's own numbers, also after new weights, and only where they are meant for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.samples import VECTOR, env_spec
from vmpo.acting.actor import _pack
from vmpo.config import AgentConfig
from vmpo.networks.agent import Agent, AgentInput
from vmpo.networks.small import LARGEST, small_policy
from vmpo.records import ArraySpec, EnvSpec

TWO_VECTORS = {**VECTOR, "more": ArraySpec(shape=(3,), dtype=np.dtype(np.float64), kind="vector")}
PIXELS = {**VECTOR, "image": ArraySpec(shape=(1, 36, 36), dtype=np.dtype(np.uint8), kind="pixels")}
NUM_ENVS = 7


def build(observation: dict[str, ArraySpec] = VECTOR, seed: int = 0, **changes: Any) -> Agent:
    torch.manual_seed(seed)
    spec = EnvSpec(observation=observation, action=env_spec().action, tasks=("task",))
    agent = Agent(spec, AgentConfig(**{"hidden": (16, 12), "head_units": 0, "pixels": "nature"} | changes), 3)
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    for normaliser in agent.normalisers:
        seen = 3.0 + torch.randn(10, 5, *normaliser.mean.shape)
        normaliser.merge(normaliser.moments(seen, torch.ones(10, 5, dtype=torch.bool)))
        normaliser.commit()
    return agent.requires_grad_(False)


def inputs(observation: dict[str, ArraySpec] = VECTOR) -> AgentInput:
    rng = np.random.default_rng(0)
    return AgentInput(
        # Some far away, where a normaliser clips.
        observation={
            name: torch.from_numpy((20.0 * rng.normal(size=(NUM_ENVS, *array.shape))).astype(array.dtype))
            for name, array in observation.items()
        },
        previous_action=torch.zeros(NUM_ENVS, 1, dtype=torch.int64),
        previous_reward=torch.zeros(NUM_ENVS),
        first=torch.zeros(NUM_ENVS, dtype=torch.bool),
    )


@pytest.mark.parametrize("observation", [VECTOR, TWO_VECTORS], ids=["one vector", "two vectors"])
@pytest.mark.parametrize(
    "changes",
    [
        {"activation": "tanh"},
        {"activation": "relu", "head_units": 9},
        {"activation": "tanh", "normalise_observations": True},
    ],
    ids=["tanh", "relu and a head", "normalised"],
)
def test_numpy_gives_what_the_agent_gives(observation: dict[str, ArraySpec], changes: dict[str, Any]) -> None:
    agent, seen = build(observation, **changes), inputs(observation)
    small = small_policy(agent, NUM_ENVS)
    assert small is not None
    expected, _ = agent.act(seen, {})
    actual, state = small.act(seen, {})
    assert actual.dtype == torch.float32
    assert state == {}
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_weights_that_are_loaded_into_the_agent_arrive() -> None:
    agent, other = build(normalise_observations=True), build(seed=1, normalise_observations=True)
    _pack(agent)
    small = small_policy(agent, NUM_ENVS)
    assert small is not None
    before, _ = small.act(inputs(), {})
    agent.load_state_dict(other.state_dict())
    after, _ = small.act(inputs(), {})
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, other.act(inputs(), {})[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("observation", "changes"),
    [
        (PIXELS, {}),
        (VECTOR, {"core": "lstm"}),
        (VECTOR, {"layer_norm": True}),
        (VECTOR, {"activation": "elu"}),
        (VECTOR, {"hidden": (64, LARGEST // NUM_ENVS // 64 + 1)}),
    ],
    ids=["pixels", "memory", "layer norm", "unknown activation", "large"],
)
def test_everything_else_is_left_to_torch(observation: dict[str, ArraySpec], changes: dict[str, Any]) -> None:
    assert small_policy(build(observation, **changes), NUM_ENVS) is None
