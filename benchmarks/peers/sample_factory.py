"""Sample Factory's APPO: ``serial`` in one process, ``async`` with the simulator beside the learner."""

import sys
import tempfile
from typing import Any

import gymnasium
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import run_rl

from benchmarks.peers.common import Meter, Pool, Task

task = Task.asked()
_meters: list[Meter] = []
"""The one of this process, which may have two pools."""


class PoolEnv(gymnasium.Env):
    def __init__(self, name: str, config: Any, env_config: Any, render_mode: str | None = None) -> None:
        if not _meters:
            _meters.append(Meter(task))
        self.pool = Pool(task, _meters[0], config.env_agents)
        self.observation_space, self.action_space = self.pool.observation_space, self.pool.action_space
        self.num_agents, self.is_multiagent = config.env_agents, True

    def reset(self, **keywords: Any) -> Any:
        return self.pool.reset(), {}

    def step(self, action: Any) -> Any:
        return *self.pool.step(action)[:4], {}


if __name__ == "__main__":
    workload, recurrent, serial = task.workload, task.workload.pixels == "resnet", "serial" in task.variant
    groups = 1 if serial else 2  # of environments, one of which is simulated while the other's actions are computed
    parser, _ = parse_sf_args(["--env=pool"])
    parser.add_argument("--env_agents", default=workload.num_envs // groups)
    parser.set_defaults(
        device="cpu", train_dir=tempfile.mkdtemp(), serial_mode=serial, async_rl=not serial, batched_sampling=True,
        num_workers=1, num_envs_per_worker=groups, worker_num_splits=groups, set_workers_cpu_affinity=False,
        rollout=workload.unroll_length, batch_size=workload.batch_size, num_epochs=1, num_batches_per_epoch=1,
        encoder_mlp_layers=list(workload.hidden), decoder_mlp_layers=[workload.head] if workload.head else [],
        encoder_conv_architecture="resnet_impala" if recurrent else "convnet_atari",
        encoder_conv_mlp_layers=[workload.features], obs_scale=255.0 if workload.pixels else 1.0,
        use_rnn=recurrent, rnn_type="lstm", rnn_size=256, nonlinearity=workload.activation,
        normalize_input=False, normalize_returns=False,
    )  # fmt: skip
    register_env("pool", PoolEnv)
    sys.exit(run_rl(parse_full_cfg(parser, ["--env=pool"])))
