"""Actors in processes beside the learner: what they deliver, how they are held back, lost and replaced."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from samples import CountingEnv, counting_actor, make_actor, new_slot, small_config

from vmpo.acting import faults
from vmpo.acting.overlapping import OverlappingFleet, share_of_threads
from vmpo.errors import MAIN_HINT, RunFailed
from vmpo.records import Weights, tree_map
from vmpo.shared_memory import SharedArrays

ROOT = Path(__file__).parents[2]


@pytest.fixture
def make_fleet():
    """Makes fleets of counting environments, and closes them."""
    fleets, threads = [], torch.get_num_threads()

    def make(config, *, lengths=(1000,) * 4, delay=0.0, fail_at=None, report=lambda text: None):
        actor = make_actor(CountingEnv(lengths), config)
        weights = Weights(version=0, tensors=actor.network.state_dict())
        makers = [partial(counting_actor, config, lengths, delay, fail_at)] * config.actors.num_actors
        fleets.append(OverlappingFleet(config, makers, new_slot(actor, config), weights, report=report))
        return fleets[-1], weights.tensors

    yield make
    for fleet in fleets:
        fleet.close()
    torch.set_num_threads(threads)
    assert multiprocessing.active_children() == []


def overlapping(**actors):
    return small_config(actors={"fleet": "overlapping", **actors})


def test_shared_arrays_hold_every_shape_and_type():
    like = {
        "flag": torch.tensor([True, False, True]),
        "nothing": torch.zeros(0, 4),
        "inner": {"mean": torch.randn(3, dtype=torch.float64), "count": torch.tensor(7)},
        "image": torch.zeros(2, 3, dtype=torch.uint8),
    }
    shared = SharedArrays(tree_map(torch.Tensor.numpy, like))
    first, second = shared.tensors(), shared.tensors()
    first["flag"].copy_(like["flag"])
    first["inner"]["mean"].copy_(like["inner"]["mean"])
    first["inner"]["count"].copy_(like["inner"]["count"])
    assert torch.equal(second["flag"], like["flag"])
    assert torch.equal(second["inner"]["mean"], like["inner"]["mean"])
    assert second["inner"]["count"].item() == 7
    assert second["nothing"].shape == (0, 4)
    assert second["image"].tolist() == [[0] * 3] * 2


def test_every_unroll_arrives_with_its_version(make_fleet):
    fleet, tensors = make_fleet(overlapping(num_actors=2, queue_size=1), delay=1e-3)
    seen = []
    for version in range(8):
        batch = fleet.collect().batch
        assert (batch.rewards[1:] - batch.rewards[:-1]).unique().tolist() == [1.0]
        seen.append(int(batch.versions[0]))
        fleet.publish(Weights(version=version + 1, tensors=tensors))
    assert seen[0] == 0
    # Batch k was collected before version k + 1 was published.
    assert all(version <= index for index, version in enumerate(seen))
    assert seen[-1] > 0


def test_episodes_are_counted_once(make_fleet):
    fleet, _ = make_fleet(overlapping(), lengths=(5,) * 4)
    collected = [fleet.collect() for _ in range(10)]
    # An episode takes five steps and one to reset, as many as an unroll has.
    assert sum(len(c.episodes) for c in collected) == 40
    assert all(episode.length == 5 for c in collected for episode in c.episodes)
    assert sum(c.agent_steps for c in collected) == 10 * 24


def test_the_time_of_the_actors_is_told_by_phase(make_fleet):
    fleet, _ = make_fleet(overlapping(), delay=2e-3)
    steps = sum(c.agent_steps for c in (fleet.collect() for _ in range(5))) // 4
    counts = fleet.counts()
    assert counts["actors/simulate_seconds"] >= 2e-3 * steps
    assert counts["actors/infer_seconds"] > 0


def test_actors_wait_for_a_learner_that_is_slow(make_fleet):
    """They fill the slots that there are, and no more: the rest of the data is of the newest weights."""
    fleet, tensors = make_fleet(overlapping(num_actors=2, queue_size=2))
    fleet.collect()
    time.sleep(1.0)
    fleet.publish(Weights(version=1, tensors=tensors))
    versions = [int(fleet.collect().batch.versions[0]) for _ in range(12)]
    assert versions == sorted(versions)
    assert 0 < versions.count(0) <= 4


def test_the_weights_that_act_are_those_published(make_fleet):
    fleet, tensors = make_fleet(overlapping())
    fleet.collect()
    fleet.publish(Weights(version=1, tensors={name: torch.zeros_like(x) for name, x in tensors.items()}))
    batches = [(int(batch.versions[0]), bool((batch.behaviour == 0.0).all())) for batch in collected(fleet, 8)]
    assert batches[-1] == (1, True)
    assert all(zero == (version == 1) for version, zero in batches)


def collected(fleet, count):
    for _ in range(count):
        yield fleet.collect().batch


def test_an_actor_that_breaks_ends_the_run_with_one_line_and_reports_its_traceback(make_fleet):
    reports = []
    fleet, _ = make_fleet(overlapping(), fail_at=10, report=reports.append)
    fleet.collect()  # The first unroll is whole; the second breaks at its fourth call.
    with pytest.raises(RunFailed, match="an actor failed with RuntimeError: the simulator broke") as raised:
        fleet.collect()
    assert "\n" not in str(raised.value)
    assert "Traceback" in reports[-1]
    assert "the simulator broke" in reports[-1]


def test_a_killed_actor_is_replaced_and_counted(make_fleet):
    reports = []
    fleet, _ = make_fleet(overlapping(num_actors=2), delay=1e-3, report=reports.append)
    fleet.collect()
    os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
    for batch in collected(fleet, 20):
        assert (batch.rewards[1:] - batch.rewards[:-1]).unique().tolist() == [1.0]
    assert len(reports) == 1
    assert "ended with code -9" in reports[0]
    assert fleet.counts()["actors/lost_unrolls"] > 0
    assert len(multiprocessing.active_children()) == 2


def test_too_many_losses_end_the_run(make_fleet):
    fleet, _ = make_fleet(overlapping(max_faults=0))
    fleet.collect()
    os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
    with pytest.raises(RunFailed, match=r"failed once .* the process of actor 0 ended with code -9"):
        for _ in collected(fleet, 10):
            pass


def test_a_loss_now_and_then_does_not_end_the_run(make_fleet, monkeypatch):
    monkeypatch.setattr(faults, "WINDOW", 3)
    reports = []
    fleet, _ = make_fleet(overlapping(max_faults=1), report=reports.append)
    for _ in range(3):
        for _ in collected(fleet, 6):
            pass
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
    fleet.collect()
    assert len(reports) >= 2


@pytest.mark.parametrize(
    ("threads", "num_actors", "expected"), [(2, 1, (1, 1)), (8, 1, (4, 4)), (8, 3, (2, 2)), (2, 4, (1, 1))]
)
def test_cores_are_shared_between_actors_and_learner(monkeypatch, threads, num_actors, expected):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert share_of_threads(overlapping(num_actors=num_actors)) == expected


def test_a_closed_fleet_gives_its_threads_back(make_fleet):
    before = torch.get_num_threads()
    fleet, _ = make_fleet(overlapping())
    fleet.close()
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("batch_size", [2, 4, 8])
def test_a_batch_stays_as_it_is_while_the_learner_has_it(make_fleet, batch_size, passes):
    """Though the actors go on meanwhile, and an unroll of four makes two batches, one, or half of one."""
    config = small_config(actors={"fleet": "overlapping"}, learner={"batch_size": batch_size, "passes": passes})
    fleet, _ = make_fleet(config)
    ends = []
    for _ in range(8):
        batch = fleet.collect().batch
        seen = tree_map(torch.clone, batch)
        time.sleep(0.03)
        assert torch.equal(batch.rewards, seen.rewards)
        assert torch.equal(batch.observations["vector"], seen.observations["vector"])
        ends.append(float(batch.rewards[-1].max()))
    assert ends == sorted(ends)
    assert len(set(ends)) == 8 * batch_size // (4 * passes) if batch_size <= 4 else 4


def test_actors_end_with_a_learner_that_is_killed(tmp_path):
    run = tmp_path / "run"
    options = ["--frames", "100000000", "--run.log-seconds", "0.1", "--actors.fleet", "overlapping"]
    command = [sys.executable, "-m", "vmpo", "train", "cartpole", "--directory", str(run), *options]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_text(), 120)
        actors = children(process.pid)
        assert actors
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in actors), 30)
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[0])["agent_steps"] > 0


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_script_without_a_main_guard_is_told_what_to_do(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import dataclasses, vmpo\n"
        "config = vmpo.presets.get('cartpole').config\n"
        "actors = dataclasses.replace(config.actors, fleet='overlapping')\n"
        f"vmpo.train(dataclasses.replace(config, actors=actors), {str(tmp_path / 'run')!r}, quiet=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(MAIN_HINT)
