"""A trained agent for use outside of training: observations in, executable actions out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from vmpo import suites
from vmpo.config import Config
from vmpo.learning import checkpoint
from vmpo.networks.agent import AgentInput, make_agent, policy_family
from vmpo.records import AgentState, DiscreteActions, EnvSpec, Weights
from vmpo.run_directory import RunDirectory


class Policy:
    """Acts for one environment or a batch of them. What must be remembered between two calls is in the state."""

    def __init__(self, spec: EnvSpec, config: Config, weights: Weights) -> None:
        self.spec, self.config = spec, config
        self.network = make_agent(spec, config).requires_grad_(False)
        checkpoint.check_fit(self.network.state_dict(), weights.tensors)
        self.network.load_state_dict(weights.tensors)
        self._family = policy_family(spec, config)

    @torch.inference_mode()
    def act(
        self,
        observation: np.ndarray | dict[str, Any],
        state: AgentState | None = None,
        *,
        previous_reward: Any = 0.0,
        greedy: bool = True,
    ) -> tuple[np.ndarray, AgentState]:
        """Choose actions within the environment's bounds, and return them with the state for the next call.

        ``observation`` holds the arrays of ``spec.observation`` by name, or the only one of them bare. They may have a
        leading batch axis, which the action then has too. A single choice is a plain integer, several are a vector.
        Without a state an episode starts.
        """
        arrays = observation if isinstance(observation, dict) else {next(iter(self.spec.observation)): observation}
        name, spec = next(iter(self.spec.observation.items()))
        single = np.ndim(arrays[name]) == len(spec.shape)
        tensors = {
            key: torch.from_numpy(np.array(arrays[key], dtype=array.dtype, ndmin=len(array.shape) + 1))
            for key, array in self.spec.observation.items()
        }
        batch = len(tensors[name])
        first = state is None
        if state is None:
            state = {**self.network.initial_state(batch), "previous_action": self._no_action(batch)}
        rewards = torch.as_tensor(np.broadcast_to(np.float32(previous_reward), (batch,)).copy())
        inputs = AgentInput(
            observation=tensors,
            previous_action=state["previous_action"],
            previous_reward=rewards,
            first=torch.full((batch,), first),
        )
        output, new_state = self.network.step(inputs, {k: v for k, v in state.items() if k != "previous_action"})
        distribution = self._family.distribution(output.policy)
        raw = distribution.mode() if greedy else distribution.sample()
        actions = self.spec.action.executable(raw.numpy())
        if isinstance(self.spec.action, DiscreteActions) and self.spec.action.width == 1:
            actions = actions[:, 0]
        return actions[0] if single else actions, {**new_state, "previous_action": raw}

    def _no_action(self, batch: int) -> torch.Tensor:
        return torch.zeros_like(self._family.distribution(torch.zeros(batch, self._family.num_parameters)).mode())


def load(directory: str | Path, *, trust: bool = False) -> Policy:
    """The online network of a run's newest checkpoint; ``trust`` lets its configuration name a module to import."""
    run_directory = RunDirectory(directory)
    config = run_directory.read_config(trust)
    weights = checkpoint.online_weights(checkpoint.latest(run_directory.checkpoints))
    env = suites.make(config.env, 1, config.run.seed)
    try:
        return Policy(env.spec, config, weights)
    finally:
        env.close()
