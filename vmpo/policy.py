"""A trained agent for use outside of training: observations in, executable actions out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from vmpo import saved_spec, suites
from vmpo.config import Config
from vmpo.learning import checkpoint
from vmpo.networks.agent import AgentInput, make_agent, policy_family
from vmpo.observations import received
from vmpo.popart import PopArtStatistics, denormalise, initial_statistics
from vmpo.records import AgentState, EnvSpec, Observation, Weights
from vmpo.run_directory import RunDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the agent makes of one timestep of a batch of environments."""

    action: np.ndarray
    """Executable actions ``[B, width]``."""
    value: Float[np.ndarray, "B tasks"]
    """The critic's value of the observation as each task, in units of rewards."""
    state: AgentState
    """What must be remembered for the next timestep."""


class Policy:
    """Acts for one environment or a batch of them. What must be remembered between two calls is in the state."""

    def __init__(
        self, spec: EnvSpec, config: Config, weights: Weights, statistics: PopArtStatistics | None = None
    ) -> None:
        """Without ``statistics`` the values of ``decide`` stay in PopArt's normalised space."""
        self.spec, self.config = spec, config
        self.network = make_agent(spec, config).requires_grad_(False)
        checkpoint.check_fit(self.network.state_dict(), weights.tensors)
        self.network.load_state_dict(weights.tensors)
        self.family = policy_family(spec, config)
        known = statistics or initial_statistics(len(spec.tasks))
        self._statistics = replace(known, mean=known.mean.cpu(), second_moment=known.second_moment.cpu())

    def act(
        self,
        observation: Any,
        state: AgentState | None = None,
        *,
        previous_reward: Any = 0.0,
        greedy: bool = True,
    ) -> tuple[np.ndarray, AgentState]:
        """Choose what the environment's ``step`` takes, and return it with the state for the next call.

        ``observation`` is what the environment gives, or the arrays of ``spec.observation`` by name, or the only one
        of them bare. It may have a leading batch axis, as a vector environment's has, and so has the action then.
        Without a state an episode starts.
        """
        given = received(self.spec.observation, observation)
        actions, new_state = self.act_on(given.arrays, state, previous_reward=previous_reward, greedy=greedy)
        return actions[0] if given.single else actions, new_state

    def act_on(
        self,
        observation: Observation,
        state: AgentState | None = None,
        *,
        previous_reward: Any = 0.0,
        greedy: bool = True,
    ) -> tuple[np.ndarray, AgentState]:
        """``act`` for a batch that is in the terms of ``spec.observation`` already, unchecked."""
        with torch.inference_mode():
            inputs, memory = self._inputs(observation, state, previous_reward)
            parameters, new_state = self.network.act(inputs, memory)
            raw = self._chosen(parameters, greedy)
        actions = self.spec.action.native(self.spec.action.executable(raw.numpy()))
        return actions, {**new_state, "previous_action": raw}

    @torch.inference_mode()
    def decide(
        self,
        observation: dict[str, np.ndarray],
        state: AgentState | None = None,
        *,
        previous_reward: Any = 0.0,
        greedy: bool = True,
    ) -> Decision:
        """Actions, values and the next state of a batch, in the terms of ``spec``."""
        inputs, memory = self._inputs(observation, state, previous_reward)
        output, new_state = self.network.step(inputs, memory)
        raw = self._chosen(output.policy, greedy)
        values = denormalise(output.values, torch.arange(len(self.spec.tasks)), self._statistics)
        return Decision(
            action=self.spec.action.executable(raw.numpy()),
            value=values.numpy(),
            state={**new_state, "previous_action": raw},
        )

    def _inputs(
        self, observation: dict[str, np.ndarray], state: AgentState | None, previous_reward: Any
    ) -> tuple[AgentInput, AgentState]:
        """What the network takes, with its own part of the state."""
        batch = len(next(iter(observation.values())))
        first = state is None
        if state is None:
            state = {**self.network.initial_state(batch), "previous_action": self.no_action(batch)}
        inputs = AgentInput(
            observation={name: torch.from_numpy(array) for name, array in observation.items()},
            previous_action=state["previous_action"],
            previous_reward=torch.as_tensor(np.broadcast_to(np.float32(previous_reward), (batch,)).copy()),
            first=torch.full((batch,), first),
        )
        return inputs, {name: x for name, x in state.items() if name != "previous_action"}

    def _chosen(self, parameters: torch.Tensor, greedy: bool) -> torch.Tensor:
        policy = self.family.distribution(parameters)
        if greedy:
            return policy.mode()
        return policy.sample(self.family.noise(len(parameters), generator=torch.default_generator))

    def no_action(self, batch: int) -> torch.Tensor:
        """What stands for the action before an episode's first observation, which the agent does not see."""
        return torch.zeros_like(self.family.distribution(torch.zeros(batch, self.family.num_parameters)).mode())


def load(directory: str | Path, *, best: bool = False, trust: bool = False) -> Policy:
    """The online network of a run's newest checkpoint, or of the one with the best training return.

    ``trust`` lets its configuration name a module to import. No environment is made, unless the run is of a version
    that did not save its spec.
    """
    run_directory = RunDirectory(directory)
    config = run_directory.read_config(trust)
    saved = checkpoint.chosen(run_directory.checkpoints, best)
    known = saved.progress.get("spec")
    spec = _spec_of_environment(config) if known is None else saved_spec.from_json(known)
    statistics = checkpoint.popart_statistics(
        saved, initial_statistics(len(spec.tasks), bounds=config.loss.popart_bounds)
    )
    return Policy(spec, config, checkpoint.online_weights(saved), statistics)


def _spec_of_environment(config: Config) -> EnvSpec:
    env = suites.make(config.env, 1, config.run.seed)
    try:
        return env.spec
    finally:
        env.close()
