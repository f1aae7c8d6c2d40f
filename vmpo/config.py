"""The whole configuration of a run: frozen records, every field with its unit and its source in the paper."""

from __future__ import annotations

import dataclasses
import math
import random
import typing
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from vmpo.errors import UserError, unknown


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    suite: str = "gymnasium"
    """Adapter that makes the environments: gymnasium, atari, mujoco, control, lab, miniworld or memory."""
    id: str = "CartPole-v1"
    """Name within the suite: a Gymnasium id (or ``module:Id-v0``), an Atari game, a MuJoCo task, a lab level. Several,
    separated by commas, or the name of a whole suite (atari57, dmlab30) are learned at once as the tasks of one agent.
    """
    max_episode_steps: int | None = None
    """Agent steps after which an episode is truncated; None keeps the environment's own limit."""
    stagger: bool = False
    """Cut one early episode of each environment at a different step, so that equally long ones do not stay in step.
    Environments without a time limit of their own, or with a vectorised version, are left as they are."""
    hidden: tuple[int, ...] = ()
    """Entries of the vector observation that the agent does not see, such as 1 3 for CartPole's velocities."""
    full_action_set: bool = False
    """Atari: all 18 actions instead of the game's minimal set (App. F, multi-task)."""
    life_loss_discount: float = 1.0
    """Atari: discount on a lost life; 0 in the multi-task setting, 1 in the single-task one (Table 6)."""
    clip_rewards: bool = False
    """Atari: clip rewards to [-1, 1] (Table 6, multi-task); scores are counted before clipping."""
    max_frames: int = 108_000
    """Atari: frames after which an episode is truncated, 30 minutes of play (Table 6)."""
    noop_max: int = 30
    """Atari: at most this many random no-op actions at the start of an episode."""
    sticky_actions: float = 0.0
    """Atari: probability of repeating the previous action, per frame; the paper's protocol has none."""
    frame_stack: int = 4
    """Atari: frames in one observation (Table 6)."""
    action_repeat: int = 4
    """Atari, lab and miniworld: frames per agent step (Tables 5, 6); the other suites have their own fixed repeat."""
    held_out: bool = False
    """Lab and miniworld: play the test version of each level in place of the training one."""
    level_cache: str | None = None
    """Lab: folder that keeps compiled levels; None compiles anew each time."""
    shadows: bool = True
    """Control: draw shadows in camera pictures, as dm_control does; without them drawing is several times faster."""
    simulator_threads: int = 0
    """Threads of the C++ simulators, or worker processes of the others; 0 means one per core. Gymnasium's environments
    stay in the actor's process unless this is above 1."""


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    encoder: str = "standard"
    """What turns observations into features: standard, which the fields below describe, or my_module:MyEncoder."""
    pixels: Literal["nature", "resnet"] = "resnet"
    """Encoder of images: the 3-section ResNet of the paper or the small Nature CNN."""
    resnet_channels: tuple[int, ...] = (16, 32, 32)
    """Channels of the ResNet's sections: 16 32 32 or 64 128 128 (App. F)."""
    pixel_features: int = 256
    """Width of the linear layer after the convolutions."""
    hidden: tuple[int, ...] = (512, 256)
    """Units of the MLP over vector observations (App. F: 512, 256)."""
    activation: Literal["relu", "elu", "tanh"] = "relu"
    """Nonlinearity of the MLP and the heads."""
    layer_norm: bool = False
    """LayerNorm and tanh after the MLP's first layer, LayerNorm after the language LSTM; not in the paper."""
    normalise_observations: bool = False
    """Whiten vector observations, and centre and scale images, by running statistics; not in the paper."""
    text_embedding: int = 20
    """Width of a word's embedding."""
    text_units: int = 256
    """Units of the language LSTM (App. F: 256)."""
    core: Literal["none", "lstm", "transformer"] = "none"
    """What carries memory through an episode."""
    lstm_layers: int = 1
    """LSTM layers: 1, 2 or 3 in the paper."""
    lstm_units: int = 256
    """Units of each LSTM layer."""
    transformer_layers: int = 8
    """Transformer-XL layers (Table 6)."""
    transformer_heads: int = 4
    """Attention heads (Table 6)."""
    transformer_key_size: int = 32
    """Key and value size of a head (Table 6)."""
    transformer_mlp: int = 512
    """Hidden units of the transformer's MLP (Table 6)."""
    transformer_width: int = 256
    """Width of the residual stream; the paper does not give it."""
    transformer_memory: int = 64
    """Past timesteps that each layer attends to; the paper does not give it."""
    previous_action_and_reward: bool = True
    """Feed the previous action and reward to the core (Fig. 5b); recurrent cores only."""
    head_units: int = 256
    """Units of the hidden layer of the policy and value heads (App. F)."""
    covariance: Literal["diagonal", "full"] = "diagonal"
    """Covariance of a Gaussian policy."""
    initial_std: float = 1.0
    """Standard deviation of a Gaussian policy at the start; actions are scaled to [-1, 1]."""
    minimum_std: float = 1e-3
    """Added to the standard deviation so that it never vanishes."""
    bounded_mean: bool = False
    """Pass a Gaussian's mean through tanh, so that it stays within the action bounds; not in the paper."""
    policy_init_scale: float = 1.0
    """Factor on the initial weights of the policy's readout; small values start near a uniform or zero-mean policy."""


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    discount: float = 0.99
    """Agent discount (Tables 5, 6, 7)."""
    algorithm: str = "vmpo"
    """How the policy learns: vmpo, the baselines impala and ppo on the same agents, actors and learner, or a loss of
    your own as my_module:my_loss."""
    returns: Literal["n_step", "gae", "vtrace"] = "n_step"
    """Estimator of returns: the paper's n-step return to the end of the unroll, GAE, or V-trace."""
    gae_lambda: float = 0.95
    """Trace decay of GAE and V-trace; n-step ignores it."""
    epsilon_temperature: float = 0.01
    """Bound of the E-step KL (eps_eta; Tables 5, 6, 7)."""
    epsilon_policy: float | None = 0.01
    """Bound of the M-step KL for discrete actions (eps_alpha). None: sampled once from the preset's range."""
    epsilon_mean: float | None = 0.01
    """Bound of the mean part of the M-step KL for Gaussians (eps_alpha_mu). None: sampled once."""
    epsilon_covariance: float | None = 1e-5
    """Bound of the covariance part of the M-step KL (eps_alpha_Sigma). None: sampled once."""
    initial_temperature: float = 1.0
    """eta at the start (Table 4)."""
    initial_alpha_policy: float = 5.0
    """alpha at the start, discrete actions (Table 4)."""
    initial_alpha_mean: float = 1.0
    """alpha_mu at the start (Table 4)."""
    initial_alpha_covariance: float = 1.0
    """alpha_Sigma at the start (Table 4)."""
    top_fraction: float = 0.5
    """Share of the valid samples, by advantage, that the E-step keeps (Sec. 4.2.1)."""
    top_scope: Literal["replica", "global"] = "replica"
    """Whether the top half and the softmax are taken per replica (App. F) or over the whole batch."""
    exact_temperature: bool = False
    """Solve eta on each batch instead of one gradient step on it; not in the paper."""
    control_variate: bool = False
    """Take the noise out of the policy loss that comes from imitating samples whatever their advantage; same expected
    gradient, less variance (0.6 of it in a small test); not in the paper."""
    importance_weights: bool = False
    """Weight samples by min(1, pi_target / pi_behaviour) (App. E; off in the paper)."""
    advantage_scale: Literal["sigma", "raw"] = "sigma"
    """Divide advantages by the task's PopArt scale before the E-step, or leave them raw."""
    entropy_cost: float | None = None
    """Weight of the mean entropy, which is added to what is maximised; None: 0.01 for IMPALA and PPO, none for V-MPO,
    as in the paper."""
    clip_ratio: float = 0.2
    """PPO: how far the ratio to the acting policy may move before its gradient stops."""
    value_cost: float = 1.0
    """Weight of the value loss (Eq. 1: 1)."""
    pixel_control_cost: float = 0.0
    """Weight of the pixel-control loss (Table 5: 2e-3); 0 builds no head."""
    pixel_control_discount: float = 0.9
    """Discount of the pixel-control returns (UNREAL)."""
    popart_rate: float = 1e-4
    """Step size of the PopArt statistics per learner step (Sec. 4.1); 0 switches PopArt off."""
    popart_minimum: float = 1e-2
    """Lower bound of the PopArt scale (Sec. 4.1)."""
    popart_maximum: float = 1e6
    """Upper bound of the PopArt scale (Sec. 4.1)."""

    @property
    def popart_bounds(self) -> tuple[float, float]:
        return self.popart_minimum, self.popart_maximum


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    batch_size: int = 64
    """Unrolls per learner step, over all learner processes together."""
    unroll_length: int = 40
    """Transitions per unroll (n)."""
    passes: int = 1
    """Times that the learner goes through the batches of an unroll; more than 1 is not in the paper."""
    virtual_replicas: int = 1
    """Minibatches of a process, each with its own top half, whose gradients are averaged into one step. The replicas of
    the paper (App. F: 8 or 16) are those of all processes together."""
    target_period: int = 100
    """Learner steps between two target updates (T_target). Baselines act by their newest weights after each unroll."""
    learning_rate: float = 1e-4
    """Adam's step size (Sec. 4)."""
    final_learning_rate: float | None = None
    """Adam's step size for the networks at the end of run.frames, reached in a straight line; None: no schedule, as in
    the paper."""
    multiplier_learning_rate: float | None = None
    """Adam's step size for eta and alpha; None uses learning_rate, as the paper does."""
    max_gradient_norm: float | None = None
    """Norm to which the networks' gradient is scaled down; the paper does not clip."""
    adam_epsilon: float = 1e-8
    """Adam's epsilon (TensorFlow 1's default)."""
    recorded_behaviour: bool = True
    """Use the actors' recorded distributions in place of a forward pass of the target where they are the same."""
    device: str = "cpu"
    """Torch device of the learner, such as cpu or cuda:0."""
    max_skipped: int = 20
    """Updates in a row that are skipped for a non-finite loss or gradient; one more stops the run."""


