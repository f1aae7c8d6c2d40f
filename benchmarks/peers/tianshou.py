"""Tianshou's PPO with its collector and buffer; it has no PPO with an LSTM."""

from typing import Any

import numpy as np
import torch
from tianshou.algorithm.modelfree.ppo import PPO
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import TorchOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.utils.torch_utils import policy_within_training_step
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from benchmarks.peers.common import WORKLOADS, Meter, Pool, arguments


class PoolEnv:
    """A vector environment whose ended episodes begin anew when the collector asks for it."""

    is_async = False

    def __init__(self, pool: Pool) -> None:
        self.pool, self.action_space = pool, [pool.action_space] * pool.num_envs

    def __len__(self) -> int:
        return self.pool.num_envs

    def reset(self, env_id: np.ndarray | None = None) -> Any:
        self.fresh = self.pool.reset() if env_id is None else self.fresh
        chosen = self.fresh if env_id is None else self.fresh[env_id]
        return chosen, np.array([{}] * len(chosen))

    def step(self, action: np.ndarray, _: np.ndarray) -> Any:
        step = self.pool.step(action)
        self.fresh, observations = step.observations, step.observations.copy()
        for index, last in step.last.items():
            observations[index] = last
        return observations, step.rewards, step.terminated, step.truncated, np.array([{}] * len(self))


name, variant, warmup, seconds = arguments()
workload = WORKLOADS[name]
assert workload.pixels != "resnet", "Tianshou has no PPO with an LSTM"
pool = Pool(workload, Meter(workload.batch_size, warmup, seconds), workload.num_envs)
discrete = hasattr(pool.action_space, "n")
outputs = int(pool.action_space.n) if discrete else 2 * pool.action_space.shape[0]


class Head(nn.Module):
    """Features shared by policy and value, and a head of its own."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.torso = torso
        activation = nn.Tanh if workload.activation == "tanh" else nn.ReLU
        layers = [part for units in workload.heads for part in (nn.LazyLinear(units), activation())]
        self.head = nn.Sequential(*layers, nn.LazyLinear(outputs))

    def forward(self, observations: Any, state: Any = None, info: Any = None) -> Any:
        x = torch.as_tensor(observations)
        if workload.pixels:
            x = x.float().div_(255.0).contiguous(memory_format=memory_format)
        return self.head(self.torso(x))


class Actor(Head):
    def forward(self, observations: Any, state: Any = None, info: Any = None) -> Any:
        out = super().forward(observations)
        mean, scale = (None, None) if discrete else out.chunk(2, -1)
        return (out if discrete else (mean, nn.functional.softplus(scale) + 1e-3)), state


memory_format = torch.channels_last if "channels_last" in variant else torch.contiguous_format
convolutions = ((32, 8, 4), (64, 4, 2), (64, 3, 1)) if workload.pixels else ()
layers = [part for n, size, stride in convolutions for part in (nn.LazyConv2d(n, size, stride), nn.ReLU())]
layers += [nn.Flatten(), nn.LazyLinear(512), nn.ReLU()] if workload.pixels else []
activation = nn.Tanh if workload.activation == "tanh" else nn.ReLU
torso = nn.Sequential(*layers, *(part for n in workload.hidden for part in (nn.LazyLinear(n), activation())))
actor, critic, env = Actor(outputs), Head(1), PoolEnv(pool)
actor(env.reset()[0]), critic(env.fresh)  # gives the lazy layers their sizes
torso.to(memory_format=memory_format)
policy = ProbabilisticActorPolicy(
    actor=actor,
    dist_fn=(lambda x: Categorical(logits=x)) if discrete else (lambda x: Independent(Normal(*x), 1)),
    action_space=pool.action_space,
    action_scaling=False,
)
# With Adam's usual 1e-3, Humanoid's policy becomes NaN.
adam = TorchOptimizerFactory(torch.optim.Adam, lr=1e-4, fused=True)
algorithm = PPO(policy=policy, critic=critic, optim=adam, max_batchsize=workload.batch_size)
collector = Collector(algorithm, env, VectorReplayBuffer(workload.batch_size, workload.num_envs))
collector.reset()
while True:
    with policy_within_training_step(policy):
        collector.collect(n_step=workload.batch_size)
        algorithm.update(collector.buffer, batch_size=None, repeat=1)
    collector.reset_buffer()
