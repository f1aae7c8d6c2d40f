"""A sweep whose driver is killed goes on from its run directories: all trials finish, and none is run twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("ray")

from vmpo import presets
from vmpo.cli import main
from vmpo.config import Config
from vmpo.errors import UserError
from vmpo.sweep import claim, summarise, table, trials_of

FRAMES = 8 * 1024
COMMAND = [sys.executable, "-m", "vmpo", "sweep", "cartpole", "--trials", "6", "--frames", str(FRAMES), "--json"]
SHORT = ["--run.tensorboard", "False", "--run.evaluation-episodes", "0", "--run.checkpoint-seconds", "0.5"]


def start(folder):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.Popen(
        [*COMMAND, *SHORT, "--directory", str(folder)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(folder):
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("trial_*/result.json")}


def test_a_killed_sweep_goes_on_and_runs_no_trial_twice(tmp_path):
    folder = tmp_path / "sweep"
    process = start(folder)
    end = time.monotonic() + 300
    while len(finished(folder)) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "no trial has finished"
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = finished(folder)

    process = start(folder)
    output, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors
    after = finished(folder)
    assert len(before) < len(after) == 6
    assert {name: after[name] for name in before} == before, "what had finished was left alone"
    for trial in sorted(folder.glob("trial_*")):
        frames = [json.loads(line)["frames"] for line in (trial / "metrics.jsonl").read_text().splitlines()]
        assert frames == sorted(set(frames))
        assert frames[-1] == FRAMES
    rows = json.loads(output.splitlines()[-1])["trials"]
    assert {row["seed"] for row in rows} == set(range(6))
    assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)
    assert (folder / "best").resolve().name == rows[0]["trial"]
    assert main(["evaluate", str(folder / "best"), "--episodes", "2"]) == 0


def test_each_trial_draws_its_own_values_from_the_ranges_of_the_preset(tmp_path):
    rows = [trial.row() for trial in trials_of(presets.get("paper-atari").config, tmp_path, 5)]
    drawn = [row["epsilon_policy"] for row in rows]
    assert len(set(drawn)) == 5
    assert all(0.005 <= value < 0.01 for value in drawn)
    assert rows == [trial.row() for trial in trials_of(presets.get("paper-atari").config, tmp_path, 5)]


def test_the_best_finished_trial_comes_first_in_the_table(tmp_path):
    trials = trials_of(presets.get("cartpole").config, tmp_path, 3)
    for trial, score in zip(trials[:2], (10.0, 20.0), strict=True):
        trial.path.mkdir()
        trial.result_file.write_text(json.dumps({"score": score}))
    lines = table(summarise(trials, tmp_path))
    assert [line.split()[0] for line in lines] == ["trial", "trial_001", "trial_000", "trial_002"]
    assert (tmp_path / "best").resolve() == trials[1].path.resolve()


def test_a_directory_holds_one_sweep(tmp_path):
    claim(tmp_path / "a", Config())
    claim(tmp_path / "a", Config())
    with pytest.raises(UserError, match="other settings"):
        claim(tmp_path / "a", presets.get("cartpole").config)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match="not empty"):
        claim(tmp_path, Config())
