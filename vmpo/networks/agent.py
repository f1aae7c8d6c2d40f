"""The agent of Fig. 5b: encoder, core, and heads for the policy and the value on the same features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from vmpo.config import AgentConfig, Config
from vmpo.distributions import PolicyFamily
from vmpo.networks.cores import make_core
from vmpo.networks.encoders import MLP, Encoder, make_encoder, orthogonal
from vmpo.networks.normalisers import RunningStatistics
from vmpo.networks.pixel_control import PixelControlHead
from vmpo.records import ActionSpec, AgentState, DiscreteActions, EnvSpec, Observation, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInput:
    """What the agent sees at a timestep; leading axes ``[B]`` for a step, ``[T, B]`` for an unroll."""

    observation: Observation
    previous_action: Shaped[Tensor, "*batch A"]
    """The raw action that led here: int64 choices or a float vector, as the spec says. Any value at ``first``."""
    previous_reward: Float[Tensor, "*batch"]
    first: Bool[Tensor, "*batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOutput:
    """What the agent makes of it, with the same leading axes."""

    policy: Float[Tensor, "*batch P"]
    """Flat parameters of the action distribution."""
    values: Float[Tensor, "*batch tasks"]
    """One per task, in PopArt's normalised space."""
    features: Float[Tensor, "*batch D"]
    """Output of the core, for auxiliary heads."""


def encode_action(action: Shaped[Tensor, "*batch A"], spec: ActionSpec) -> Float[Tensor, "*batch width"]:
    """A one-hot vector per categorical; a continuous action as it is, within [-10, 10].

    Raw Gaussian samples are unbounded, and one far outlier shall not saturate the core.
    """
    if isinstance(spec, DiscreteActions):
        # torch's one_hot looks for choices that there are not, which takes longer than all the rest.
        choices = zip(action.unbind(-1), spec.sizes, strict=True)
        return torch.cat([(x[..., None] == torch.arange(n, device=x.device)).float() for x, n in choices], dim=-1)
    return action.float().clamp(-10.0, 10.0)


def encode_reward(reward: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch 1"]:
    """sign(r) log(1 + |r|): close to r for small rewards, and in order for all.

    The paper does not say. IMPALA's code clips to [-1, 1]; unclipped, Atari's rewards reach thousands and would
    drown the image in the core's input. The logarithm keeps their order and loses none.
    """
    return (reward.sign() * reward.abs().log1p())[..., None]


class Agent(nn.Module):
    """Shared torso with two heads: a hidden layer of ``head_units`` and a linear readout each (App. F).

    Feed-forward agents do not see the previous action and reward. Policy and value losses both reach the torso.
    """

    def __init__(self, spec: EnvSpec, config: AgentConfig, num_parameters: int, pixel_control: bool = False):
        super().__init__()
        self.action_spec = spec.action
        self.sees_previous = config.core != "none" and config.previous_action_and_reward
        self.encoder = make_encoder(spec.observation, config)
        width: int = self.encoder.width  # type: ignore[assignment]
        self.core = make_core(width + (self.previous_width if self.sees_previous else 0), config)
        hidden = (config.head_units,) if config.head_units else ()
        self.policy_hidden = MLP(self.core.width, hidden, config.activation)
        self.policy_readout = orthogonal(
            nn.Linear(self.policy_hidden.width, num_parameters), gain=config.policy_init_scale
        )
        self.value_hidden = MLP(self.core.width, hidden, config.activation)
        self.value_readout = orthogonal(nn.Linear(self.value_hidden.width, len(spec.tasks)), gain=1.0)
        self.pixel_control_head = PixelControlHead(self.core.width, spec) if pixel_control else None

    @property
    def normalisers(self) -> list[RunningStatistics]:
        """Statistics of the observations, where the configuration asks for them."""
        return self.encoder.normalisers if isinstance(self.encoder, Encoder) else []

    def observation_moments(self, observation: Observation, valid: Bool[Tensor, "T B"]) -> list[Tensor]:
        """What ``[T, B, ...]`` observations add to the statistics of each normaliser."""
        return self.encoder.moments(observation, valid) if isinstance(self.encoder, Encoder) else []

    def initial_state(self, batch_size: int, device: torch.device | str | None = None) -> AgentState:
        """Zeros, on the agent's own device unless told otherwise."""
        return self.core.initial_state(batch_size, self.value_readout.weight.device if device is None else device)

    def step(self, inputs: AgentInput, state: AgentState) -> tuple[AgentOutput, AgentState]:
        """One timestep of B environments: tensors ``[B, ...]``."""
        features, state = self._step(inputs, state)
        return self._heads(features), state

    def act(self, inputs: AgentInput, state: AgentState) -> tuple[Float[Tensor, "B P"], AgentState]:
        """The policy's parameters of one timestep, without the rest of what ``step`` gives."""
        features, state = self._step(inputs, state)
        return self._policy(features), state

    def unroll(self, inputs: AgentInput, state: AgentState) -> tuple[AgentOutput, AgentState]:
        """T timesteps at once: tensors ``[T, B, ...]``, the state being that before the first."""
        flat = {name: value.flatten(0, 1) for name, value in inputs.observation.items()}
        features = self.encoder(flat).unflatten(0, inputs.first.shape)
        features, state = self.core.unroll(self._with_previous(features, inputs), inputs.first, state)
        return self._heads(features), state

    def _step(self, inputs: AgentInput, state: AgentState) -> tuple[Float[Tensor, "B D"], AgentState]:
        features = self._with_previous(self.encoder(inputs.observation), inputs)
        return self.core.step(features, inputs.first, state)

    def _heads(self, features: Float[Tensor, "*batch D"]) -> AgentOutput:
        values = self.value_readout(self.value_hidden(features))
        return AgentOutput(policy=self._policy(features), values=values, features=features)

    def _policy(self, features: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch P"]:
        return self.policy_readout.forward(self.policy_hidden.forward(features))

    def _with_previous(self, features: Float[Tensor, "*batch D"], inputs: AgentInput) -> Float[Tensor, "*batch width"]:
        return torch.cat([features, self.previous(inputs)], dim=-1) if self.sees_previous else features

    def previous(self, inputs: AgentInput) -> Float[Tensor, "*batch A+1"]:
        """The previous action and reward, as the core sees them."""
        action = encode_action(inputs.previous_action, self.action_spec)
        previous = torch.cat([action, encode_reward(inputs.previous_reward)], dim=-1)
        # They belong to the episode before, as much as the core's state does.
        return previous.masked_fill(inputs.first[..., None], 0.0)

    @property
    def previous_width(self) -> int:
        """Of the previous action and reward."""
        action = self.action_spec
        return (sum(action.sizes) if isinstance(action, DiscreteActions) else action.width) + 1


def policy_family(spec: EnvSpec, config: Config) -> PolicyFamily:
    agent = config.agent
    return PolicyFamily(
        actions=spec.action,
        covariance=agent.covariance,
        initial_std=agent.initial_std,
        minimum_std=agent.minimum_std,
        bounded_mean=agent.bounded_mean,
    )


def make_agent(spec: EnvSpec, config: Config) -> Agent:
    return Agent(
        spec,
        config.agent,
        num_parameters=policy_family(spec, config).num_parameters,
        pixel_control=config.loss.pixel_control_cost > 0,
    )


def agent_inputs(batch: Trajectory) -> AgentInput:
    return AgentInput(
        observation=batch.observations,
        previous_action=batch.actions,
        previous_reward=batch.rewards,
        first=batch.firsts,
    )
