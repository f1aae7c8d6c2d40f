"""How fast a workload could be: its simulator, its acting and its learning alone, in plain torch, without our code.

The ceiling takes the three one after another, each with all cores: steps per second = 1 / (1/simulate + 1/act +
1/learn). What overlaps them, or works in smaller pieces, may exceed it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Plain:
    """A workload in the words of its simulator and of torch."""

    simulator: Callable[[int], Any]
    """Makes so many environments with Gymnasium's vector interface."""
    network: Callable[[], nn.Module]
    """Makes a module from observations ``[N, ...]`` (``[T, B, ...]`` if recurrent) to ``width`` numbers each."""
    observation: tuple[int, ...]
    pixels: bool
    recurrent: bool = False
    num_envs: int
    unroll_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """Agent steps per second."""

    simulate: float
    act: float
    learn: float

    @property
    def together(self) -> float:
        return 1.0 / (1.0 / self.simulate + 1.0 / self.act + 1.0 / self.learn)


class Branches(nn.Module):
    """A policy and a value head on the same features."""

    def __init__(self, torso: nn.Module, width: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.torso = torso
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, n)) if hidden else nn.Linear(width, n)
            for n in (outputs, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        features = self.torso(x)
        return torch.cat([head(features) for head in self.heads], dim=-1)


def mlp(inputs: int, hidden: tuple[int, ...], head: int, outputs: int, activation: type[nn.Module]) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in zip((inputs, *hidden[:-1]), hidden, strict=True):
        layers += [nn.Linear(before, after), activation()]
    return Branches(nn.Sequential(*layers), hidden[-1], head, outputs)


def nature(channels: int, features: int, outputs: int) -> nn.Module:
    convolutions = nn.Sequential(
        nn.Conv2d(channels, 32, 8, stride=4), nn.ReLU(),
        nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
        nn.Conv2d(64, 64, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * 7 * 7, features), nn.ReLU(),
    )  # fmt: skip
    return Branches(convolutions.to(memory_format=torch.channels_last), features, 0, outputs)  # type: ignore[call-overload]


class _Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class ResNetLSTM(nn.Module):
    """The ResNet of three sections and an LSTM, over ``[T, B, ...]`` images."""

    def __init__(self, channels: int, sections: tuple[int, ...], units: int, outputs: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in zip((channels, *sections[:-1]), sections, strict=True):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.MaxPool2d(3, 2, 1), _Block(after), _Block(after)]
        layers += [nn.ReLU(), nn.Flatten(), nn.Linear(sections[-1] * 11 * 11, 256), nn.ReLU()]
        self.images = nn.Sequential(*layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.lstm = nn.LSTM(256, units)
        self.heads = nn.Linear(units, outputs + 1)

    def forward(self, x: Tensor) -> Tensor:
        features = self.images(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return self.heads(self.lstm(features)[0])


def measure(plain: Plain, seconds: float) -> Ceiling:
    """Each of the three for so long."""
    return Ceiling(
        simulate=rate(_simulate(plain), plain.num_envs, seconds),
        act=rate(_act(plain), plain.num_envs, seconds),
        learn=rate(_learn(plain), plain.num_envs * plain.unroll_length, seconds),
    )


def rate(work: Callable[[], Any], steps: int, seconds: float) -> float:
    """Of calls that make so many steps each, for so long, after a tenth of that to warm up."""
    for window in (seconds / 10, seconds):
        count, started = 0, time.perf_counter()
        while time.perf_counter() - started < window:
            work()
            count += 1
    return steps * count / (time.perf_counter() - started)


def _simulate(plain: Plain) -> Callable[[], None]:
    env = plain.simulator(plain.num_envs)
    env.reset()
    # EnvPool's action space is that of one environment, Gymnasium's is that of all.
    single = getattr(env, "single_action_space", env.action_space)
    rng = np.random.default_rng(0)
    count = (64, plain.num_envs)
    drawn: Any = (
        rng.integers(single.n, size=count)
        if hasattr(single, "n")
        else rng.uniform(single.low, single.high, (*count, *single.shape))
    )
    actions = drawn.astype(single.dtype)
    turn = iter(range(2**62))
    return lambda: env.step(actions[next(turn) % 64])


def _batch(plain: Plain, *leading: int) -> Tensor:
    if plain.pixels:
        return torch.randint(0, 256, (*leading, *plain.observation), dtype=torch.uint8)
    return torch.randn(*leading, *plain.observation)


def _inputs(x: Tensor, pixels: bool) -> Tensor:
    """Images as floats, channels last."""
    if not pixels:
        return x
    flat = x.flatten(0, -4).to(torch.float32, memory_format=torch.channels_last).div_(255.0)
    return flat.unflatten(0, x.shape[:-3])


def _act(plain: Plain) -> Callable[[], None]:
    network = plain.network()
    leading = (1, plain.num_envs) if plain.recurrent else (plain.num_envs,)
    x = _batch(plain, *leading)

    @torch.inference_mode()
    def forward() -> None:
        network(_inputs(x, plain.pixels))

    return forward


def _learn(plain: Plain) -> Callable[[], None]:
    """Forward, backward and Adam on a ready batch, with a loss that costs nothing."""
    network = plain.network()
    optimiser = torch.optim.Adam(network.parameters(), fused=True)
    leading = (plain.unroll_length, plain.num_envs)
    x = _batch(plain, *leading)

    def update() -> None:
        inputs = _inputs(x, plain.pixels)
        outputs = network(inputs if plain.recurrent else inputs.flatten(0, 1))
        optimiser.zero_grad(set_to_none=True)
        outputs.square().mean().backward()
        optimiser.step()

    return update
