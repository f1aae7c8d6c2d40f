"""Presets as data: the paper's own settings, and small-compute ones that learn on two cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vmpo.config import (
    ActorConfig,
    AgentConfig,
    Config,
    EnvConfig,
    LearnerConfig,
    LossConfig,
    Ranges,
    RunConfig,
    sampled,
)
from vmpo.errors import UserError, unknown


@dataclass(frozen=True, kw_only=True)
class Preset:
    config: Config
    summary: str
    ranges: Ranges = field(default_factory=dict)
    """Log-uniform ranges, sampled once per run for the fields that the configuration leaves at None."""


# Small compute: beyond the paper by exact temperature, GAE, faster multipliers and statistics (docs/algorithm.md).

_SMALL_LOSS: Mapping[str, Any] = dict(
    returns="gae",
    gae_lambda=0.95,
    exact_temperature=True,
    epsilon_temperature=0.1,
    epsilon_policy=0.01,
    epsilon_mean=0.01,
    epsilon_covariance=2e-4,
    initial_alpha_policy=1.0,
    initial_alpha_covariance=10.0,
    popart_rate=1e-3,
)


# From pixels: long games and small batches leave little signal in an advantage, so its noise is kept out of the policy.
_PIXEL_LOSS: Mapping[str, Any] = {**_SMALL_LOSS, "control_variate": True, "epsilon_policy": 0.005, "popart_rate": 5e-3}


def _classic(name: str, env_id: str, summary: str, frames: int, **loss: Any) -> Preset:
    """Classic control: a small MLP, and many small steps on each unroll."""
    return Preset(
        summary=summary,
        config=Config(
            preset=name,
            env=EnvConfig(suite="gymnasium", id=env_id, stagger=True),
            agent=AgentConfig(
                hidden=(64, 64),
                activation="tanh",
                head_units=0,
                initial_std=0.8,
                bounded_mean=True,
                policy_init_scale=0.01,
                normalise_observations=True,
            ),
            loss=LossConfig(**{**_SMALL_LOSS, "epsilon_mean": 0.02, **loss}),
            learner=LearnerConfig(
                batch_size=4,
                unroll_length=64,
                passes=8,
                target_period=32,
                learning_rate=2e-3,
                multiplier_learning_rate=1e-2,
            ),
            actors=ActorConfig(num_envs=16),
            # So small a network runs faster on one thread than on two.
            run=RunConfig(frames=frames, evaluation_episodes=100, threads=1),
        ),
    )


_LANDER = _classic("lunarlander", "LunarLander-v3", "land between the flags (needs Box2D)", 1_000_000)
_LANDER = replace(
    _LANDER,
    config=replace(
        _LANDER.config,
        # What a landing is worth shows hundreds of steps later: longer unrolls, a longer horizon, less noise.
        loss=replace(_LANDER.config.loss, discount=0.999, gae_lambda=0.98, epsilon_policy=0.003, control_variate=True),
        learner=replace(
            _LANDER.config.learner,
            unroll_length=128,
            passes=12,
            target_period=96,
            learning_rate=1e-3,
            final_learning_rate=1e-4,
        ),
        actors=ActorConfig(num_envs=32),
    ),
)


def _locomotion(name: str, env_id: str, summary: str, frames: int) -> Preset:
    """MuJoCo bodies from state: one recipe for all of them."""
    return Preset(
        summary=summary,
        config=Config(
            preset=name,
            env=EnvConfig(suite="mujoco", id=env_id, stagger=True),
            agent=AgentConfig(
                # One shared layer: with two, the policy's gradient drowns the value's, which then explains nothing.
                hidden=(256,),
                head_units=256,
                activation="elu",
                layer_norm=True,
                normalise_observations=True,
                initial_std=0.3,
                bounded_mean=True,
                policy_init_scale=0.01,
            ),
            # A slow covariance goes on exploring for longer, and so do all samples in place of the top half, whose
            # weights tell little more than which are in it (docs/results.md).
            loss=LossConfig(**{**_SMALL_LOSS, "epsilon_covariance": 5e-5}, top_fraction=1.0, control_variate=True),
            learner=LearnerConfig(
                batch_size=8,
                unroll_length=32,
                passes=2,
                target_period=16,
                learning_rate=3e-4,
                final_learning_rate=1e-5,
                multiplier_learning_rate=1e-2,
                # Most gradients are below; a batch with a fallen body has ten times as much.
                max_gradient_norm=40.0,
            ),
            actors=ActorConfig(num_envs=32),
            run=RunConfig(frames=frames, evaluation_episodes=100),
        ),
    )


def _arcade(name: str, game: str, summary: str, frames: int) -> Preset:
    """Atari with the Nature CNN, clipped rewards and life loss as an end, as small-compute practice has it."""
    return Preset(
        summary=summary,
        config=Config(
            preset=name,
            env=EnvConfig(suite="atari", id=game, clip_rewards=True, life_loss_discount=0.0),
            agent=AgentConfig(pixels="nature", pixel_features=512, head_units=0, policy_init_scale=0.01),
            # All samples, as for locomotion. Their weights differ little, and so small a gradient of the policy's would
            # be drowned in the layers that it shares with the value (docs/results.md).
            loss=LossConfig(**_PIXEL_LOSS, top_fraction=1.0, value_cost=0.06, entropy_cost=0.003),
            learner=LearnerConfig(
                batch_size=8,
                unroll_length=32,
                passes=3,
                target_period=12,
                learning_rate=5e-4,
                final_learning_rate=5e-5,
                multiplier_learning_rate=1e-2,
            ),
            actors=ActorConfig(num_envs=32),
            run=RunConfig(frames=frames, log_seconds=10.0, evaluation_episodes=20),
        ),
    )


_FOUR_GAMES = "boxing,breakout,pong,space_invaders"
_ARCADE = _arcade("atari-multi", _FOUR_GAMES, "four Atari games at once, one agent", 8_000_000)
_ARCADE_MULTI = replace(
    _ARCADE,
    config=replace(
        _ARCADE.config,
        env=replace(_ARCADE.config.env, full_action_set=True),
        learner=replace(_ARCADE.config.learner, passes=2, target_period=8),
    ),
)


# The paper (Tables 4, 5, 6, 7 and App. F). Fields that are not named here have the paper's values as defaults.


def _paper_control(
    name: str, suite: str, env_id: str, unroll: int, summary: str, frames: int, ranges: Ranges
) -> Preset:
    """Table 7, state observations: MLP 512, 256; no recurrent core."""
    return Preset(
        summary=summary,
        ranges=ranges,
        config=Config(
            preset=name,
            env=EnvConfig(suite=suite, id=env_id),
            agent=AgentConfig(hidden=(512, 256), head_units=256, core="none"),
            loss=LossConfig(discount=0.99, epsilon_temperature=0.01, epsilon_mean=None, epsilon_covariance=None),
            learner=LearnerConfig(
                batch_size=64, unroll_length=unroll, virtual_replicas=8, target_period=100, learning_rate=1e-4
            ),
            actors=ActorConfig(num_envs=64),
            run=RunConfig(frames=frames, log_seconds=10.0),
        ),
    )


_GYM_RANGES: Ranges = {"epsilon_mean": (0.005, 0.01), "epsilon_covariance": (5e-6, 5e-5)}
_HUMANOID_RANGES: Ranges = {"epsilon_mean": (0.05, 0.5), "epsilon_covariance": (1e-5, 5e-5)}

_PAPER_ATARI = Preset(
    summary="Table 6, one game: ResNet 64,128,128, Transformer-XL, 63 x 128 in 8 replicas, no clipping",
    ranges={"epsilon_policy": (0.005, 0.01)},
    config=Config(
        preset="paper-atari",
        env=EnvConfig(suite="atari", id="breakout", life_loss_discount=1.0, clip_rewards=False, max_frames=108_000),
        agent=AgentConfig(pixels="resnet", resnet_channels=(64, 128, 128), core="transformer"),
        loss=LossConfig(discount=0.997, epsilon_temperature=0.02, epsilon_policy=None),
        learner=LearnerConfig(
            batch_size=128, unroll_length=63, virtual_replicas=8, target_period=1000, learning_rate=1e-4
        ),
        actors=ActorConfig(num_envs=128),
        run=RunConfig(frames=10_000_000_000, log_seconds=10.0),
    ),
)

_PAPER_ATARI57 = Preset(
    summary="Table 6, all 57 games at once: ResNet 64,128,128, LSTM, 63 x 128 in 8 replicas, clipped rewards",
    ranges={"epsilon_policy": (0.001, 0.01)},
    config=Config(
        preset="paper-atari57",
        env=EnvConfig(suite="atari", id="atari57", full_action_set=True, life_loss_discount=0.0, clip_rewards=True),
        agent=AgentConfig(pixels="resnet", resnet_channels=(64, 128, 128), core="lstm", lstm_layers=1),
        loss=LossConfig(discount=0.99, epsilon_temperature=0.02, epsilon_policy=None),
        learner=LearnerConfig(
            batch_size=128, unroll_length=63, virtual_replicas=8, target_period=100, learning_rate=1e-4
        ),
        actors=ActorConfig(num_envs=128),
        run=RunConfig(frames=11_400_000_000, log_seconds=10.0),
    ),
)


def _paper_lab(name: str, level: str, summary: str, multi: bool) -> Preset:
    """Table 5 and App. F: 72 x 96 RGB, instructions through the language LSTM, pixel control."""
    return Preset(
        summary=summary,
        ranges={"epsilon_policy": (0.01, 0.1) if multi else (0.001, 0.01)},
        config=Config(
            preset=name,
            env=EnvConfig(suite="lab", id=level),
            agent=AgentConfig(
                pixels="resnet",
                resnet_channels=(64, 128, 128) if multi else (16, 32, 32),
                core="lstm",
                lstm_layers=3 if multi else 2,
            ),
            loss=LossConfig(
                discount=0.99, epsilon_temperature=0.5 if multi else 0.1, epsilon_policy=None, pixel_control_cost=2e-3
            ),
            learner=LearnerConfig(
                batch_size=128, unroll_length=95, virtual_replicas=8, target_period=10, learning_rate=1e-4
            ),
            actors=ActorConfig(num_envs=128),
            run=RunConfig(frames=10_000_000_000, log_seconds=10.0),
        ),
    )


_PAPER_GAPS = Preset(
    summary="Table 7, humanoid gaps from pixels: ResNet 16,32,32 and proprioception, LSTM, 56 actions",
    ranges={"epsilon_mean": (0.01, 1.0), "epsilon_covariance": (5e-6, 5e-5)},
    config=Config(
        preset="paper-humanoid-gaps",
        env=EnvConfig(suite="control", id="humanoid-gaps"),
        agent=AgentConfig(pixels="resnet", resnet_channels=(16, 32, 32), core="lstm", lstm_layers=1),
        loss=LossConfig(discount=0.99, epsilon_temperature=0.1, epsilon_mean=None, epsilon_covariance=None),
        learner=LearnerConfig(
            batch_size=64, unroll_length=63, virtual_replicas=8, target_period=100, learning_rate=1e-4
        ),
        actors=ActorConfig(num_envs=64),
        run=RunConfig(frames=4_000_000_000, log_seconds=10.0),
    ),
)

_LAB_LEVELS = "choose_colour,choose_shape,remember_sign,collect_balls,explore_rooms"

_LAB_DEMO = Preset(
    summary="five first-person levels at once on MiniWorld: instructions, memory, exploration; runs without DMLab",
    config=Config(
        preset="lab-demo",
        env=EnvConfig(suite="miniworld", id=_LAB_LEVELS, stagger=True, max_episode_steps=300),
        agent=AgentConfig(
            pixels="nature",
            pixel_features=256,
            # Instructions as loud as the pictures: without it, telling them apart takes four times as long.
            layer_norm=True,
            core="lstm",
            lstm_layers=3,
            head_units=0,
            policy_init_scale=0.01,
        ),
        # Rare rewards: a sharper E-step picks out the few samples that tell something.
        loss=LossConfig(**{**_PIXEL_LOSS, "epsilon_temperature": 0.5}, pixel_control_cost=2e-3),
        learner=LearnerConfig(
            batch_size=10,
            unroll_length=32,
            passes=2,
            target_period=8,
            learning_rate=5e-4,
            multiplier_learning_rate=1e-2,
        ),
        actors=ActorConfig(num_envs=40),
        run=RunConfig(frames=4_000_000, log_seconds=10.0, evaluation_episodes=20),
    ),
)

_GAPS_SMALL = Preset(
    summary="humanoid gaps from pixels for two cores: Nature CNN, no shadows",
    config=Config(
        preset="humanoid-gaps-small",
        env=EnvConfig(suite="control", id="humanoid-gaps", shadows=False),
        agent=AgentConfig(
            pixels="nature",
            pixel_features=128,
            hidden=(256, 256),
            activation="elu",
            layer_norm=True,
            normalise_observations=True,
            core="lstm",
            head_units=0,
            initial_std=0.3,
            policy_init_scale=0.01,
        ),
        loss=LossConfig(**_SMALL_LOSS),
        learner=LearnerConfig(
            batch_size=8,
            unroll_length=32,
            # The simulator takes nearly all of the time: its samples are worth several passes.
            passes=6,
            target_period=12,
            learning_rate=3e-4,
            multiplier_learning_rate=1e-2,
        ),
        actors=ActorConfig(num_envs=16),
        run=RunConfig(frames=20_000_000, log_seconds=10.0, evaluation_episodes=10),
    ),
)

PRESETS: dict[str, Preset] = {
    "cartpole": _classic("cartpole", "CartPole-v1", "the default: CartPole-v1 in under a minute", 100_000),
    "acrobot": _classic("acrobot", "Acrobot-v1", "swing a two-link arm above the bar", 300_000),
    "lunarlander": _LANDER,
    "pendulum": _classic("pendulum", "Pendulum-v1", "swing up a pendulum: continuous actions", 300_000, discount=0.95),
    "halfcheetah": _locomotion("halfcheetah", "HalfCheetah-v4", "run with a planar cheetah", 10_000_000),
    "ant": _locomotion("ant", "Ant-v4", "run with a four-legged ant", 20_000_000),
    "walker2d": _locomotion("walker2d", "Walker2d-v4", "walk on two planar legs", 10_000_000),
    "humanoid": _locomotion("humanoid", "Humanoid-v4", "walk with a 17-actuator humanoid", 20_000_000),
    "cheetah-run": _locomotion("cheetah-run", "CheetahRun-v1", "dm_control's cheetah", 8_000_000),
    "walker-walk": _locomotion("walker-walk", "WalkerWalk-v1", "dm_control's walker", 8_000_000),
    "pong": _arcade("pong", "pong", "Pong with the Nature CNN", 10_000_000),
    "breakout": _arcade("breakout", "breakout", "Breakout with the Nature CNN", 20_000_000),
    "atari-multi": _ARCADE_MULTI,
    "lab-demo": _LAB_DEMO,
    "humanoid-gaps-small": _GAPS_SMALL,
    "paper-atari": _PAPER_ATARI,
    "paper-atari57": _PAPER_ATARI57,
    "paper-dmlab": _paper_lab(
        "paper-dmlab", "explore_object_rewards_few", "Table 5, one DMLab level: ResNet 16,32,32, LSTM of 2", False
    ),
    "paper-dmlab30": _paper_lab(
        "paper-dmlab30", "dmlab30", "Table 5, DMLab-30 at once: ResNet 64,128,128, LSTM of 3 layers", True
    ),
    "paper-humanoid-gaps": _PAPER_GAPS,
    "paper-gym-ant": _paper_control(
        "paper-gym-ant", "mujoco", "Ant-v4", 39, "Table 7, OpenAI Gym: Ant", 10_000_000_000, _GYM_RANGES
    ),
    "paper-gym-walker2d": _paper_control(
        "paper-gym-walker2d", "mujoco", "Walker2d-v4", 39, "Table 7, OpenAI Gym: Walker2d", 10_000_000_000, _GYM_RANGES
    ),
    "paper-gym-humanoid": _paper_control(
        "paper-gym-humanoid", "mujoco", "Humanoid-v4", 39, "Table 7, OpenAI Gym: Humanoid", 10_000_000_000, _GYM_RANGES
    ),
    # The table's unroll of 63; the text of App. F says 40.
    "paper-humanoid-run": _paper_control(
        "paper-humanoid-run", "mujoco", "HumanoidRun-v1", 63, "Table 7, humanoid run", 10_000_000_000, _HUMANOID_RANGES
    ),
}

DEFAULT = "cartpole"


def get(name: str) -> Preset:
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]


def settled(config: Config | str) -> Config:
    """A configuration, or a preset's by its name, with the fields that the preset leaves open drawn from its ranges."""
    config = get(config).config if isinstance(config, str) else config
    if not isinstance(config, Config):
        raise UserError(f"a run needs a vmpo.Config or the name of a preset; given: {config!r:.80}")
    return sampled(config, get(config.preset).ranges) if config.preset in PRESETS else config
