"""Environments of which the agent sees only a part: what is hidden must be remembered or worked out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vmpo.errors import UserError
from vmpo.records import ObservationForm, Timestep, VectorEnv


class PartialEnv:
    """Other environments without some entries of their one vector observation."""

    def __init__(self, env: VectorEnv, hidden: Sequence[int]) -> None:
        vectors = {name: array for name, array in env.spec.observation.items() if array.kind == "vector"}
        if len(vectors) != 1:
            raise UserError(f"env.hidden needs one vector observation; {env.spec.tasks[0]} has {len(vectors)}")
        (self._name, array), *_ = vectors.items()
        width = array.shape[0]
        if strange := [index for index in hidden if not 0 <= index < width]:
            raise UserError(f"env.hidden names entry {strange[0]} of a vector observation of {width} entries, 0 first")
        self._seen = [index for index in range(width) if index not in hidden]
        if not self._seen:
            raise UserError(f"env.hidden hides all {width} entries of the vector observation; leave some")
        self._env, self.num_envs = env, env.num_envs
        whole = array.form or ObservationForm(path=(self._name,), shape=array.shape)
        rest = replace(array, shape=(len(self._seen),), form=replace(whole, seen=tuple(self._seen)))
        self.spec = replace(env.spec, observation={**env.spec.observation, self._name: rest})

    def reset(self, seed: int) -> Timestep:
        return self._partial(self._env.reset(seed))

    def step(self, actions: np.ndarray) -> Timestep:
        return self._partial(self._env.step(actions))

    def _partial(self, timestep: Timestep) -> Timestep:
        seen = timestep.observation[self._name][:, self._seen]
        return replace(timestep, observation={**timestep.observation, self._name: seen})

    def render(self) -> np.ndarray:
        return self._env.render()

    def close(self) -> None:
        self._env.close()
