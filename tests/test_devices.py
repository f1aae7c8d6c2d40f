"""Devices, as far as a machine without a GPU can tell: which are refused, and what a run of another machine needs."""

from __future__ import annotations

import json

import pytest
import torch
from samples import small_config

import vmpo
from vmpo.actors import set_threads
from vmpo.errors import UserError
from vmpo.problems import check


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:1"])
def test_devices_that_are_there_are_accepted(two_gpus, device):
    check(small_config(learner={"device": device}))


def test_a_device_that_is_not_there_is_refused(two_gpus):
    with pytest.raises(UserError, match="cuda:2, but torch finds 2 CUDA devices"):
        check(small_config(learner={"device": "cuda:2"}))


def test_learners_do_not_share_a_device(two_gpus):
    config = small_config(learner={"device": "cuda:1"})
    with pytest.raises(UserError, match="cuda gives each its own"):
        check(config, replicas=2)
    check(small_config(learner={"device": "cuda"}), replicas=2)


def test_a_run_whose_actors_had_a_gpu_is_evaluated_without_one(tmp_path):
    vmpo.train(small_config(), tmp_path / "run", quiet=True)
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text())
    config["actors"]["device"] = "cuda"
    path.write_text(json.dumps(config))
    assert len(vmpo.evaluate(tmp_path / "run", 2).episodes) == 2


@pytest.mark.parametrize(("learners", "threads", "expected"), [("2", 0, 4), ("16", 0, 1), ("2", 3, 3), (None, 0, 5)])
def test_learners_of_one_machine_share_its_cores(monkeypatch, learners, threads, expected):
    """torchrun starts each with one thread; without it torch's own number stays."""
    before, chosen = torch.get_num_threads(), [5]
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    if learners is None:
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    else:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", learners)
    set_threads(small_config(run={"threads": threads}))
    assert chosen[-1] == expected
    assert torch.get_num_threads() == before
