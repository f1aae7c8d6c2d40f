"""Policies in ONNX Runtime: the agent's own numbers, also after new weights, and only where they are meant for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from vmpo.config import AgentConfig
from vmpo.networks import session
from vmpo.networks.agent import Agent, AgentInput
from vmpo.networks.encoders import Encoder
from vmpo.networks.session import session_policy
from vmpo.records import AgentState, ArraySpec, DiscreteActions, EnvSpec, Observation

IMAGE = {"image": ArraySpec(shape=(2, 42, 42), dtype=np.dtype(np.uint8), kind="pixels")}
COLOUR = {"image": ArraySpec(shape=(44, 40, 3), dtype=np.dtype(np.uint8), kind="pixels", layout="HWC")}
JOINTS = {"joints": ArraySpec(shape=(5,), dtype=np.dtype(np.float64), kind="vector")}
WORDS = {"words": ArraySpec(shape=(4,), dtype=np.dtype(np.int64), kind="text", vocabulary=9)}
NUM_ENVS = session.IMAGES * 2 + 3


def build(observation: dict[str, ArraySpec], seed: int = 0, **changes: Any) -> Agent:
    torch.manual_seed(seed)
    small = dict(pixels="nature", pixel_features=16, resnet_channels=(4, 8), hidden=(12,), head_units=6, lstm_units=7)
    spec = EnvSpec(observation=observation, action=DiscreteActions(sizes=(3, 2)), tasks=("task",))
    agent = Agent(spec, AgentConfig(**small | changes), 5)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    seen = inputs(observation, seed=seed + 1).observation
    rows = {name: value[None] for name, value in seen.items()}
    for normaliser, moments in zip(
        agent.normalisers, agent.observation_moments(rows, torch.ones(1, NUM_ENVS, dtype=torch.bool)), strict=True
    ):
        normaliser.merge(moments)
        normaliser.commit()
    return agent.requires_grad_(False)


def inputs(observation: dict[str, ArraySpec], seed: int = 0) -> AgentInput:
    rng = np.random.default_rng(seed)

    def draw(spec: ArraySpec) -> torch.Tensor:
        values = rng.integers(0, 256, (NUM_ENVS, *spec.shape)) if spec.kind == "pixels" else 20.0 * rng.normal(
            size=(NUM_ENVS, *spec.shape)
        )  # fmt: skip
        return torch.from_numpy(values.astype(spec.dtype))

    return AgentInput(
        observation={name: draw(spec) for name, spec in observation.items()},
        previous_action=torch.from_numpy(rng.integers(0, 2, (NUM_ENVS, 2))),
        previous_reward=torch.from_numpy(rng.normal(size=NUM_ENVS).astype(np.float32)),
        first=torch.from_numpy(rng.random(NUM_ENVS) < 0.3),
    )


def remembered(agent: Agent) -> AgentState:
    return {name: torch.randn_like(tensor) for name, tensor in agent.initial_state(NUM_ENVS).items()}


def assert_equal(agent: Agent, policy: session.SessionPolicy, seen: AgentInput) -> None:
    state = remembered(agent)
    expected, expected_state = agent.act(seen, state)
    actual, actual_state = policy.act(seen, state)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(actual_state, expected_state, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("observation", "changes"),
    [
        (IMAGE, {}),
        (COLOUR, {"pixels": "resnet"}),
        (IMAGE, {"normalise_observations": True, "core": "lstm", "lstm_layers": 2}),
        (COLOUR | JOINTS, {"normalise_observations": True, "layer_norm": True, "activation": "elu"}),
        (IMAGE, {"core": "lstm", "previous_action_and_reward": False, "activation": "tanh"}),
        (IMAGE, {"head_units": 0}),
        (JOINTS, {"normalise_observations": True, "activation": "tanh"}),
        (JOINTS | {"more": JOINTS["joints"]}, {"hidden": (), "core": "lstm"}),
    ],
    ids=[
        "nature",
        "resnet",
        "two LSTMs, centred",
        "image and vector",
        "LSTM alone",
        "no head",
        "vector",
        "vectors to an LSTM",
    ],
)
def test_it_gives_what_the_agent_gives(
    observation: dict[str, ArraySpec], changes: dict[str, Any], threads: int
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        agent = build(observation, **changes)
        policy = session_policy(agent)
        assert policy is not None
        assert_equal(agent, policy, inputs(observation))
    finally:
        torch.set_num_threads(before)


def test_new_weights_arrive_once_the_old_are_forgotten() -> None:
    agent, other = build(IMAGE, normalise_observations=True), build(IMAGE, seed=7, normalise_observations=True)
    policy = session_policy(agent)
    assert policy is not None
    before, _ = policy.act(inputs(IMAGE), {})
    agent.load_state_dict(other.state_dict())
    assert torch.equal(policy.act(inputs(IMAGE), {})[0], before)
    policy.forget()
    assert not torch.allclose(policy.act(inputs(IMAGE), {})[0], before)
    assert_equal(other, policy, inputs(IMAGE))


def test_it_is_the_same_to_the_last_bit_each_time_whatever_the_threads() -> None:
    agent, before = build(IMAGE, core="lstm"), torch.get_num_threads()
    state, seen = remembered(agent), inputs(IMAGE)
    results = []
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            policy = session_policy(agent)
            assert policy is not None
            results.append(policy.act(seen, state)[0])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[1], results[2])


def test_more_environments_than_a_call_takes() -> None:
    agent, seen = build(JOINTS, core="lstm"), inputs(JOINTS)
    policy = session_policy(agent)
    assert policy is not None
    whole, _ = policy.act(seen, agent.initial_state(NUM_ENVS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "VECTORS", 4)
        parts, _ = policy.act(seen, agent.initial_state(NUM_ENVS))
    torch.testing.assert_close(parts, whole)


def test_an_encoder_that_does_more_than_ours_is_left_to_torch() -> None:
    class Own(Encoder):
        def forward(self, observation: Observation) -> torch.Tensor:
            return 2.0 * super().forward(observation)

    agent = build(IMAGE)
    agent.encoder.__class__ = Own
    assert session_policy(agent) is None


@pytest.mark.parametrize(
    ("observation", "changes"),
    [(IMAGE | WORDS, {}), (IMAGE, {"core": "transformer"})],
    ids=["words", "transformer"],
)
def test_everything_else_is_left_to_torch(observation: dict[str, ArraySpec], changes: dict[str, Any]) -> None:
    assert session_policy(build(observation, **changes)) is None
