"""Run a preset at full speed for a while and watch what must not grow: memory, open files, threads.

    python benchmarks/soak.py cartpole --minutes 60

Prints one line a minute and a verdict: resident memory of the last half within 1 %, open files and threads constant,
throughput of the last sixth within 5 % of the first sixth. Exit code 1 if any of them fails.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Reading:
    seconds: float
    agent_steps: int
    resident_mb: float
    files: int
    threads: int


def read(pid: int, metrics: Path, seconds: float) -> Reading:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return Reading(
        seconds=seconds,
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
        began = time.monotonic()
        try:
            while time.monotonic() - began < 60 * minutes:
                time.sleep(every)
                if process.poll() is not None:
                    sys.exit(f"the run ended with code {process.returncode}")
                readings.append(read(process.pid, directory / "metrics.jsonl", time.monotonic() - began))
                r = readings[-1]
                print(
                    f"{r.seconds:7.0f} s  {r.agent_steps:12,} steps  {r.resident_mb:8.1f} MB  "
                    f"{r.files} files  {r.threads} threads",
                    flush=True,
                )
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=120)
    return readings


def verdict(readings: list[Reading]) -> dict[str, float | bool]:
    half, sixth = len(readings) // 2, max(2, len(readings) // 6)
    late = readings[half:]
    growth = late[-1].resident_mb / late[0].resident_mb - 1.0

    def rate(part: list[Reading]) -> float:
        return (part[-1].agent_steps - part[0].agent_steps) / (part[-1].seconds - part[0].seconds)

    first, last = rate(readings[:sixth]), rate(readings[-sixth:])
    constant = len({(r.files, r.threads) for r in late}) == 1
    return {
        "memory_growth": growth,
        "files_and_threads_constant": constant,
        "first_rate": first,
        "last_rate": last,
        "good": growth < 0.01 and constant and abs(last / first - 1.0) < 0.05,
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
