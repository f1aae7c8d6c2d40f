"""Whole runs on small environments: files, resume, determinism, stopping."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from samples import IMAGE, env_spec, new_learner, random_unrolls, small_config

import vmpo
from vmpo.errors import UserError
from vmpo.learning import checkpoint
from vmpo.learning.learner import Learner
from vmpo.options import EvaluateOptions
from vmpo.run_directory import RunDirectory
from vmpo.signals import Stopped
from vmpo.train import Run


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_times(line):
    timed = ("seconds", "steps_per_second", "phase/")
    return {key: value for key, value in line.items() if not key.startswith(timed)}


def test_a_run_writes_its_files_and_counts_frames_and_steps(tmp_path):
    result = vmpo.train(small_config(run={"frames": 240, "tensorboard": True}), tmp_path / "run", quiet=True)
    assert (result.learner_steps, result.agent_steps, result.frames) == (10, 240, 240)
    assert result.finished
    metrics = lines(tmp_path / "run" / "metrics.jsonl")
    assert [line["learner_step"] for line in metrics] == list(range(1, 11))
    for key in (
        "return_mean",
        "temperature",
        "kl_over_bound/policy",
        "effective_sample_size",
        "policy_lag",
        "target_age",
        "value_explained_variance",
        "popart/scale/CartPole-v1",
        "phase/learn",
    ):
        assert key in metrics[-1], key
    assert {"task", "return", "length", "frames"} <= set(lines(tmp_path / "run" / "episodes.jsonl")[0])
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    assert RunDirectory(tmp_path / "run").read_config() == small_config(run={"frames": 240, "tensorboard": True})


def test_a_directory_that_holds_a_run_is_refused_and_left_alone(tmp_path):
    vmpo.train(small_config(), tmp_path, quiet=True)
    before = (tmp_path / "metrics.jsonl").read_text()
    with pytest.raises(UserError, match="already holds a run"):
        vmpo.train(small_config(), tmp_path, quiet=True)
    assert (tmp_path / "metrics.jsonl").read_text() == before


class StopAtOnce(vmpo.Callback):
    def on_start(self, run):
        run.stop.request()


def test_a_preset_is_trained_by_its_name(tmp_path):
    vmpo.train("pendulum", tmp_path / "run", quiet=True, callbacks=StopAtOnce())
    assert RunDirectory(tmp_path / "run").read_config() == vmpo.presets.get("pendulum").config
    with pytest.raises(UserError, match="did you mean 'pendulum'"):
        vmpo.train("pendulm", tmp_path / "other", quiet=True)
    with pytest.raises(UserError, match=r"a vmpo\.Config or the name of a preset; given: \{'frames': 3\}"):
        vmpo.train({"frames": 3}, tmp_path / "other", quiet=True)
    assert not (tmp_path / "other").exists()


def test_an_evaluation_is_of_as_many_episodes_as_the_commands(tmp_path):
    vmpo.train(small_config(), tmp_path, quiet=True)
    assert vmpo.evaluate(tmp_path).summary()["episodes"] == EvaluateOptions(directory="run").episodes == 100


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_the_same_seed_gives_the_same_run(tmp_path, core):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        vmpo.train(small_config(agent={"core": core}, run={"seed": seed}), tmp_path / name, quiet=True)
    a, b, c = ([without_times(line) for line in lines(tmp_path / name / "metrics.jsonl")] for name in "abc")
    assert a == b
    assert a != c


def test_the_learning_rate_reaches_its_final_value_with_the_last_frame(tmp_path):
    config = small_config(learner={"final_learning_rate": 1e-5}, run={"frames": 240})
    run = Run(config, RunDirectory(tmp_path))
    rates = []
    while run.frames < 240:
        run.advance()
        rates.append(run.learner.optimiser.param_groups[0]["lr"])
    run.fleet.close()
    steps = [rates[i] - rates[i + 1] for i in range(len(rates) - 1)]
    assert rates[-1] == pytest.approx(1e-5)
    assert rates[0] > 0.85 * config.learner.learning_rate
    assert steps == [pytest.approx(steps[0])] * len(steps)


def test_resume_continues_counters_and_curves(tmp_path):
    vmpo.train(small_config(run={"frames": 120}), tmp_path, quiet=True)
    result = vmpo.resume(tmp_path, frames=240, quiet=True)
    assert (result.learner_steps, result.frames) == (10, 240)
    assert [line["learner_step"] for line in lines(tmp_path / "metrics.jsonl")] == list(range(1, 11))
    seconds = [line["seconds"] for line in lines(tmp_path / "metrics.jsonl")]
    assert seconds == sorted(seconds)


def test_lines_after_the_checkpoint_are_dropped_on_resume(tmp_path):
    vmpo.train(small_config(run={"frames": 120}), tmp_path, quiet=True)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"learner_step": 6, "frames": 144, "agent_steps": 144}) + '\n{"torn')
    vmpo.resume(tmp_path, frames=168, quiet=True)
    assert [line["learner_step"] for line in lines(tmp_path / "metrics.jsonl")] == list(range(1, 8))


@pytest.mark.parametrize("pixels", [False, True], ids=["vectors", "pixels"])
def test_saving_loading_and_stepping_is_bitwise_equal(tmp_path, pixels):
    """Weights of convolutions lie in memory in an order of their own, and so must their moments."""
    config = small_config(
        agent={"core": "lstm", "normalise_observations": True, "pixels": "nature"}, loss={"popart_rate": 0.1}
    )
    spec = replace(env_spec(), observation=env_spec().observation | (IMAGE if pixels else {}))
    straight = new_learner(config, spec)
    for seed in range(4):
        straight.update(random_unrolls(straight, seed))
    checkpoint.save(tmp_path, straight, {}, {}, keep=1)
    restored = new_learner(config, spec, seed=99)
    checkpoint.restore(restored, checkpoint.latest(tmp_path))
    assert (restored.learner_step, restored.version) == (4, 1)
    for seed in range(4, 9):
        batch = random_unrolls(straight, seed)
        first, second = straight.update(batch), restored.update(batch)
        assert all(torch.equal(torch.as_tensor(first[name]), torch.as_tensor(second[name])) for name in first)
    others = restored.online.state_dict()
    assert all(torch.equal(tensor, others[name]) for name, tensor in straight.online.state_dict().items())


def test_a_run_that_is_stopped_within_an_unroll_goes_on_in_step_with_its_targets(tmp_path, monkeypatch):
    config = small_config(
        actors={"num_envs": 8}, learner={"passes": 2, "target_period": 4}, run={"frames": 480, "log_steps": 1}
    )
    assert config.updates_per_unroll == 4
    update = Learner.update

    def stopped(learner, *arguments, **options):
        if learner.learner_step == 5:
            raise Stopped
        return update(learner, *arguments, **options)

    monkeypatch.setattr(Learner, "update", stopped)
    assert not vmpo.train(config, tmp_path, quiet=True).finished
    progress = checkpoint.latest(tmp_path / "checkpoints").progress
    assert (progress["learner_step"], progress["version"], progress["agent_steps"]) == (8, 2, 96)
    monkeypatch.setattr(Learner, "update", update)
    vmpo.resume(tmp_path, quiet=True)
    written = lines(tmp_path / "metrics.jsonl")
    assert written[-1]["learner_step"] == 40
    assert {line["policy_lag"] for line in written} == {0.0}


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    learner = new_learner(small_config())
    for seed in range(5):
        learner.update(random_unrolls(learner, seed))
        checkpoint.save(tmp_path, learner, {}, {}, keep=2)
    assert [path.name for path in checkpoint.available(tmp_path)] == ["step_0000000004", "step_0000000005"]


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
    learner = new_learner(small_config())
    checkpoint.save(tmp_path, learner, {}, {}, keep=1)
    other = new_learner(small_config(agent={"hidden": (17,)}))
    with pytest.raises(UserError, match="does not fit the configuration"):
        checkpoint.restore(other, checkpoint.latest(tmp_path))


def test_a_signal_to_the_whole_group_stops_a_run_with_its_workers(tmp_path):
    """As timeout, systemd and schedulers send it: simulators in worker processes hear it too."""
    command = [
        sys.executable,
        "-m",
        "vmpo",
        "train",
        "cartpole",
        "--env.simulator-threads",
        "2",
        "--frames",
        "10000000",
    ]
    command += ["--directory", str(tmp_path / "run"), "--quiet", "--run.log-seconds", "0.1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not metrics.exists() or not metrics.read_text():
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "stopped at" in output
    assert not (tmp_path / "run" / "faults.log").exists()


def test_a_signal_saves_and_stops_and_the_run_can_be_resumed(tmp_path):
    before = signal.getsignal(signal.SIGINT)

    def interrupt():
        # A slow machine may need longer than any fixed time to get into the loop, before which Ctrl-C acts as usual.
        while not list(tmp_path.glob("metrics.jsonl")) or not (tmp_path / "metrics.jsonl").read_text():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    result = vmpo.train(small_config(run={"frames": 10**9, "log_steps": 1}), tmp_path, quiet=True)
    assert not result.finished
    assert 0 < result.frames < 10**9
    resumed = vmpo.resume(tmp_path, frames=result.frames + 48, quiet=True)
    assert resumed.frames == result.frames + 48
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("fleet", ["serial", "overlapping"])
def test_an_unroll_that_would_take_minutes_is_given_up_after_a_signal(tmp_path, monkeypatch, fleet):
    mark, interrupted = tmp_path / "stepped", []

    def interrupt():
        while not mark.exists():
            time.sleep(0.01)
        interrupted.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("vmpo.signals.GRACE_SECONDS", 0.5)
    monkeypatch.setenv("SLOW_ENV_MARK", str(mark))
    threading.Thread(target=interrupt, daemon=True).start()
    config = small_config(env={"id": "samples:SlowEnv"}, learner={"unroll_length": 4000}, actors={"fleet": fleet})
    result = vmpo.train(config, tmp_path / "run", quiet=True)
    assert time.monotonic() - interrupted[0] < 20.0
    assert not result.finished
    assert result.agent_steps == 0
    assert checkpoint.latest(tmp_path / "run" / "checkpoints").progress["learner_step"] == 0


def test_the_overlapping_fleet_trains_and_reports_its_lag(tmp_path):
    config = small_config(
        actors={"fleet": "overlapping", "num_actors": 2}, learner={"target_period": 1}, run={"frames": 24 * 40}
    )
    vmpo.train(config, tmp_path, quiet=True)
    lags = [line["policy_lag"] for line in lines(tmp_path / "metrics.jsonl")]
    assert len(lags) == 40
    assert min(lags) >= 0
    assert max(lags) > 0


def test_actors_can_be_kept_behind_on_purpose(tmp_path):
    vmpo.train(small_config(actors={"lag": 2}, learner={"target_period": 1}), tmp_path, quiet=True)
    assert [line["policy_lag"] for line in lines(tmp_path / "metrics.jsonl")] == [0, 1, 2, 2]


def test_a_loaded_policy_acts_as_the_evaluated_one(tmp_path):
    vmpo.train(small_config(agent={"core": "lstm"}), tmp_path, quiet=True)
    policy = vmpo.load(tmp_path)
    single, state = policy.act(np.zeros(4, np.float32))
    batch, _ = policy.act(np.zeros((3, 4), np.float32))
    assert batch.tolist() == [single] * 3
    env = gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=0)
    for _ in range(5):
        action, state = policy.act(observation, state)
        observation, *_ = env.step(action)
    summary = vmpo.evaluate(tmp_path, 5).summary()
    assert summary["episodes"] == 5
    assert summary == vmpo.evaluate(tmp_path, 5).summary()


def test_fleet_time_is_split_into_phases_that_sum_to_one(tmp_path):
    run = Run(small_config(), RunDirectory(tmp_path))
    run.stopwatch.reset()
    started = time.perf_counter()
    for _ in range(20):
        run.advance()
    shares = run.stopwatch.shares()
    run.fleet.close()
    assert sum(shares.values()) == pytest.approx(1.0)
    # A phase that nobody measures has no share at all; how large one is depends on what else the machine does.
    assert min(shares["simulate"], shares["infer"], shares["learn"]) > 0.0
    assert time.perf_counter() - started < 60


def test_evaluation_plays_whole_episodes_though_training_is_staggered(tmp_path):
    config = small_config(env={"id": "Pendulum-v1", "stagger": True})
    result = vmpo.train(config, tmp_path, quiet=True)
    assert result.evaluation is None
    assert {e.length for e in vmpo.evaluate(tmp_path, 6).episodes} == {200}


def test_a_run_ends_when_its_last_unroll_is_learned_from(tmp_path):
    config = small_config(learner={"batch_size": 2, "passes": 3}, run={"frames": 48})
    result = vmpo.train(config, tmp_path, quiet=True)
    # Two unrolls of 4 x 6, each in two batches, three times.
    assert (result.agent_steps, result.learner_steps) == (48, 12)


def test_a_run_that_was_killed_at_once_can_be_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "loop", lambda self, **options: None)
    vmpo.train(small_config(), tmp_path, quiet=True)
    monkeypatch.undo()
    assert vmpo.resume(tmp_path, quiet=True).frames == 96


def test_more_frames_are_remembered_by_the_run(tmp_path):
    vmpo.train(small_config(), tmp_path, quiet=True)
    vmpo.resume(tmp_path, frames=240, quiet=True)
    assert RunDirectory(tmp_path).read_config().run.frames == 240


def test_a_resumed_overlapping_fleet_starts_with_the_restored_weights(tmp_path):
    config = small_config(actors={"fleet": "overlapping"}, learner={"target_period": 1})
    vmpo.train(config, tmp_path, quiet=True)
    vmpo.resume(tmp_path, frames=192, quiet=True)
    resumed = lines(tmp_path / "metrics.jsonl")[4]
    assert resumed["learner_step"] == 5
    assert resumed["policy_lag"] == 0


def test_ranges_are_sampled_from_python_too(tmp_path):
    from dataclasses import replace

    preset = vmpo.presets.get("paper-gym-walker2d").config
    config = replace(small_config(), preset="paper-gym-walker2d", loss=replace(preset.loss, epsilon_policy=0.01))
    vmpo.train(config, tmp_path, quiet=True)
    assert 0.005 <= RunDirectory(tmp_path).read_config().loss.epsilon_mean <= 0.01


@pytest.mark.parametrize("where", ["between unrolls", "within an unroll"])
def test_a_run_that_is_stopped_writes_a_last_line(tmp_path, monkeypatch, where):
    """Lines are hours apart here, so that only the last is written."""
    config = small_config(learner={"passes": 2}, run={"frames": 480, "log_steps": None, "log_seconds": 1e6})
    advance = Run.advance

    def stopping(run):
        if run.learner.learner_step == 7:
            run.stop.request()
            if where == "within an unroll":
                raise Stopped
        return advance(run)

    monkeypatch.setattr(Run, "advance", stopping)
    result = vmpo.train(config, tmp_path, quiet=True)
    assert not result.finished
    (line,) = lines(tmp_path / "metrics.jsonl")
    assert (line["learner_step"], line["frames"]) == (result.learner_steps, result.frames)
    assert result.learner_steps == 8
    assert line["temperature"] is not None


def test_the_directory_of_a_run_is_shown_first(tmp_path, capsys):
    vmpo.train(small_config(), tmp_path / "run")
    assert capsys.readouterr().err.splitlines()[0].startswith(f"{tmp_path / 'run'} (")


def test_a_folder_of_other_files_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match=r"is not empty \(it holds thesis.tex\); choose another directory"):
        vmpo.train(small_config(), tmp_path, quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_run_can_be_resumed_to_the_frames_it_was_resumed_to_before(tmp_path):
    """Learners that are started again by a cluster do so; an unroll may have gone beyond these frames."""
    vmpo.train(small_config(), tmp_path, quiet=True)
    assert vmpo.resume(tmp_path, frames=100, quiet=True).frames == 120
    again = vmpo.resume(tmp_path, frames=100, quiet=True)
    assert (again.frames, again.finished, again.trained) == (120, True, False)
    for frames in (96, 119, 120):
        with pytest.raises(UserError, match=f"has 120 frames already; --frames {frames} must be more"):
            vmpo.resume(tmp_path, frames=frames, quiet=True)
