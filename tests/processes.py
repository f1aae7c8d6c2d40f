"""Learner processes as torchrun would start them, but meeting in a file: nothing listens outside of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parent


def launch(count, meeting, *command, **variables):
    """Start ``python *command`` once for each rank; ``meeting`` is a file that does not exist yet."""
    processes = []
    for rank in range(count):
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(TESTS.parent), os.environ.get("PYTHONPATH", "")]),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "OMP_NUM_THREADS": "1",
            "VMPO_RENDEZVOUS": f"file://{meeting}",
            **variables,
        }
        processes.append(
            subprocess.Popen(
                [sys.executable, *command],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return processes


def finish(processes, seconds=600.0):
    """Output of each, once all have ended; whoever has not by then is killed."""
    end = time.monotonic() + seconds
    try:
        return [process.communicate(timeout=max(1.0, end - time.monotonic())) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def train(count, meeting, *arguments, **variables):
    """``vmpo`` in so many learner processes, which must all end well; what the first one printed."""
    processes = launch(count, meeting, "-m", "vmpo", *arguments, **variables)
    outputs = finish(processes)
    assert [process.returncode for process in processes] == [0] * count, outputs
    return outputs[0][0]
