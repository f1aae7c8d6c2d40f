"""Who may write in a run directory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from samples import small_config

import vmpo
from vmpo.errors import UserError
from vmpo.run_directory import RunDirectory

HOLD = """
import sys, time
from vmpo.run_directory import RunDirectory
with RunDirectory(sys.argv[1]).lock():
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of ``tmp_path``."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_second_process_is_refused_and_told_who_is_there(tmp_path, holder):
    with pytest.raises(UserError, match=rf"in use by another process \({holder.pid}\)"):
        vmpo.train(small_config(), tmp_path, quiet=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock"]


def test_a_killed_process_leaves_the_directory_free(tmp_path, holder):
    holder.kill()
    holder.wait()
    assert vmpo.train(small_config(), tmp_path, quiet=True).finished


def test_a_run_in_progress_cannot_be_resumed_a_second_time(tmp_path):
    vmpo.train(small_config(), tmp_path, quiet=True)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with RunDirectory(tmp_path).lock(), pytest.raises(UserError, match="in use"):
        vmpo.resume(tmp_path, frames=240, quiet=True)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def strangers_run(tmp_path):
    """A run whose configuration names a module that lies in it and leaves a mark when it is executed."""
    vmpo.train(small_config(), tmp_path / "run", quiet=True)
    (tmp_path / "run" / "payload.py").write_text(
        "from pathlib import Path\nPath(__file__).with_name('executed').touch()\ndef MyEnv():\n    raise SystemExit\n"
    )
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["env"]["id"] = "payload:MyEnv"
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    return tmp_path / "run"


@pytest.mark.parametrize("use", [vmpo.load, vmpo.resume, lambda path: vmpo.evaluate(path, 1)])
def test_nothing_in_a_strangers_run_is_executed_unless_trusted(tmp_path, monkeypatch, use):
    run = strangers_run(tmp_path)
    monkeypatch.chdir(run)
    with pytest.raises(UserError, match="'payload', which would be imported and executed; add --trust"):
        use(run)
    assert not (run / "executed").exists()


def test_a_trusted_run_may_import_its_module(tmp_path, monkeypatch):
    run = strangers_run(tmp_path)
    monkeypatch.chdir(run)
    monkeypatch.setattr(sys, "path", [str(run), *sys.path])
    vmpo.load(run, trust=True)
    assert not (run / "executed").exists(), "to act takes no environment"
    with pytest.raises(SystemExit):
        vmpo.evaluate(run, 1, trust=True)
    assert (run / "executed").exists()
    sys.modules.pop("payload")
