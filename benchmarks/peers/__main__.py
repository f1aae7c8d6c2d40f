"""vmpo beside other libraries on the same workloads and machine: `make bench-peers`, which installs them under .peers/.

For each workload all of a library's variants first have a short window, and the fastest is kept. Then the libraries
take turns, three times, because the machine's speed drifts; every window is a fresh process with a warm-up, so that all
agents are of the same age. Medians are compared, all windows are kept in .peers/results.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers.common import WORKLOADS

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".peers"
ROUNDS = 3
SLACK = 900.0
"""Seconds that a window may take longer than asked: to start, and for the slowest to end its unroll."""

VARIANTS = {
    "ours": "plain",
    "sb3": "plain passive channels_last channels_last+passive crowded",
    "sample_factory": "serial serial+passive async async+passive serial+crowded async+crowded async+crowded+passive",
    "tianshou": "plain passive channels_last channels_last+passive",
    "rllib": "plain+passive impala impala+passive",
}
"""Of each module: words joined by +. ``passive`` is OpenMP's wait policy, the others are for the module."""


def python(module: str) -> Path:
    return Path(sys.executable) if module == "ours" else PEERS / module / "bin" / "python"


def window(module: str, workload: str, variant: str, warmup: float, seconds: float) -> float:
    """Agent steps per second, 0 if the library fails."""
    log = PEERS / f"{module}-{workload}-{variant}.log"
    command = [python(module), "-m", f"benchmarks.peers.{module}", workload, variant, str(warmup), str(seconds)]
    env = os.environ | ({"OMP_WAIT_POLICY": "passive"} if "passive" in variant else {})
    with tempfile.TemporaryDirectory() as scratch, log.open("w") as errors:
        env["TMPDIR"] = scratch
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=errors, process_group=0)
        try:
            lines = process.communicate(timeout=warmup + seconds + SLACK)[0].splitlines()
        except subprocess.TimeoutExpired:
            lines = []
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    for result in (json.loads(line) for line in lines if line.startswith(b'{"agent_steps"')):
        return result["agent_steps"] / result["seconds"]
    print(f"{module} fails on {workload} {variant}: see {log.relative_to(ROOT)}", flush=True)
    return 0.0


def compare(modules: list[str], workload: str, warmup: float, seconds: float) -> dict[str, tuple[str, list[float]]]:
    """For each module its fastest variant and the windows of that."""
    asked, kept = WORKLOADS[workload], {}
    without = {word for word, use in (("channels_last", asked.pixels), ("crowded", asked.crowded)) if not use}
    for module in modules:
        variants = [each for each in VARIANTS[module].split() if not without & set(each.split("+"))]
        trials = {each: window(module, workload, each, warmup / 2, seconds / 2) for each in variants}
        kept[module] = max(trials, key=trials.__getitem__), list[float]()
    for module in modules * ROUNDS:
        variant, windows = kept[module]
        windows.append(window(module, workload, variant, warmup, seconds))
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="all of them if none is given")
    parser.add_argument("--warmup", type=float, default=10.0, help="seconds before each window, and five unrolls")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each window")
    options = parser.parse_args()
    PEERS.mkdir(exist_ok=True)
    modules, results = [each for each in VARIANTS if python(each).exists()], {}
    print(f"| agent steps/s (vmpo / peer) | {' | '.join(modules)} | vmpo / best peer |", flush=True)
    print("|---" * (len(modules) + 2) + "|", flush=True)
    for workload in options.workloads or WORKLOADS:
        results[workload] = compare(modules, workload, options.warmup, options.seconds)
        ours, *peers = (statistics.median(windows) for _, windows in results[workload].values())
        cells = [f"{ours:,.0f}", *(f"{rate:,.0f} ({ours / rate:.2f})" if rate else "-" for rate in peers)]
        best = max(peers, default=0.0)
        print(f"| {workload} | {' | '.join(cells)} | {f'{ours / best:.2f}' if best else '-'} |", flush=True)
        (PEERS / "results.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
