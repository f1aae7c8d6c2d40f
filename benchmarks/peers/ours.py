"""vmpo itself, as `vmpo bench` runs it."""

import tempfile

from benchmarks.peers.common import WORKLOADS, Meter, arguments
from vmpo import bench
from vmpo.run_directory import RunDirectory
from vmpo.train import Run


def main() -> None:
    name, _, warmup, seconds = arguments()
    workload, config = WORKLOADS[name], bench.WORKLOADS[name].config
    assert (workload.num_envs, workload.unroll_length) == (config.actors.num_envs, config.learner.unroll_length)
    with tempfile.TemporaryDirectory() as directory:
        run = Run(config, RunDirectory(directory))
        meter = Meter(workload.batch_size, warmup, seconds)
        while not meter.mark(bench.decisions(run)):
            run.advance()
        run.fleet.close()


if __name__ == "__main__":
    main()
