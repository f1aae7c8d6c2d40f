"""Run a preset at full speed for a while and watch what must not grow: memory, open files, threads.

    python benchmarks/soak.py cartpole --minutes 60

Prints one line a minute and a verdict: resident memory of the last half grows by less than 1 %, open files and threads
are constant, and throughput of the last sixth is within 5 % of the first sixth. Exit code 1 if any of them fails.

The machine has its own ups and downs. Once a minute the run is stopped for a moment while the same piece of plain work
is timed on the idle machine; throughput is compared in units of that. Growth is the slope of a straight line through
the readings: the system may take pages of libraries away and load them again, which is neither growth nor its absence.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

REFERENCE_SECONDS = 1.5
"""How long the machine's own speed is looked at, once a minute."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    seconds: float
    """For which the run was not stopped."""
    agent_steps: int
    machine: float
    """Pieces of plain work per second, while the run was stopped."""
    resident_mb: float
    files: int
    threads: int


def machine_speed(seconds: float) -> float:
    """Convolutions on all cores and Python on one, in equal parts of time at the start of a quiet machine."""
    image, kernel = torch.randn(64, 32, 20, 20), torch.randn(64, 32, 4, 4)
    count, began = 0, time.perf_counter()
    with torch.inference_mode():
        while time.perf_counter() - began < seconds:
            torch.nn.functional.conv2d(image, kernel, stride=2)
            total = 0
            for i in range(40_000):
                total += i
            count += 1
    return count / (time.perf_counter() - began)


def read(pid: int, metrics: Path, seconds: float, machine: float) -> Reading:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return Reading(
        seconds=seconds,
        machine=machine,
        agent_steps=json.loads(lines[-1])["agent_steps"] if lines else 0,
        resident_mb=int(status["VmRSS"].split()[0]) / 1024,
        files=len(os.listdir(f"/proc/{pid}/fd")),
        threads=int(status["Threads"]),
    )


def soak(preset: str, minutes: float, every: float, options: list[str]) -> list[Reading]:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "run"
        command = [sys.executable, "-m", "vmpo", "train", preset, "--directory", str(directory), "--quiet"]
        command += ["--frames", str(10**12), "--run.evaluation-episodes", "0", *options]
        process = subprocess.Popen(command)
        readings: list[Reading] = []
        going = 0.0
        try:
            while going < 60 * minutes:
                began = time.monotonic()
                time.sleep(every)
                going += time.monotonic() - began
                if process.poll() is not None:
                    sys.exit(f"the run ended with code {process.returncode}")
                process.send_signal(signal.SIGSTOP)
                machine = machine_speed(REFERENCE_SECONDS)
                readings.append(read(process.pid, directory / "metrics.jsonl", going, machine))
                process.send_signal(signal.SIGCONT)
                r = readings[-1]
                print(
                    f"{r.seconds:7.0f} s  {r.agent_steps:12,} steps  {r.resident_mb:8.1f} MB  "
                    f"{r.files} files  {r.threads} threads  machine {r.machine:.1f}",
                    flush=True,
                )
        finally:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=120)
    return readings


def verdict(readings: list[Reading]) -> dict[str, float | bool]:
    half, sixth = len(readings) // 2, max(2, len(readings) // 6)
    late = readings[half:]
    slope, level = np.polyfit([r.seconds for r in late], [r.resident_mb for r in late], 1)
    growth = float(slope * (late[-1].seconds - late[0].seconds) / (level + slope * late[0].seconds))

    def rate(part: list[Reading]) -> float:
        return (part[-1].agent_steps - part[0].agent_steps) / (part[-1].seconds - part[0].seconds)

    def machine(part: list[Reading]) -> float:
        return statistics.median(r.machine for r in part)

    first, last = rate(readings[:sixth]), rate(readings[-sixth:])
    relative = (last / machine(readings[-sixth:])) / (first / machine(readings[:sixth]))
    constant = len({(r.files, r.threads) for r in late}) == 1
    return {
        "memory_growth": growth,
        "files_and_threads_constant": constant,
        "first_rate": first,
        "last_rate": last,
        "machine_change": machine(readings[-sixth:]) / machine(readings[:sixth]) - 1.0,
        "throughput_change": relative - 1.0,
        "good": growth < 0.01 and constant and abs(relative - 1.0) < 0.05,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two readings")
    arguments, options = parser.parse_known_args()
    result = verdict(soak(arguments.preset, arguments.minutes, arguments.every, options))
    print(json.dumps(result))
    sys.exit(0 if result["good"] else 1)


if __name__ == "__main__":
    main()
