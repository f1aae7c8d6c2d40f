"""The paper's numbers, as its tables give them, and ranges that are sampled once per run."""

from __future__ import annotations

import math

import pytest

from vmpo import presets
from vmpo.config import from_dict, sampled, to_dict
from vmpo.errors import UserError
from vmpo.problems import problems
from vmpo.suites import task_ids

PAPER = [name for name in presets.PRESETS if name.startswith("paper-")]


def resolved(name, seed=0):
    from dataclasses import replace

    preset = presets.get(name)
    return sampled(replace(preset.config, run=replace(preset.config.run, seed=seed)), preset.ranges)


@pytest.mark.parametrize("name", presets.PRESETS)
def test_every_preset_is_possible_and_survives_json(name):
    import json

    config = resolved(name)
    assert config.preset == name
    assert problems(config) == []
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


@pytest.mark.parametrize("name", PAPER)
def test_paper_presets_use_no_option_beyond_the_paper(name):
    config = resolved(name)
    assert config.learner.learning_rate == 1e-4
    assert config.learner.multiplier_learning_rate is None
    assert config.loss.returns == "n_step"
    assert not config.loss.exact_temperature
    assert not config.loss.control_variate
    assert not config.loss.entropy_cost
    assert config.learner.final_learning_rate is None
    assert config.learner.max_gradient_norm is None
    assert not config.loss.importance_weights
    assert config.loss.top_fraction == 0.5
    assert config.loss.top_scope == "replica"
    assert config.loss.initial_temperature == 1.0
    assert config.loss.initial_alpha_policy == 5.0
    assert config.loss.initial_alpha_mean == config.loss.initial_alpha_covariance == 1.0
    assert (config.loss.popart_rate, config.loss.popart_minimum, config.loss.popart_maximum) == (1e-4, 1e-2, 1e6)
    assert not config.agent.normalise_observations
    assert not config.agent.layer_norm
    assert config.agent.head_units == 256


def test_the_atari_preset_has_the_numbers_of_table_6():
    config = resolved("paper-atari")
    learner, loss, agent, env = config.learner, config.loss, config.agent, config.env
    assert (learner.unroll_length, learner.batch_size, learner.virtual_replicas) == (63, 128, 8)
    assert (learner.target_period, loss.discount, loss.epsilon_temperature) == (1000, 0.997, 0.02)
    assert 0.005 <= loss.epsilon_policy < 0.01
    assert (agent.pixels, agent.resnet_channels, agent.core) == ("resnet", (64, 128, 128), "transformer")
    assert (agent.transformer_layers, agent.transformer_heads) == (8, 4)
    assert (agent.transformer_key_size, agent.transformer_mlp) == (32, 512)
    assert (env.life_loss_discount, env.clip_rewards, env.max_frames) == (1.0, False, 108_000)
    assert (env.frame_stack, env.action_repeat) == (4, 4)


@pytest.mark.parametrize("name", ["paper-gym-ant", "paper-gym-walker2d", "paper-gym-humanoid"])
def test_the_gym_presets_have_the_numbers_of_table_7(name):
    config = resolved(name)
    learner, loss = config.learner, config.loss
    assert (learner.unroll_length, learner.batch_size, learner.target_period) == (39, 64, 100)
    assert (loss.discount, loss.epsilon_temperature, config.agent.hidden) == (0.99, 0.01, (512, 256))
    assert 0.005 <= loss.epsilon_mean <= 0.01
    assert 5e-6 <= loss.epsilon_covariance < 5e-5


def test_the_humanoid_preset_has_the_numbers_of_table_7():
    config = resolved("paper-humanoid-run")
    learner, loss = config.learner, config.loss
    assert (learner.unroll_length, learner.batch_size, learner.target_period) == (63, 64, 100)
    assert (loss.discount, loss.epsilon_temperature, config.agent.hidden) == (0.99, 0.01, (512, 256))
    assert 0.05 <= loss.epsilon_mean <= 0.5
    assert 1e-5 <= loss.epsilon_covariance < 5e-5


