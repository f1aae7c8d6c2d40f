"""vmpo itself, as `vmpo bench` runs it."""

import tempfile

from vmpo import bench, workloads  # before torch, whose threads it sets
from vmpo.run_directory import RunDirectory
from vmpo.train import Run

# isort: split
from benchmarks.peers.common import Meter, Task

if __name__ == "__main__":
    task = Task.asked()
    settings = bench.settings(workloads.Workload(**vars(task.workload)))
    with tempfile.TemporaryDirectory() as directory:
        run, meter = Run(settings, RunDirectory(directory)), Meter(task)
        while not meter.mark(bench.decisions(run)):
            run.advance()
        run.fleet.close()
