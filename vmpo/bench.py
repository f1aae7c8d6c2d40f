"""Throughput of training on this machine: agent steps per second in steady state, and where the time goes."""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import replace
from typing import Any

from vmpo import presets
from vmpo.config import ActorConfig, AgentConfig, Config, EnvConfig, LearnerConfig
from vmpo.errors import unknown
from vmpo.run_directory import RunDirectory
from vmpo.train import Run

WINDOWS = 3


def _workload(preset: str, env: EnvConfig, agent: AgentConfig, num_envs: int, unroll_length: int) -> Config:
    base = presets.get(preset).config
    learner = LearnerConfig(batch_size=num_envs, unroll_length=unroll_length, target_period=10)
    return replace(base, env=env, agent=agent, learner=learner, actors=ActorConfig(num_envs=num_envs))


_ATARI = EnvConfig(suite="atari", id="breakout", clip_rewards=True)
_MLP = AgentConfig(hidden=(512, 256), head_units=256)

WORKLOADS: dict[str, Config] = {
    "cartpole": _workload(
        "cartpole", EnvConfig(id="CartPole-v1"), AgentConfig(hidden=(64, 64), head_units=0, activation="tanh"), 64, 32
    ),
    "halfcheetah": _workload("halfcheetah", EnvConfig(suite="mujoco", id="HalfCheetah-v5"), _MLP, 64, 40),
    "humanoid": _workload("humanoid", EnvConfig(suite="mujoco", id="Humanoid-v5"), _MLP, 64, 40),
    "breakout": _workload("breakout", _ATARI, AgentConfig(pixels="nature", pixel_features=512, head_units=0), 32, 20),
    "breakout-resnet": _workload("breakout", _ATARI, AgentConfig(pixels="resnet", core="lstm", head_units=0), 32, 20),
}


def bench(workload: str, seconds: float) -> list[dict[str, Any]]:
    """Measure one workload, or all, and print a line for each."""
    if workload != "all" and workload not in WORKLOADS:
        raise unknown("workload", workload, [*WORKLOADS, "all"])
    names = list(WORKLOADS) if workload == "all" else [workload]
    results = []
    for name in names:
        result = measure(name, WORKLOADS[name], seconds)
        phases = "  ".join(f"{phase} {share:.0%}" for phase, share in result["phases"].items())
        print(f"{name:16} {result['agent_steps_per_second']:10,.0f} agent steps/s  {phases}", flush=True)
        results.append(result)
    return results


def measure(name: str, config: Config, seconds: float) -> dict[str, Any]:
    """Median of three windows after a warm-up of half a window; the phases are those of the median window."""
    with tempfile.TemporaryDirectory() as directory:
        run = Run(config, RunDirectory(directory))
        try:
            _window(run, seconds / 2)
            windows = sorted((_window(run, seconds) for _ in range(WINDOWS)), key=lambda w: w[0])
        finally:
            run.fleet.close()
    rate, phases = windows[WINDOWS // 2]
    return {
        "workload": name,
        "agent_steps_per_second": rate,
        "windows": [w[0] for w in windows],
        "spread": (windows[-1][0] - windows[0][0]) / statistics.mean(w[0] for w in windows),
        "phases": phases,
    }


def _window(run: Run, seconds: float) -> tuple[float, dict[str, float]]:
    run.stopwatch.reset()
    steps, started = run.agent_steps, time.perf_counter()
    while time.perf_counter() - started < seconds:
        run.advance()
    rate = (run.agent_steps - steps) / (time.perf_counter() - started)
    return rate, run.stopwatch.shares()
