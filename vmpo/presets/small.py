"""Small-compute presets, which learn on two cores.

Beyond the paper by exact temperature, GAE, faster multipliers and statistics (docs/algorithm.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vmpo.config import ActorConfig, AgentConfig, Config, EnvConfig, LearnerConfig, LossConfig, RunConfig
from vmpo.presets.preset import Preset

_LOSS: Mapping[str, Any] = dict(
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
_PIXEL_LOSS: Mapping[str, Any] = {**_LOSS, "control_variate": True, "epsilon_policy": 0.005, "popart_rate": 5e-3}


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
            loss=LossConfig(**{**_LOSS, "epsilon_mean": 0.02, **loss}),
            learner=LearnerConfig(
                batch_size=4,
                unroll_length=64,
                passes=8,
                target_period=32,
                learning_rate=2e-3,
                # With nothing left to learn, Adam divides by next to nothing: its steps must get small by themselves.
                final_learning_rate=2e-4,
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
            loss=LossConfig(**{**_LOSS, "epsilon_covariance": 5e-5}, top_fraction=1.0, control_variate=True),
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
            agent=AgentConfig(
                pixels="nature",
                pixel_features=512,
                head_units=0,
                policy_init_scale=0.01,
                # Of a screen that is mostly background the network would see little else (docs/results.md).
                normalise_observations=True,
            ),
            # All samples, as for locomotion. Their weights differ little, and so small a gradient of the policy's would
            # be drowned in the layers that it shares with the value (docs/results.md).
            loss=LossConfig(**_PIXEL_LOSS, top_fraction=1.0, value_cost=0.12, entropy_cost=0.01),
            learner=LearnerConfig(
                batch_size=8,
                unroll_length=32,
                passes=2,
                target_period=8,
                learning_rate=2.5e-4,
                final_learning_rate=2.5e-5,
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
    config=replace(_ARCADE.config, env=replace(_ARCADE.config.env, full_action_set=True)),
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
        loss=LossConfig(**_LOSS),
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

SMALL: dict[str, Preset] = {
    "cartpole": _classic("cartpole", "CartPole-v1", "the default: CartPole-v1 in under a minute", 100_000),
    "acrobot": _classic("acrobot", "Acrobot-v1", "swing a two-link arm above the bar", 300_000),
    "lunarlander": _LANDER,
    "pendulum": _classic(
        "pendulum",
        "Pendulum-v1",
        "swing up a pendulum: continuous actions",
        300_000,
        discount=0.95,
        # All samples, as for locomotion: with the top half, some seeds hardly swing up (docs/results.md).
        top_fraction=1.0,
        control_variate=True,
    ),
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
}
