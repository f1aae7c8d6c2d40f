"""Stable-Baselines3's PPO, and sb3-contrib's RecurrentPPO where there is an LSTM."""

from typing import Any

import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv

from benchmarks.peers.common import Meter, Pool, Task


class PoolVecEnv(VecEnv):
    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        super().__init__(pool.num_envs, pool.observation_space, pool.action_space)

    def reset(self) -> Any:
        return self.pool.reset()

    def step_async(self, actions: Any) -> None:
        self.actions = actions

    def step_wait(self) -> Any:
        step = self.pool.step(self.actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for index, last in step.last.items():
            infos[index] = {"terminal_observation": last, "TimeLimit.truncated": bool(step.truncated[index])}
        return step.observations, step.rewards, step.terminated | step.truncated, infos

    def _nothing(self, *arguments: Any, **keywords: Any) -> list[None]:
        return [None] * self.num_envs

    close = get_attr = set_attr = env_method = env_is_wrapped = _nothing


class Features(BaseFeaturesExtractor):
    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space, task.workload.features)
        self.torso = task.workload.torso(observation_space.shape[0])

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.torso(observations)


task = Task.asked()
workload = task.workload
heads = [workload.head] if workload.head else []
policy: dict[str, Any] = dict(net_arch=dict(pi=heads, vf=heads), activation_fn=torch.nn.ReLU)
policy |= dict(features_extractor_class=Features, optimizer_kwargs=dict(fused=True))
if recurrent := workload.pixels == "resnet":  # its LSTM has 256 units unless told otherwise
    policy |= dict(shared_lstm=True, enable_critic_lstm=False)
model = (RecurrentPPO if recurrent else PPO)(
    "MlpLstmPolicy" if recurrent else "MlpPolicy",
    PoolVecEnv(Pool(task, Meter(task), workload.num_envs)),
    n_steps=workload.unroll_length,
    batch_size=workload.batch_size,
    n_epochs=1,
    policy_kwargs=policy,
    device="cpu",
)
if "channels_last" in task.variant:
    model.policy.to(memory_format=torch.channels_last)
model.learn(2**62)
