"""Whole runs on environments that raise, hang, die or return nonsense: they go on, and say what happened."""

from __future__ import annotations

import json

import pytest
from samples import small_config

import vmpo
from vmpo.errors import RunFailed

FAULTS = ("Raises", "Dies", "Hangs", "NotANumber", "WrongShape")


def metrics(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(autouse=True)
def impatient(monkeypatch, tmp_path):
    monkeypatch.setattr("vmpo.suites.workers.PATIENCE_SECONDS", 20.0)
    monkeypatch.setattr("vmpo.suites.workers.CLOSE_SECONDS", 0.5)
    monkeypatch.setattr("vmpo.acting.faults.LONGEST_PAUSE", 0.0)
    # The environments count their faults there, because each restart is a new process.
    monkeypatch.setenv("FAULTY_ONCE", str(tmp_path / "happened"))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_goes_on_after_a_fault_in_a_worker(tmp_path, monkeypatch, fault):
    if fault == "Hangs":
        monkeypatch.setattr("vmpo.suites.workers.PATIENCE_SECONDS", 8.0)
    config = small_config(env={"id": f"faulty:{fault}", "simulator_threads": 2}, run={"frames": 240})
    result = vmpo.train(config, tmp_path / "run", quiet=True)
    assert result.finished
    assert metrics(tmp_path / "run")[-1]["faults/environment"] == 1
    assert (tmp_path / "run" / "faults.log").read_text().strip()


@pytest.mark.parametrize("fault", ["Raises", "NotANumber", "WrongShape"])
def test_a_run_goes_on_after_a_fault_in_this_process(tmp_path, fault):
    config = small_config(env={"id": f"faulty:{fault}"}, run={"frames": 240})
    assert vmpo.train(config, tmp_path / "run", quiet=True).finished
    assert metrics(tmp_path / "run")[-1]["faults/environment"] == 1


def test_an_environment_that_always_fails_ends_the_run_with_the_first_cause(tmp_path, monkeypatch):
    monkeypatch.delenv("FAULTY_ONCE")
    config = small_config(env={"id": "faulty:Raises"}, run={"frames": 240}, actors={"max_faults": 3})
    with pytest.raises(RunFailed, match=r"failed 4 times .* the first cause was RuntimeError: the motor broke"):
        vmpo.train(config, tmp_path / "run", quiet=True)
    assert (tmp_path / "run" / "faults.log").read_text().count("the motor broke") >= 4
