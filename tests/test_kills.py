"""A run that is killed again and again, at any moment, goes on from its last checkpoint each time.

Three kills in ``make test``; ``VMPO_KILLS=20 pytest tests/test_kills.py`` for more.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

from vmpo.learning import checkpoint

KILLS = int(os.environ.get("VMPO_KILLS", "3"))
INTERVAL = 0.3
"""Seconds between checkpoints."""
SLOW_SAVES = """
import sys, time
from vmpo.cli import main
from vmpo.learning import checkpoint
sync = checkpoint._sync
checkpoint._sync = lambda path: (time.sleep(0.3), sync(path))
sys.exit(main(sys.argv[1:]))
"""
"""Each save waits before each of its four fsyncs, so that most kills fall into the middle of one."""
FSYNCS, WAIT = 4, 0.3
"""What a slow save waits for, and how long each time."""
SLACK = 3.0
"""Seconds that an unroll, a save and the machine's other work may add."""


def vmpo(*arguments, slow_saves=False):
    program = ["-c", SLOW_SAVES] if slow_saves else ["-m", "vmpo"]
    return subprocess.Popen(
        [sys.executable, *program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def last_line(path):
    """The newest whole line of the metrics; a kill may have torn the last."""
    found = {}
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            found = json.loads(line)
        except ValueError:
            continue
    return found


def wait_for_progress(metrics, beyond, process, seconds=120.0):
    end = time.monotonic() + seconds
    while last_line(metrics).get("agent_steps", 0) <= beyond:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "the run did not get going"
        time.sleep(0.02)


def test_kills_at_random_moments_lose_at_most_one_interval(tmp_path):
    generator = random.Random(0)
    run, metrics = tmp_path / "run", tmp_path / "run" / "metrics.jsonl"
    process = vmpo(
        *("train", "cartpole", "--directory", str(run), "--frames", "100000000", "--run.tensorboard", "False"),
        *("--run.checkpoint-seconds", str(INTERVAL), "--run.log-seconds", "0.05", "--run.evaluation-episodes", "0"),
    )
    reached = logged = within_a_save = 0
    slow_saves = False
    for _ in range(KILLS):
        wait_for_progress(metrics, logged, process)
        time.sleep(generator.uniform(0.0, 1.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
        within_a_save += any((run / "checkpoints").glob(".step_*.tmp"))
        seen = last_line(metrics)
        saved = checkpoint.latest(run / "checkpoints")
        assert saved.damaged == ()
        assert saved.progress["agent_steps"] >= reached
        # A checkpoint counts the seconds before its own save; the kill may fall at the end of the next one.
        saving = 2 * FSYNCS * WAIT if slow_saves else 0.0
        assert seen["seconds"] - saved.progress["seconds"] <= INTERVAL + saving + SLACK
        # The lines of the killed process stay until the next one drops them: only what is beyond them is new.
        reached, logged = saved.progress["agent_steps"], seen["agent_steps"]
        slow_saves = not slow_saves
        process = vmpo("resume", str(run), "--quiet", slow_saves=slow_saves)
    assert within_a_save >= KILLS // 4
    wait_for_progress(metrics, logged, process)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "resume: vmpo resume" in output

    steps = [json.loads(line)["agent_steps"] for line in metrics.read_text().splitlines()]
    assert steps == sorted(set(steps)), "the curve goes on without a gap or a repetition"
    progress = checkpoint.latest(run / "checkpoints").progress
    assert progress["agent_steps"] == progress["frames"] >= steps[-1]
    # 16 environments of 64 steps, in batches of 4, each taken 8 times.
    assert progress["learner_step"] == progress["agent_steps"] // (16 * 64) * 32
    assert not list((run / "checkpoints").glob(".step_*.tmp"))
