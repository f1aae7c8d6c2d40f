"""Whole runs on environments that raise, hang, die or return nonsense: they go on, and say what happened."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import faulty
import pytest
from samples import small_config

import vmpo
from vmpo import presets
from vmpo.errors import RunFailed, UserCodeError, UserError
from vmpo.evaluation import evaluate_weights
from vmpo.learning import checkpoint

FAULTS = [fault.__name__ for fault in faulty.FAULTS]
EVERY = 16_000


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


@pytest.mark.parametrize("workers", [0, 2])
def test_an_environment_that_never_worked_ends_the_run_at_once_and_names_the_line(tmp_path, workers, capsys):
    config = small_config(env={"id": "faulty:CannotStep", "simulator_threads": workers})
    line = r"^the environments failed in their first unroll: KeyError: 'missing' \(faulty.py:\d+ in step\)$"
    with pytest.raises(RunFailed, match=line) as raised:
        vmpo.train(config, tmp_path / "run")
    assert "restart" not in "".join(capsys.readouterr())
    assert isinstance(raised.value.__cause__, UserCodeError)
    log = (tmp_path / "run" / "faults.log").read_text()
    assert 'return {}["missing"]' in log
    assert len(re.findall(r"^20\d\d-", log, re.M)) == 1


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("FourValues", r"step\(\) must return .* \(expected 5, got 4\) \(faulty.py:\d+ in step\)$"),
        ("AlwaysWrongShape", r"the observation has the shape \(2, 2\), its space \(5,\) \(faulty.py:\d+ in step\)$"),
        ("CannotReset", r"^faulty.py:\d+ in reset: FileNotFoundError: no level$"),
        ("NoSeed", r"^faulty.py:\d+ in reset: .* it must be reset\(self, \*, seed=None, options=None\)$"),
    ],
)
def test_what_an_environment_must_do_is_said_wherever_it_is_played(tmp_path, env, message, workers):
    config = small_config(env={"id": f"faulty:{env}", "simulator_threads": workers})
    with pytest.raises((UserError, RunFailed), match=message) as raised:
        vmpo.train(config, tmp_path / "run", quiet=True)
    assert raised.value.__cause__ is not None


@pytest.mark.learning
def test_cartpole_is_solved_through_every_kind_of_fault(tmp_path, monkeypatch):
    """About one fault in 16,000 steps, each of which costs an unroll and a restart of all environments.

    Hence half as many steps again as without faults: after 100,000 the mean has also been 473.
    """
    monkeypatch.setattr("vmpo.suites.workers.PATIENCE_SECONDS", 8.0)
    count, log = tmp_path / "count", tmp_path / "log"
    count.write_text("0")
    log.touch()
    for name, value in (("EVERY", str(EVERY)), ("COUNT", str(count)), ("LOG", str(log))):
        monkeypatch.setenv(f"FAULTY_{name}", value)
    config = presets.get("cartpole").config
    sections = {
        "env": {"id": "faulty:rate_cartpole", "simulator_threads": 2},
        "actors": {"max_faults": 100},
        "run": {"frames": 150_000, "evaluation_episodes": 0, "tensorboard": False},
    }
    for section, fields in sections.items():
        config = replace(config, **{section: replace(getattr(config, section), **fields)})
    assert vmpo.train(config, tmp_path / "run", quiet=True).finished

    injected = log.read_text().splitlines()
    assert set(injected) == set(FAULTS)
    assert len(injected) == int(count.read_text()) // EVERY >= 6
    assert metrics(tmp_path / "run")[-1]["faults/environment"] == len(injected)
    assert len(re.findall(r"^20\d\d-", (tmp_path / "run" / "faults.log").read_text(), re.M)) == len(injected)

    sound = replace(config, env=replace(config.env, id="CartPole-v1", simulator_threads=1))
    saved = checkpoint.latest(tmp_path / "run" / "checkpoints")
    result = evaluate_weights(sound, checkpoint.online_weights(saved), 100)
    assert result.summary()["mean_return"] >= 475