def test_the_multi_task_atari_preset_has_the_numbers_of_table_6():
    config = resolved("paper-atari57")
    learner, loss, agent, env = config.learner, config.loss, config.agent, config.env
    assert (learner.unroll_length, learner.batch_size, learner.virtual_replicas) == (63, 128, 8)
    assert (learner.target_period, loss.discount, loss.epsilon_temperature) == (100, 0.99, 0.02)
    assert 0.001 <= loss.epsilon_policy < 0.01
    assert (agent.pixels, agent.resnet_channels) == ("resnet", (64, 128, 128))
    assert (agent.core, agent.lstm_layers, agent.lstm_units) == ("lstm", 1, 256)
    assert (env.life_loss_discount, env.clip_rewards, env.max_frames) == (0.0, True, 108_000)
    assert env.full_action_set
    assert len(task_ids(env)) == 57


@pytest.mark.parametrize(
    ("name", "tasks", "channels", "layers", "epsilon_temperature", "low", "high"),
    [
        ("paper-dmlab", 1, (16, 32, 32), 2, 0.1, 0.001, 0.01),
        ("paper-dmlab30", 30, (64, 128, 128), 3, 0.5, 0.01, 0.1),
    ],
)
def test_the_lab_presets_have_the_numbers_of_table_5(name, tasks, channels, layers, epsilon_temperature, low, high):
    config = resolved(name)
    learner, loss, agent = config.learner, config.loss, config.agent
    assert (learner.unroll_length, learner.batch_size, learner.target_period) == (95, 128, 10)
    assert (loss.discount, loss.epsilon_temperature, loss.pixel_control_cost) == (0.99, epsilon_temperature, 2e-3)
    assert low <= loss.epsilon_policy < high
    assert (agent.resnet_channels, agent.core, agent.lstm_layers, agent.text_units) == (channels, "lstm", layers, 256)
    assert config.env.action_repeat == 4
    assert len(task_ids(config.env)) == tasks


def test_the_humanoid_gaps_preset_has_the_numbers_of_table_7():
    config = resolved("paper-humanoid-gaps")
    learner, loss, agent = config.learner, config.loss, config.agent
    assert (learner.unroll_length, learner.batch_size, learner.target_period) == (63, 64, 100)
    assert (loss.discount, loss.epsilon_temperature) == (0.99, 0.1)
    assert 0.01 <= loss.epsilon_mean < 1.0
    assert 5e-6 <= loss.epsilon_covariance < 5e-5
    assert (agent.resnet_channels, agent.core, agent.lstm_layers) == ((16, 32, 32), "lstm", 1)
    assert config.env.shadows


def test_a_range_is_sampled_log_uniformly_from_the_runs_seed():
    draws = [resolved("paper-humanoid-run", seed).loss.epsilon_mean for seed in range(300)]
    assert draws[0] == resolved("paper-humanoid-run", 0).loss.epsilon_mean
    assert len(set(draws)) == 300
    logs = [(math.log(d) - math.log(0.05)) / (math.log(0.5) - math.log(0.05)) for d in draws]
    assert 0.45 < sum(logs) / 300 < 0.55
    assert min(logs) < 0.05
    assert max(logs) > 0.95


def test_a_value_that_was_given_is_not_sampled():
    from dataclasses import replace

    preset = presets.get("paper-atari")
    given = replace(preset.config, loss=replace(preset.config.loss, epsilon_policy=0.123))
    assert sampled(given, preset.ranges).loss.epsilon_policy == 0.123


def test_a_configuration_that_was_sampled_stays_as_it_is():
    """eps_alpha is drawn once per run; a resumed run reads it from its file."""
    config = resolved("paper-atari")
    assert sampled(config, presets.get("paper-atari").ranges) == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"leaner": {}}, "did you mean 'learner'"),
        ({"learner": {"batchsize": 3}}, "did you mean 'batch_size'"),
        ({"learner": {"batch_size": "three"}}, "config.learner.batch_size='three' is not int"),
        ({"agent": {"core": "gru"}}, "config.agent.core='gru'"),
        ({"agent": {"hidden": [64, "x"]}}, "config.agent.hidden"),
        ({"learner": 3}, "config.learner must be an object"),
        ([1], "config must be an object"),
    ],
)
def test_a_wrong_configuration_file_is_refused_with_its_place(values, message):
    with pytest.raises(UserError, match=message.replace("[", r"\[")):
        from_dict(values)
