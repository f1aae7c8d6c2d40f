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

from benchmarks.peers.common import Meter, Pool, Task


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


class Head(nn.Module):
    """Features shared by policy and value, and a head of its own."""

    def __init__(self, outputs: int, of_policy: bool) -> None:
        super().__init__()
        self.torso, self.of_policy, width, head = torso, of_policy, workload.features, workload.head
        hidden = [nn.Linear(width, head), nn.ReLU()] if head else []
        self.head = nn.Sequential(*hidden, nn.Linear(head or width, outputs))

    def forward(self, observations: Any, state: Any = None, info: Any = None) -> Any:
        x = torch.as_tensor(observations)
        x = x.float().div_(255.0).contiguous(memory_format=layout) if workload.pixels else x
        out = self.head(self.torso(x))
        if not self.of_policy:
            return out
        mean, scale = (None, None) if discrete else out.chunk(2, -1)
        return (out if discrete else (mean, nn.functional.softplus(scale) + 1e-3)), state


task = Task.asked()
workload = task.workload
assert workload.pixels != "resnet", "Tianshou has no PPO with an LSTM"
pool = Pool(task, Meter(task), workload.num_envs)
discrete = hasattr(pool.action_space, "n")
layout = torch.channels_last if "channels_last" in task.variant else torch.contiguous_format
torso = workload.torso(pool.observation_space.shape[0]).to(memory_format=layout)
policy = ProbabilisticActorPolicy(
    actor=Head(int(pool.action_space.n) if discrete else 2 * pool.action_space.shape[0], True),
    dist_fn=(lambda x: Categorical(logits=x)) if discrete else (lambda x: Independent(Normal(*x), 1)),
    action_space=pool.action_space,
    action_scaling=False,
)
# With Adam's usual 1e-3, Humanoid's policy becomes NaN.
adam = TorchOptimizerFactory(torch.optim.Adam, lr=1e-4, fused=True)
algorithm = PPO(policy=policy, critic=Head(1, False), optim=adam, max_batchsize=workload.batch_size)
collector = Collector(algorithm, PoolEnv(pool), VectorReplayBuffer(workload.batch_size, workload.num_envs))
collector.reset()
while True:
    with policy_within_training_step(policy):
        collector.collect(n_step=workload.batch_size)
        algorithm.update(collector.buffer, batch_size=None, repeat=1)
    collector.reset_buffer()
