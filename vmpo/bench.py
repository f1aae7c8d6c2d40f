"""Throughput of training on this machine: agent steps per second in steady state, where the time goes, and how near
that is to the ceiling."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import torch

from vmpo import presets
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
from vmpo.workloads import WORKLOADS, Workload, ceiling, rate

WINDOWS = 3
PRESETS = {"gymnasium": "cartpole", "mujoco": "halfcheetah", "atari": "breakout"}
"""What each suite's workloads are trained with."""


def settings(workload: Workload) -> Config:
    """One pass over each batch, by all cores."""
    base = presets.get(PRESETS[workload.suite]).config
    atari, recurrent = workload.suite == "atari", workload.pixels == "resnet"
    return replace(
        base,
        env=EnvConfig(
            suite=workload.suite,
            id="breakout" if atari else workload.task,
            clip_rewards=atari,
            # A simulator that takes most of the time has two threads for each core: beside the learner, one that waits
            # for its turn would otherwise hold up all others.
            simulator_threads=2 * (os.cpu_count() or 1) if workload.crowded else 0,
        ),
        agent=AgentConfig(
            pixels=workload.pixels or "nature",
            pixel_features=workload.features,
            hidden=workload.hidden,
            head_units=workload.head,
            activation=workload.activation,
            core="lstm" if recurrent else "none",
        ),
        learner=LearnerConfig(batch_size=workload.num_envs, unroll_length=workload.unroll_length, target_period=10),
        # Learning an LSTM's batch takes so much longer than acting that a core of the actor's own would be idle.
        actors=ActorConfig(fleet="serial" if recurrent else "overlapping", num_envs=workload.num_envs),
        run=replace(base.run, threads=0),
    )


def bench(workload: str, seconds: float) -> list[dict[str, Any]]:
    """Measure one workload, or all, and print a line for each."""
    if workload != "all" and workload not in WORKLOADS:
        raise unknown("workload", workload, [*WORKLOADS, "all"])
    if not seconds > 0:
        raise UserError(f"--seconds {seconds} must be a positive number")
    results = []
    for name in WORKLOADS if workload == "all" else [workload]:
        results.append(measure(name, seconds))
        result = results[-1]
        phases = "  ".join(f"{phase} {share:.0%}" for phase, share in result["phases"].items() if share >= 0.005)
        print(
            f"{name:16} {result['agent_steps_per_second']:10,.0f} agent steps/s  {phases}  "
            f"{result['ceiling_share']:.0%} of the ceiling {result['ceiling']['together']:,.0f}  "
            f"alone, over plain torch: act {result['alone_over_plain']['act']:.2f}, "
            f"learn {result['alone_over_plain']['learn']:.2f}",
            flush=True,
        )
    return results


def measure(name: str, seconds: float) -> dict[str, Any]:
    """Median of three windows after a warm-up of half a window; the phases are those of the median window.

    The parts of the ceiling are measured between the windows, because the machine's own speed drifts, and in a process
    of their own, because a run changes how memory is allocated.
    """
    workload, context = WORKLOADS[name], multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as directory,
        ProcessPoolExecutor(1, context) as elsewhere,
        ProcessPoolExecutor(1, context) as apart,
    ):
        run = Run(settings(workload), RunDirectory(directory))
        try:
            window(run, seconds / 2)
            windows, ceilings, alone = [], [], []
            for _ in range(WINDOWS):
                windows.append(window(run, seconds))
                ceilings.append(elsewhere.submit(ceiling, workload, seconds / 3).result())
                alone.append(apart.submit(_alone, workload, seconds / 3).result())
        finally:
            run.fleet.close()
    shares = [mine / limit["together"] for (mine, _), limit in zip(windows, ceilings, strict=True)]
    gains = {
        part: statistics.median(mine[part] / limit[part] for mine, limit in zip(alone, ceilings, strict=True))
        for part in ("act", "learn")
    }
    windows.sort(key=lambda each: each[0])
    return {
        "workload": name,
        "agent_steps_per_second": windows[WINDOWS // 2][0],
        "windows": [each[0] for each in windows],
        "phases": windows[WINDOWS // 2][1],
        "ceiling": sorted(ceilings, key=lambda limit: limit["together"])[WINDOWS // 2],
        "ceiling_share": statistics.median(shares),
        "alone": {part: statistics.median(mine[part] for mine in alone) for part in gains},
        "alone_over_plain": gains,
    }


def _alone(workload: Workload, seconds: float) -> dict[str, float]:
    """Agent steps per second of our own acting network and of our learner, each with all cores and nothing else."""
    keep_freed_memory()
    config = settings(workload)
    env = training_env(config, 0)
    learner = Learner(env.spec, config)
    actor = new_actor(config, env, learner.weights(), 0)
    batch = allocate(env.spec, learner.family, learner.target, workload.unroll_length, env.num_envs, pin=False)
    actor.unroll(batch)
    inputs, state = tree_map(lambda x: x[0], agent_inputs(batch)), actor.network.initial_state(env.num_envs)

    def update() -> None:
        batch.versions.fill_(learner.version)
        learner.update(batch)

    act = torch.inference_mode()(lambda: actor.policy.act(inputs, state))
    rates = {"act": rate(act, env.num_envs, seconds), "learn": rate(update, workload.batch_size, seconds)}
    env.close()
    return rates


def decisions(run: Run) -> int:
    """Steps so far that an action of the agent led to. Those in which an episode begins anew are none of them: other
    libraries begin it within the last step of the one before, and count as many."""
    return run.agent_steps - len(run.news.episodes)


def window(run: Run, seconds: float) -> tuple[float, dict[str, float]]:
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
