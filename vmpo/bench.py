"""Throughput of training on this machine: agent steps per second in steady state, where the time goes, and how near
that is to the ceiling."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from vmpo import ceiling, presets
from vmpo.acting.actor import allocate
from vmpo.actors import new_actor, training_env
from vmpo.config import ActorConfig, AgentConfig, Config, EnvConfig, LearnerConfig
from vmpo.errors import UserError, unknown
from vmpo.learning.learner import Learner
from vmpo.memory import keep_freed_memory
from vmpo.networks.agent import agent_inputs
from vmpo.records import tree_map
from vmpo.run_directory import RunDirectory
from vmpo.train import Run

WINDOWS = 3
CORES = os.cpu_count() or 1
"""A simulator that takes most of the time has two threads for each: beside the learner, one that waits for its turn
would otherwise hold up all others."""


def _workload(
    preset: str,
    env: EnvConfig,
    agent: AgentConfig,
    num_envs: int,
    unroll_length: int,
    fleet: Literal["serial", "overlapping"] = "overlapping",
) -> Config:
    base = presets.get(preset).config
    learner = LearnerConfig(batch_size=num_envs, unroll_length=unroll_length, target_period=10)
    actors = ActorConfig(fleet=fleet, num_envs=num_envs)
    # All cores, also where the preset has one thread.
    run = replace(base.run, threads=0)
    return replace(base, env=env, agent=agent, learner=learner, actors=actors, run=run)


@dataclass(frozen=True, kw_only=True)
class Workload:
    config: Config
    plain: ceiling.Plain
    """The same simulator, network and batch without our code."""


def _vectorised_cartpole(num_envs: int) -> Any:
    import gymnasium

    return gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")


def _envpool(task: str) -> Callable[[int], Any]:
    def make(num_envs: int) -> Any:
        import envpool

        return envpool.make_gymnasium(task, num_envs=num_envs)

    return make


def _arcade(num_envs: int) -> Any:
    from ale_py import AtariVectorEnv

    return AtariVectorEnv("breakout", num_envs, noop_max=31)


_ATARI = EnvConfig(suite="atari", id="breakout", clip_rewards=True)
_MLP = AgentConfig(hidden=(512, 256), head_units=256)


def _locomotion(
    task: str, num_observations: int, num_actions: int, unroll_length: int = 40, simulator_threads: int = 0
) -> Workload:
    env = EnvConfig(suite="mujoco", id=task, simulator_threads=simulator_threads)
    return Workload(
        config=_workload("halfcheetah", env, _MLP, 64, unroll_length),
        plain=ceiling.Plain(
            simulator=_envpool(task),
            network=lambda: ceiling.mlp(num_observations, (512, 256), 256, 2 * num_actions, nn.ReLU),
            observation=(num_observations,),
            pixels=False,
            num_envs=64,
            unroll_length=unroll_length,
        ),
    )


def _breakout(agent: AgentConfig, network: Callable[[], nn.Module], recurrent: bool) -> Workload:
    return Workload(
        # Learning an LSTM's batch takes so much longer than acting that a core of the actor's own would be idle.
        config=_workload("breakout", _ATARI, agent, 32, 20, "serial" if recurrent else "overlapping"),
        plain=ceiling.Plain(
            simulator=_arcade,
            network=network,
            observation=(4, 84, 84),
            pixels=True,
            recurrent=recurrent,
            num_envs=32,
            unroll_length=20,
        ),
    )


WORKLOADS: dict[str, Workload] = {
    "cartpole": Workload(
        config=_workload(
            "cartpole",
            EnvConfig(id="CartPole-v1"),
            AgentConfig(hidden=(64, 64), head_units=0, activation="tanh"),
            64,
            32,
        ),
        plain=ceiling.Plain(
            simulator=_vectorised_cartpole,
            network=lambda: ceiling.mlp(4, (64, 64), 0, 2, nn.Tanh),
            observation=(4,),
            pixels=False,
            num_envs=64,
            unroll_length=32,
        ),
    ),
    "halfcheetah": _locomotion("HalfCheetah-v5", 17, 6),
    "humanoid": _locomotion("Humanoid-v5", 348, 17, simulator_threads=2 * CORES),
    "breakout": _breakout(
        AgentConfig(pixels="nature", pixel_features=512, head_units=0), lambda: ceiling.nature(4, 512, 4), False
    ),
    "breakout-resnet": _breakout(
        AgentConfig(pixels="resnet", core="lstm", head_units=0),
        lambda: ceiling.ResNetLSTM(4, (16, 32, 32), 256, 4),
        True,
    ),
    "humanoid-run": _locomotion("HumanoidRun-v1", 67, 21, 63, simulator_threads=2 * CORES),
}


def bench(workload: str, seconds: float) -> list[dict[str, Any]]:
    """Measure one workload, or all, and print a line for each."""
    if workload != "all" and workload not in WORKLOADS:
        raise unknown("workload", workload, [*WORKLOADS, "all"])
    if not seconds > 0:
        raise UserError(f"--seconds {seconds} must be a positive number")
    names = list(WORKLOADS) if workload == "all" else [workload]
    results = []
    for name in names:
        result = measure(name, WORKLOADS[name], seconds)
        phases = "  ".join(f"{phase} {share:.0%}" for phase, share in result["phases"].items() if share >= 0.005)
        print(
            f"{name:16} {result['agent_steps_per_second']:10,.0f} agent steps/s  {phases}  "
            f"{result['ceiling_share']:.0%} of the ceiling {result['ceiling']['together']:,.0f}  "
            f"alone, over plain torch: act {result['alone_over_plain']['act']:.2f}, "
            f"learn {result['alone_over_plain']['learn']:.2f}",
            flush=True,
        )
        results.append(result)
    return results


def measure(name: str, workload: Workload, seconds: float) -> dict[str, Any]:
    """Median of three windows after a warm-up of half a window; the phases are those of the median window.

    The parts of the ceiling are measured between the windows, because the machine's own speed drifts, and in a process
    of their own, because a run changes how memory is allocated.
    """
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as directory,
        ProcessPoolExecutor(1, context) as elsewhere,
        ProcessPoolExecutor(1, context) as apart,
    ):
        run = Run(workload.config, RunDirectory(directory))
        try:
            _window(run, seconds / 2)
            windows, ceilings, parts = [], [], []
            for _ in range(WINDOWS):
                windows.append(_window(run, seconds))
                ceilings.append(elsewhere.submit(_ceiling, name, seconds / 3).result())
                parts.append(apart.submit(_alone, name, seconds / 3).result())
        finally:
            run.fleet.close()
    share = statistics.median(rate / limit.together for (rate, _), limit in zip(windows, ceilings, strict=True))
    gains = {
        part: statistics.median(ours[part] / getattr(limit, part) for ours, limit in zip(parts, ceilings, strict=True))
        for part in ("act", "learn")
    }
    windows.sort(key=lambda window: window[0])
    ceilings.sort(key=lambda limit: limit.together)
    rate, phases = windows[WINDOWS // 2]
    limit = ceilings[WINDOWS // 2]
    return {
        "workload": name,
        "agent_steps_per_second": rate,
        "windows": [w[0] for w in windows],
        "spread": (windows[-1][0] - windows[0][0]) / statistics.mean(w[0] for w in windows),
        "phases": phases,
        "ceiling": {**dataclasses.asdict(limit), "together": limit.together},
        "ceiling_share": share,
        "alone": {part: statistics.median(ours[part] for ours in parts) for part in gains},
        "alone_over_plain": gains,
    }


def _ceiling(name: str, seconds: float) -> ceiling.Ceiling:
    return ceiling.measure(WORKLOADS[name].plain, seconds)


def _alone(name: str, seconds: float) -> dict[str, float]:
    """Agent steps per second of our own acting network and of our learner, each with all cores and nothing else."""
    keep_freed_memory()
    config = WORKLOADS[name].config
    env = training_env(config, 0)
    learner = Learner(env.spec, config)
    actor = new_actor(config, env, learner.weights(), 0)
    length, num_envs = config.learner.unroll_length, env.num_envs
    batch = allocate(env.spec, learner.family, learner.target, length, num_envs, pin=False)
    actor.unroll(batch)
    inputs, state = tree_map(lambda x: x[0], agent_inputs(batch)), actor.network.initial_state(num_envs)

    def update() -> None:
        batch.versions.fill_(learner.version)
        learner.update(batch)

    act = torch.inference_mode()(lambda: actor.policy.act(inputs, state))
    rates = {
        "act": ceiling.rate(act, num_envs, seconds),
        "learn": ceiling.rate(update, num_envs * length, seconds),
    }
    env.close()
    return rates


def decisions(run: Run) -> int:
    """Steps so far that an action of the agent led to. Those in which an episode begins anew are none of them: other
    libraries begin it within the last step of the one before, and count as many."""
    return run.agent_steps - len(run.news.episodes)


def _window(run: Run, seconds: float) -> tuple[float, dict[str, float]]:
    """Agent steps per second, and shares of the time: of this process and, apart from it, of an actor's."""
    # What actors finished while nothing was measured is not of this window.
    for _ in range(1 + run.config.actors.num_actors + run.config.actors.queue_size):
        run.advance()
    run.stopwatch.reset()
    steps, started, before = decisions(run), time.perf_counter(), run.fleet.counts()
    while time.perf_counter() - started < seconds:
        run.advance()
    taken = time.perf_counter() - started
    after, count = run.fleet.counts(), run.config.actors.num_actors
    actors = {
        f"actor's {phase}": (after[name] - before[name]) / (taken * count)
        for phase in ("simulate", "infer")
        if (name := f"actors/{phase}_seconds") in after
    }
    return (decisions(run) - steps) / taken, run.stopwatch.shares() | actors
