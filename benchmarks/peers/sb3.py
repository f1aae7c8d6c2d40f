"""Stable-Baselines3's PPO, and sb3-contrib's RecurrentPPO where there is an LSTM."""

from typing import Any

import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, NatureCNN, create_mlp
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from benchmarks.peers.common import WORKLOADS, Meter, Pool, arguments


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


class Block(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + super().forward(x)


class Features(BaseFeaturesExtractor):
    """What stands before the heads, or before the LSTM."""

    def __init__(self, observation_space: Any) -> None:
        layers, channels = [], 4
        for after in (16, 32, 32) if workload.pixels else ():
            layers += [nn.Conv2d(channels, after, 3, padding=1), nn.MaxPool2d(3, 2, 1)]
            for _ in range(2):
                convolutions = [nn.Conv2d(after, after, 3, padding=1) for _ in range(2)]
                layers.append(Block(nn.ReLU(), convolutions[0], nn.ReLU(), convolutions[1]))
            channels = after
        layers += [nn.ReLU(), nn.Flatten(), nn.Linear(channels * 11 * 11, 256), nn.ReLU()] if layers else []
        super().__init__(observation_space, 256 if layers else workload.hidden[-1])
        activation = nn.Tanh if workload.activation == "tanh" else nn.ReLU
        self.layers = nn.Sequential(
            *(layers or create_mlp(observation_space.shape[0], -1, list(workload.hidden), activation))
        )

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.layers(observations)


options = arguments()
workload = WORKLOADS[options.workload]
recurrent = workload.pixels == "resnet"
lstm = dict(lstm_hidden_size=256, shared_lstm=True, enable_critic_lstm=False)
model = (RecurrentPPO if recurrent else PPO)(
    {"": "MlpPolicy", "nature": "CnnPolicy", "resnet": "CnnLstmPolicy"}[workload.pixels],
    PoolVecEnv(Pool(workload, Meter(workload, options.warmup, options.seconds), workload.num_envs)),
    n_steps=workload.unroll_length,
    batch_size=workload.batch_size,
    n_epochs=1,
    policy_kwargs=dict(
        features_extractor_class=NatureCNN if workload.pixels == "nature" else Features,
        net_arch=dict(pi=list(workload.heads), vf=list(workload.heads)),
        activation_fn=nn.ReLU,
        optimizer_kwargs=dict(fused=True),
        **(lstm if recurrent else {}),
    ),
    device="cpu",
)
if "channels_last" in options.variant:
    model.policy.to(memory_format=torch.channels_last)
model.learn(2**62)
