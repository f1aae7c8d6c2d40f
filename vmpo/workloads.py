"""The benchmark's workloads in plain words and in plain torch, and the ceiling of each: how fast it could be.

The ceiling takes the simulator with random actions, the network's forward pass for acting, and forward, backward and
Adam on a ready batch, one after another with all cores each: 1 / (1/simulate + 1/act + 1/learn). None of our code is in
it; what overlaps the three, or works in smaller pieces, may exceed it. Nothing of vmpo is imported: the scripts of
other libraries read this file too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Workload:
    task: str
    """EnvPool's name."""
    suite: Literal["gymnasium", "mujoco", "atari"] = "mujoco"
    num_envs: int = 64
    unroll_length: int = 40
    hidden: tuple[int, ...] = (512, 256)
    head: int = 256
    """Hidden units of the policy's and of the value's head; 0 is none."""
    activation: Literal["relu", "tanh"] = "relu"
    pixels: Literal["", "nature", "resnet"] = ""
    """The encoder of images; behind the ResNet is an LSTM of 256 units."""
    crowded: bool = False
    """The simulator takes most of the time."""

    @property
    def batch_size(self) -> int:
        return self.num_envs * self.unroll_length

    @property
    def features(self) -> int:
        return {"nature": 512, "resnet": 256}.get(self.pixels) or self.hidden[-1]

    def torso(self, channels: int) -> nn.Sequential:
        """From vectors of so many numbers, or images of so many channels, to features."""
        layers: list[nn.Module] = []
        if not self.pixels:
            for before, after in pairwise((channels, *self.hidden)):
                layers += [nn.Linear(before, after), nn.ReLU() if self.activation == "relu" else nn.Tanh()]
            return nn.Sequential(*layers)
        if self.pixels == "nature":
            for before, after, size, stride in ((channels, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1)):
                layers += [nn.Conv2d(before, after, size, stride), nn.ReLU()]
        else:
            for before, after in pairwise((channels, 16, 32, 32)):
                layers += [nn.Conv2d(before, after, 3, padding=1), nn.MaxPool2d(3, 2, 1), Block(after), Block(after)]
            layers.append(nn.ReLU())
        flat = 64 * 7 * 7 if self.pixels == "nature" else 32 * 11 * 11
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, self.features), nn.ReLU())

    def simulator(self) -> Any:
        """With Gymnasium's vector interface."""
        if self.suite == "gymnasium":
            import gymnasium

            return gymnasium.make_vec(self.task, self.num_envs, vectorization_mode="vector_entry_point")
        if self.suite == "atari":
            from ale_py import AtariVectorEnv

            return AtariVectorEnv("breakout", self.num_envs, noop_max=31)
        import envpool

        return envpool.make_gymnasium(self.task, num_envs=self.num_envs)


_BREAKOUT: dict[str, Any] = dict(task="Breakout-v5", suite="atari", num_envs=32, unroll_length=20, hidden=(), head=0)
WORKLOADS = {
    "cartpole": Workload(
        task="CartPole-v1", suite="gymnasium", unroll_length=32, hidden=(64, 64), head=0, activation="tanh"
    ),
    "halfcheetah": Workload(task="HalfCheetah-v5"),
    "humanoid": Workload(task="Humanoid-v5", crowded=True),
    "breakout": Workload(**_BREAKOUT, pixels="nature"),
    "breakout-resnet": Workload(**_BREAKOUT, pixels="resnet"),
    "humanoid-run": Workload(task="HumanoidRun-v1", unroll_length=63, crowded=True),
}


class Block(nn.Sequential):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int) -> None:
        first, second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        super().__init__(nn.ReLU(), first, nn.ReLU(), second)

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class Network(nn.Module):
    """Torso and both heads over observations ``[N, ...]``, or with an LSTM between them over ``[T, B, ...]``."""

    def __init__(self, workload: Workload, channels: int, outputs: int) -> None:
        super().__init__()
        width, head = workload.features, workload.head
        self.torso = workload.torso(channels)
        self.lstm = nn.LSTM(width, 256) if workload.pixels == "resnet" else None
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(width, head), nn.ReLU(), nn.Linear(head, n)) if head else nn.Linear(width, n)
            for n in (outputs, 1)
        )
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        flat = x if self.lstm is None else x.flatten(0, 1)
        if x.dtype == torch.uint8:
            flat = flat.to(torch.float32, memory_format=torch.channels_last).div_(255.0)
        features = self.torso(flat)
        if self.lstm is not None:
            features = self.lstm(features.unflatten(0, x.shape[:2]))[0]
        return torch.cat([head(features) for head in self.heads], dim=-1)


def ceiling(workload: Workload, seconds: float) -> dict[str, float]:
    """Agent steps per second of each part, measured for so long, and ``together``."""
    envs = workload.simulator()
    seen = envs.reset()[0]
    # The dm_control suite's are dicts.
    shape = (sum(x[0].size for x in seen.values()),) if isinstance(seen, dict) else seen.shape[1:]
    # EnvPool's action space is that of one environment, Gymnasium's is that of all.
    space, rng = getattr(envs, "single_action_space", envs.action_space), np.random.default_rng(0)
    discrete, many = hasattr(space, "n"), (64, workload.num_envs)
    drawn: Any = (
        rng.integers(space.n, size=many) if discrete else rng.uniform(space.low, space.high, many + space.shape)
    )
    actions, turn = drawn.astype(space.dtype), iter(range(2**62))
    rates = {"simulate": rate(lambda: envs.step(actions[next(turn) % 64]), workload.num_envs, seconds)}
    envs.close()

    network = Network(workload, shape[0], int(space.n) if discrete else 2 * space.shape[0])
    optimiser = torch.optim.Adam(network.parameters(), fused=True)
    size = (workload.unroll_length, workload.num_envs, *shape)
    batch = torch.randint(0, 256, size, dtype=torch.uint8) if workload.pixels else torch.randn(size)
    seen = batch[:1] if workload.pixels == "resnet" else batch[0]
    batch = batch if workload.pixels == "resnet" else batch.flatten(0, 1)

    def update() -> None:
        optimiser.zero_grad(set_to_none=True)
        network(batch).square().mean().backward()
        optimiser.step()

    rates["act"] = rate(torch.inference_mode()(lambda: network(seen)), workload.num_envs, seconds)
    rates["learn"] = rate(update, workload.batch_size, seconds)
    return {**rates, "together": 1.0 / sum(1.0 / each for each in rates.values())}


def rate(work: Callable[[], Any], steps: int, seconds: float) -> float:
    """Of calls that make so many steps each, for so long, after a tenth of that to warm up."""
    for window in (seconds / 10, seconds):
        count, started = 0, time.perf_counter()
        while time.perf_counter() - started < window:
            work()
            count += 1
    return steps * count / (time.perf_counter() - started)
