"""RLlib's PPO in one process (``plain``), or its IMPALA with the simulator beside the learner (``impala``)."""

import os
import tempfile
from typing import Any

import ray
from gymnasium import spaces, vector
from ray.rllib.algorithms import IMPALAConfig, PPOConfig
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from benchmarks.peers.common import Meter, Pool, Task


class PoolEnv(vector.VectorEnv):
    def __init__(self, context: Any) -> None:
        self.pool, self.num_envs = Pool(task, None, workload.num_envs), workload.num_envs
        images, self.axes = spaces.Box(0, 255, (84, 84, 4), "uint8"), (0, 2, 3, 1) if workload.pixels else (0, 1)
        single = images if workload.pixels else self.pool.observation_space, self.pool.action_space
        self.single_observation_space, self.single_action_space = single
        self.observation_space, self.action_space = (vector.utils.batch_space(each, self.num_envs) for each in single)
        # RLlib skips the step after an episode's last. The pool, begun anew, loses a step to that, which isn't counted.
        self.metadata = {"autoreset_mode": vector.AutoresetMode.NEXT_STEP}

    def reset(self, **keywords: Any) -> Any:
        return self.pool.reset().transpose(self.axes).copy(), {}

    def step(self, actions: Any) -> Any:
        step = self.pool.step(actions)
        for index, last in step.last.items():
            step.observations[index] = last
        return step.observations.transpose(self.axes).copy(), *step[1:4], {}


class PixelModule(DefaultPPOTorchRLModule):
    def setup(self) -> None:
        super().setup()
        self.encoder.register_forward_pre_hook(lambda _, inputs: {**inputs[0], "obs": inputs[0]["obs"] / 255.0})


task = Task.asked()
workload, impala = task.workload, "impala" in task.variant
module = {"": DefaultPPOTorchRLModule, "nature": PixelModule}[workload.pixels]  # RLlib has no residual encoder
heads = [workload.head] if workload.head else []
model = dict(fcnet_hiddens=list(workload.hidden), head_fcnet_hiddens=heads, vf_share_layers=True)
convolutions = (32, 8, 4), (64, 4, 2), (64, 3, 1), (512, 7, 1)  # The last is the dense layer.
model |= dict(fcnet_activation=workload.activation, conv_filters=[[*each, "valid"] for each in convolutions])
config = (IMPALAConfig if impala else PPOConfig)().update_from_dict(dict(
    env=PoolEnv, gym_env_vectorize_mode="vector_entry_point", num_envs_per_env_runner=workload.num_envs, num_epochs=1,
    rollout_fragment_length=workload.unroll_length, train_batch_size_per_learner=workload.batch_size, num_learners=0,
    num_env_runners=int(impala), minibatch_size=None, use_kl_loss=False, normalize_actions=False,
    timeout_s_sampler_manager=0.1, min_time_s_per_iteration=1,
)).rl_module(rl_module_spec=RLModuleSpec(module_class=module, model_config=model))  # fmt: skip
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_TOKEN=os.urandom(32).hex())  # a token of its own, in no file
ray._private.ray_constants.ENABLE_RAY_CLUSTER = False  # otherwise Ray listens on all addresses, whatever is said below
scratch = ray.tune.trainable.trainable.DEFAULT_STORAGE_PATH = tempfile.mkdtemp()
with ray.init("local", num_cpus=4, include_dashboard=False, _node_ip_address="127.0.0.1", _temp_dir=scratch):
    algorithm, meter, steps = config.build_algo(), Meter(task), 0
    while not meter.mark(steps):
        steps = int(algorithm.train()["env_runners"].get("num_env_steps_sampled_lifetime", 0))
