"""Learner processes over gloo: the same updates as virtual replicas, resume with another number, and a lost process."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from learning.replica_updates import outcome
from processes import finish, launch, train
from samples import CONTINUOUS, IMAGE, env_spec, new_learner, random_unrolls, small_config

from vmpo.errors import UserError
from vmpo.learning import checkpoint
from vmpo.learning.replicas import Replicas, share_of
from vmpo.problems import check, problems

UPDATES = Path(__file__).parent / "replica_updates.py"

CASES = {
    "discrete": {},
    "continuous": {"loss": {"popart_rate": 0.1}},
    "lstm and normaliser": {"agent": {"core": "lstm", "normalise_observations": True}},
    # Gradients of convolutions have zeros that are not quite zero, which Adam would make as large as the others.
    "images": {
        "agent": {"pixels": "nature", "normalise_observations": True},
        "learner": {"unroll_length": 20, "adam_epsilon": 0.1},
    },
    "exact temperature": {"loss": {"exact_temperature": True}},
    "global top half": {"loss": {"top_scope": "global"}},
    "global, exact, stale": {"loss": {"top_scope": "global", "exact_temperature": True, "importance_weights": True}},
    "clipped": {"learner": {"max_gradient_norm": 0.1}},
    "ppo": {"loss": {"algorithm": "ppo"}},
    "not finite": {},
}


def recorded(name, sections, num_updates=5):
    """A case: configuration, batches, and what one process with two virtual replicas learns from them."""
    learner_fields = {"virtual_replicas": 2, **sections.get("learner", {})}
    config = small_config(**{**sections, "learner": learner_fields})
    spec = env_spec(CONTINUOUS) if name == "continuous" else env_spec(tasks=("a", "b"))
    if name == "images":
        spec = replace(spec, observation=spec.observation | IMAGE)
    learner = new_learner(config, spec)
    batches = []
    for seed in range(num_updates):
        batch = random_unrolls(learner, seed)
        if name == "not finite" and seed == 2:
            batch.rewards[3, 3] = torch.nan
        if name == "global, exact, stale":
            # Old data in the second half alone, so that the two processes disagree on whether theirs is the target's.
            batch.versions[2:] -= 1
            batch.behaviour[:, 2:] += 0.02 * torch.randn(
                batch.behaviour[:, 2:].shape, generator=torch.Generator().manual_seed(seed)
            )
        batches.append(batch)
        metrics = learner.update(batch)
    alone = replace(config, learner=replace(config.learner, virtual_replicas=1))
    return {"config": alone, "spec": spec, "batches": batches}, outcome(learner, metrics)


def test_two_processes_learn_what_two_virtual_replicas_learn(tmp_path):
    cases = {name: recorded(name, sections) for name, sections in CASES.items()}
    torch.save([case for case, _ in cases.values()], tmp_path / "cases")
    processes = launch(2, tmp_path / "meeting", str(UPDATES), str(tmp_path / "cases"))
    outputs = finish(processes)
    assert [process.returncode for process in processes] == [0, 0], outputs
    first, second = (torch.load(tmp_path / f"cases.{rank}") for rank in range(2))
    for (name, (_, expected)), one, other in zip(cases.items(), first, second, strict=True):
        for part in ("online", "target", "multipliers", "statistics", "counters"):
            for a, b, c in zip(expected[part], one[part], other[part], strict=True):
                assert torch.equal(b, c), (name, part)
                assert (a - b).abs().max() < 1e-6, (name, part)
        for metric, value in expected["metrics"].items():
            torch.testing.assert_close(one["metrics"][metric], value, rtol=1e-4, atol=1e-5, equal_nan=True, msg=metric)
    assert cases["not finite"][1]["counters"][0][2] == 1


def test_a_batch_and_the_environments_divide_over_the_processes():
    config = small_config(learner={"batch_size": 8}, actors={"num_envs": 4})
    share = share_of(config, Replicas(rank=1, count=2))
    assert (share.learner.batch_size, share.actors.num_envs) == (4, 2)
    assert problems(config, replicas=4) == []
    assert "batch_size=8 does not divide over 3 replicas; try 6" in problems(config, replicas=3)[0]
    assert "num_envs=4 does not divide over 8 learner processes" in problems(config, replicas=8)[0]
    with pytest.raises(UserError, match="does not divide"):
        check(config, replicas=3)


OPTIONS = ("--run.tensorboard", "False", "--run.log-steps", "1", "--run.evaluation-episodes", "0", "--quiet")


def metrics_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_run_resumes_with_another_number_of_processes(tmp_path):
    """Two, then one, then two: one curve, one count of steps, and episodes of all of them in one file."""
    run = tmp_path / "run"
    train(2, tmp_path / "1", "train", "cartpole", "--directory", str(run), "--frames", "2048", *OPTIONS)
    assert checkpoint.latest(run / "checkpoints").progress["agent_steps"] == 2048
    train(1, tmp_path / "2", "resume", str(run), "--frames", "4096", "--quiet")
    train(2, tmp_path / "3", "resume", str(run), "--frames", "6144", "--quiet")
    lines = metrics_of(run)
    # 16 environments of 64 steps, in batches of 4, each taken 8 times: 32 learner steps for 1,024 agent steps.
    assert [line["learner_step"] for line in lines] == list(range(1, 6 * 32 + 1))
    assert lines[-1]["agent_steps"] == 6144
    episodes = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    # Whoever plays, all of the steps belong to episodes that are reported, but for those that are unfinished.
    assert 0.6 * 6144 < sum(episode["length"] for episode in episodes) <= 6144
    assert lines[-1]["episodes"] == len(episodes)


def wait_for_steps(run, processes, seconds=240.0):
    end = time.monotonic() + seconds
    while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").read_text():
        assert all(process.poll() is None for process in processes), finish(processes)
        assert time.monotonic() < end, "the run did not get going"
        time.sleep(0.1)


def start(tmp_path, **variables):
    run = tmp_path / "run"
    command = ("-m", "vmpo", "train", "cartpole", "--directory", str(run), "--frames", "100000000", *OPTIONS)
    processes = launch(2, tmp_path / "meeting", *command, **variables)
    wait_for_steps(run, processes)
    return run, processes


def test_a_signal_to_one_process_stops_all_of_them_at_the_same_step(tmp_path):
    run, processes = start(tmp_path)
    processes[1].send_signal(signal.SIGTERM)
    outputs = finish(processes, 120.0)
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert "stopped at" in outputs[0][0]
    assert outputs[1][0] == ""
    assert checkpoint.latest(run / "checkpoints").progress["learner_step"] == metrics_of(run)[-1]["learner_step"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "silent"])
def test_a_lost_process_ends_the_run_with_a_clear_message(tmp_path, how):
    run, processes = start(tmp_path, VMPO_REPLICA_TIMEOUT="10")
    os.kill(processes[1].pid, how)
    try:
        output, errors = processes[0].communicate(timeout=120)
    finally:
        finish(processes, 1.0) if how is signal.SIGKILL else processes[1].kill()
    assert processes[0].returncode == 1, output
    assert "has lost another one, which has ended or did not answer within 10 s" in errors
    assert "Traceback" not in errors
    # The last checkpoint was made between two unrolls of 32 updates each, and stands.
    assert checkpoint.latest(run / "checkpoints").progress["learner_step"] % 32 == 0


def test_a_users_mistake_is_said_once(tmp_path):
    processes = launch(2, tmp_path / "meeting", "-m", "vmpo", "train", "cartpole", "--learner.batch-size", "5")
    outputs = finish(processes)
    assert [process.returncode for process in processes] == [2, 2]
    assert "does not divide over 2 replicas" in outputs[0][1]
    assert outputs[1] == ("", "")


@pytest.mark.learning
def test_four_processes_solve_cartpole(tmp_path):
    # Half of the preset's frames: four processes on two cores wait for each other most of the time.
    arguments = ("train", "cartpole", "--directory", str(tmp_path / "run"), "--frames", "51200")
    printed = train(4, tmp_path / "meeting", *arguments, "--run.tensorboard", "False", "--quiet", "--json")
    assert json.loads(printed.splitlines()[-1])["evaluation"]["mean_return"] >= 475