@dataclass(frozen=True, kw_only=True)
class ActorConfig:
    fleet: Literal["serial", "overlapping"] = "serial"
    """Act then learn in turns, always by the newest target, or actors that go on while the learner works, some unrolls
    ahead."""
    num_envs: int = 64
    """Environments in all if serial, which actors on Ray divide; of each actor if overlapping. Fewer than batch_size:
    several unrolls make a batch; more: one makes several. Learner processes divide them as they do the batch."""
    num_actors: int = 1
    """Actor processes of the overlapping fleet."""
    queue_size: int = 2
    """Finished unrolls that may wait for the learner if overlapping, beside the one that each actor is at."""
    lag: int = 0
    """Versions of the weights by which the actors are kept behind on purpose, to study importance weights."""
    device: str = "cpu"
    """Torch device of the acting network."""
    onnx_runtime: bool = True
    """ONNX Runtime acts on a CPU, unless the agent reads texts, has a transformer or an encoder of your own; torch if
    False. Equal up to rounding."""
    max_faults: int = 10
    """Faults of an actor's environments within 100 unrolls that are survived by a restart; one more stops the run."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    frames: int = 100_000
    """Simulator frames to train for: agent steps x action repeat."""
    seed: int = 0
    """Seed of everything random."""
    log_seconds: float = 2.0
    """Seconds between two log lines."""
    log_steps: int | None = None
    """Learner steps between two log lines, in place of log_seconds: reproducible."""
    checkpoint_seconds: float = 300.0
    """Seconds between two checkpoints."""
    keep_checkpoints: int = 3
    """Newest checkpoints kept."""
    evaluation_episodes: int = 0
    """Greedy episodes after training; 0 skips the evaluation."""
    threads: int = 0
    """Threads of torch's operations; 0 means one per core."""
    video_seconds: float | None = None
    """Seconds between two recorded episodes of the current agent, kept in the run's videos; None records none."""
    tensorboard: bool = True
    """Write TensorBoard events beside metrics.jsonl."""
    wandb: str | None = None
    """Project of Weights & Biases to send metrics to as well (extra wandb; WANDB_MODE=offline keeps them here)."""


