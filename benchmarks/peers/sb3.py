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


class Features(BaseFeaturesExtractor):
    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.layers(observations)


class MLP(Features):
    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space, workload.hidden[-1])
        activation = nn.Tanh if workload.activation == "tanh" else nn.ReLU
        self.layers = nn.Sequential(*create_mlp(observation_space.shape[0], -1, list(workload.hidden), activation))


class Block(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + super().forward(x)


class ResNet(Features):
    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space, 256)
        layers: list[nn.Module] = []
        for before, after in ((4, 16), (16, 32), (32, 32)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.MaxPool2d(3, 2, 1)]
            for _ in range(2):
                first, second = (nn.Conv2d(after, after, 3, padding=1) for _ in range(2))
                layers.append(Block(nn.ReLU(), first, nn.ReLU(), second))
        self.layers = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(32 * 11 * 11, 256), nn.ReLU())


name, variant, warmup, seconds = arguments()
workload = WORKLOADS[name]
algorithm, policy, features, options = {
    "": (PPO, "MlpPolicy", MLP, {}),
    "nature": (PPO, "CnnPolicy", NatureCNN, {}),
    "resnet": (RecurrentPPO, "CnnLstmPolicy", ResNet, dict(shared_lstm=True, enable_critic_lstm=False)),
}[workload.pixels]
heads = list(workload.heads)  # RecurrentPPO's LSTM has 256 units unless told otherwise
options |= dict(net_arch=dict(pi=heads, vf=heads), activation_fn=nn.ReLU, optimizer_kwargs=dict(fused=True))
model = algorithm(
    policy,
    PoolVecEnv(Pool(workload, Meter(workload.batch_size, warmup, seconds), workload.num_envs, "crowded" in variant)),
    n_steps=workload.unroll_length,
    batch_size=workload.batch_size,
    n_epochs=1,
    policy_kwargs=dict(features_extractor_class=features, **options),
    device="cpu",
)
if "channels_last" in variant:
    model.policy.to(memory_format=torch.channels_last)
model.learn(2**62)
