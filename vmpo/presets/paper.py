"""The paper's presets (Tables 4, 5, 6, 7 and App. F). Fields that are not named have the paper's values as defaults."""

from __future__ import annotations

from vmpo.config import ActorConfig, AgentConfig, Config, EnvConfig, LearnerConfig, LossConfig, Ranges, RunConfig
from vmpo.presets.preset import Preset


def _control(name: str, suite: str, env_id: str, unroll: int, summary: str, frames: int, ranges: Ranges) -> Preset:
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

_ATARI = Preset(
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

_ATARI57 = Preset(
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


def _lab(name: str, level: str, summary: str, multi: bool) -> Preset:
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


_GAPS = Preset(
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

PAPER: dict[str, Preset] = {
    "paper-atari": _ATARI,
    "paper-atari57": _ATARI57,
    "paper-dmlab": _lab(
        "paper-dmlab", "explore_object_rewards_few", "Table 5, one DMLab level: ResNet 16,32,32, LSTM of 2", False
    ),
    "paper-dmlab30": _lab(
        "paper-dmlab30", "dmlab30", "Table 5, DMLab-30 at once: ResNet 64,128,128, LSTM of 3 layers", True
    ),
    "paper-humanoid-gaps": _GAPS,
    "paper-gym-ant": _control(
        "paper-gym-ant", "mujoco", "Ant-v4", 39, "Table 7, OpenAI Gym: Ant", 10_000_000_000, _GYM_RANGES
    ),
    "paper-gym-walker2d": _control(
        "paper-gym-walker2d", "mujoco", "Walker2d-v4", 39, "Table 7, OpenAI Gym: Walker2d", 10_000_000_000, _GYM_RANGES
    ),
    "paper-gym-humanoid": _control(
        "paper-gym-humanoid", "mujoco", "Humanoid-v4", 39, "Table 7, OpenAI Gym: Humanoid", 10_000_000_000, _GYM_RANGES
    ),
    # The table's unroll of 63; the text of App. F says 40.
    "paper-humanoid-run": _control(
        "paper-humanoid-run", "mujoco", "HumanoidRun-v1", 63, "Table 7, humanoid run", 10_000_000_000, _HUMANOID_RANGES
    ),
}