@dataclass(frozen=True, kw_only=True)
class Config:
    preset: str = "custom"
    """Name of the preset that this configuration started from."""
    env: EnvConfig = field(default_factory=EnvConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    actors: ActorConfig = field(default_factory=ActorConfig)
    run: RunConfig = field(default_factory=RunConfig)

    @property
    def acting_period(self) -> int:
        """Learner steps between two changes of the acting weights: T_target, or all updates of an unroll."""
        return self.learner.target_period if self.loss.algorithm == "vmpo" else self.updates_per_unroll

    @property
    def updates_per_unroll(self) -> int:
        """Learner steps on what is collected at a time."""
        return max(1, self.actors.num_envs // self.learner.batch_size) * self.learner.passes


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Where a run is computed; it is no part of the run, which may go on elsewhere."""

    address: str | None = None
    """Ray cluster: local (started for this run), auto (the one that this machine is part of), host:port; None: no Ray.
    """
    actors: int = 2
    """Actor processes, each on a CPU; they are dealt out to the learners."""
    learners: int = 1
    """Learner processes, each on a GPU, or on a CPU if learner.device is cpu."""


def to_dict(config: Config) -> dict[str, Any]:
    """Plain values, ready for JSON."""
    return dataclasses.asdict(config)


def from_dict(values: dict[str, Any]) -> Config:
    """The inverse of ``to_dict``, strict: an unknown section, field or type is a user's error."""
    return _record(Config, values, "config")


def _record(kind: type, values: Any, where: str) -> Any:
    if not isinstance(values, dict):
        raise UserError(f"{where} must be an object, not {values!r}")
    hints = typing.get_type_hints(kind)
    names = {f.name for f in dataclasses.fields(kind)}
    for name in values:
        if name not in names:
            raise unknown(f"field in {where}", str(name), names)
    return kind(**{name: _value(hints[name], value, f"{where}.{name}") for name, value in values.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _record(typing.cast(type, hint), value, where)
    if typing.get_origin(hint) is tuple and isinstance(value, list):
        value = tuple(value)
    if not _fits(hint, value):
        raise UserError(f"{where}={value!r} is not {_called(hint)}")
    return value


def _called(hint: Any) -> str:
    """What a type is to a reader: ``int``, ``float or None``, ``one of none, lstm, transformer``."""
    if typing.get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, typing.get_args(hint)))}"
    if typing.get_origin(hint) is tuple:
        return f"a list of {_called(typing.get_args(hint)[0])}"
    if typing.get_args(hint):
        return " or ".join(map(_called, typing.get_args(hint)))
    return "None" if hint is type(None) else hint.__name__


def _fits(hint: Any, value: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(arguments[0], item) for item in value)
    if arguments:
        return any(_fits(option, value) for option in arguments)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


Ranges: TypeAlias = dict[str, tuple[float, float]]
"""Log-uniform ranges of the paper by field of ``LossConfig``, such as ``{"epsilon_policy": (0.005, 0.01)}``."""


def sampled(config: Config, ranges: Ranges) -> Config:
    """Draw each field that is None from its log-uniform range, once per run and from the run's seed."""
    generator = random.Random(f"ranges-{config.run.seed}")
    drawn: dict[str, Any] = {}
    for name, (low, high) in sorted(ranges.items()):
        value = math.exp(generator.uniform(math.log(low), math.log(high)))
        if getattr(config.loss, name) is None:
            drawn[name] = value
    return dataclasses.replace(config, loss=dataclasses.replace(config.loss, **drawn))
