"""Actors, fleets and evaluation on environments whose every number is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from samples import CountingEnv, env_spec, make_actor, new_slot, small_config

from vmpo.acting.evaluate import EvaluationResult, evaluate, num_evaluation_envs
from vmpo.acting.local import SerialFleet
from vmpo.cli import task_table
from vmpo.networks.agent import agent_inputs
from vmpo.records import EpisodeResult, Weights
from vmpo.suites.multitask import MultiTaskEnv


@pytest.mark.parametrize("core", ["none", "lstm", "transformer"])
def test_the_recorded_distributions_are_those_of_an_unroll_from_the_recorded_state(core):
    config = small_config(agent={"core": core})
    actor = make_actor(CountingEnv([3, 5, 4, 50]), config)
    slot = new_slot(actor, config)
    for _ in range(3):
        actor.unroll(slot)
        with torch.no_grad():
            output, _ = actor.network.unroll(agent_inputs(slot), slot.state)
        torch.testing.assert_close(output.policy[:-1], slot.behaviour, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("onnx_runtime", [True, False])
def test_loaded_weights_act_from_the_next_unroll_on(onnx_runtime):
    config = small_config(agent={"core": "lstm"})
    actor = make_actor(CountingEnv([3, 5, 4, 50]), config, onnx_runtime=onnx_runtime)
    slot = new_slot(actor, config)
    actor.unroll(slot)
    before = slot.behaviour.clone()
    tensors = {name: tensor + 0.3 for name, tensor in actor.network.state_dict().items()}
    actor.load(Weights(version=7, tensors=tensors))
    actor.unroll(slot)
    with torch.no_grad():
        output, _ = actor.network.unroll(agent_inputs(slot), slot.state)
    assert slot.versions.tolist() == [7] * 4
    assert not torch.allclose(slot.behaviour, before, atol=1e-3)
    torch.testing.assert_close(output.policy[:-1], slot.behaviour, rtol=1e-4, atol=1e-5)


def test_an_unroll_continues_where_the_one_before_ended():
    config = small_config()
    actor = make_actor(CountingEnv([4, 100, 7, 3]), config)
    first, second = new_slot(actor, config), new_slot(actor, config)
    actor.unroll(first)
    actor.unroll(second)
    for name in ("rewards", "discounts", "firsts", "valids", "tasks", "actions"):
        assert torch.equal(getattr(first, name)[-1], getattr(second, name)[0]), name
    assert torch.equal(first.observations["vector"][-1], second.observations["vector"][0])
    assert second.observations["vector"][:, 1, 1].tolist() == [6, 7, 8, 9, 10, 11, 12]


def test_actions_stand_at_the_timestep_they_led_to():
    config = small_config()
    env = CountingEnv([100] * 4)
    actor = make_actor(env, config)
    slot = new_slot(actor, config)
    actor.unroll(slot)
    assert np.array_equal(np.stack(env.executed), slot.actions[1:].numpy())


def test_a_gaussian_sample_is_recorded_raw_and_executed_within_the_bounds():
    from samples import CONTINUOUS

    config = small_config(agent={"initial_std": 3.0})
    env = CountingEnv([100] * 4, spec=env_spec(CONTINUOUS))
    actor = make_actor(env, config)
    slot = new_slot(actor, config)
    actor.unroll(slot)
    raw, executed = slot.actions[1:].numpy(), np.stack(env.executed)
    assert np.abs(raw).max() > 1.5
    np.testing.assert_allclose(executed, np.clip(raw, -1, 1), atol=1e-6)


def test_bounds_other_than_the_unit_box_are_scaled_and_missing_ones_passed():
    from vmpo.records import ContinuousActions

    spec = ContinuousActions(low=np.array([0.0, -2.0, -np.inf]), high=np.array([10.0, 2.0, np.inf]))
    executed = spec.executable(np.array([[0.0, 0.5, 7.0], [-3.0, 3.0, -7.0]], np.float32))
    np.testing.assert_allclose(executed, [[5.0, 1.0, 7.0], [0.0, 2.0, -7.0]])


def test_episodes_are_counted_once_with_their_whole_return():
    config = small_config(learner={"unroll_length": 20})
    actor = make_actor(CountingEnv([4, 100, 7, 3]), config)
    episodes = actor.unroll(new_slot(actor, config))
    found = sorted((e.env_index, e.length, e.episode_return) for e in episodes)
    # A reset takes a call of its own: length 4 ends at calls 4, 9, 14, 19.
    assert found == [(0, 4, 10.0)] * 4 + [(2, 7, 28.0)] * 2 + [(3, 3, 6.0)] * 5


def test_evaluation_takes_a_set_number_of_episodes_from_each_environment():
    """The first ten to end would be those of the environment with the shortest episodes."""
    config = small_config()
    result = evaluate(make_actor(CountingEnv([2, 40, 40, 40]), config, greedy=True), episodes=10)
    assert sorted(e.env_index for e in result.episodes) == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]
    assert result.summary()["episodes"] == 10
    expected = (3 * 3.0 + 7 * 820.0) / 10
    assert result.summary()["mean_return"] == pytest.approx(expected)


def test_an_evaluation_tells_how_far_it_is(monkeypatch):
    from vmpo.acting import evaluate as module

    monkeypatch.setattr(module, "TELL_SECONDS", 0.0)
    told = []
    evaluate(make_actor(CountingEnv([2, 40, 40, 40]), small_config(), greedy=True), 10, told.append)
    assert told[0] == "evaluating: 0 of 10 episodes"
    # Seven short ones would fit into an unroll; the first environment gives no more than its three.
    assert told[1] == "evaluating: 3 of 10 episodes, mean return 3.0"
    assert told[-1].startswith("evaluating: ")
    assert len(told) == 4


def test_an_episode_that_does_not_end_is_cut_and_told(monkeypatch):
    from vmpo.acting import evaluate as module

    monkeypatch.setattr(module, "LONGEST_EPISODE", 60)
    result = evaluate(make_actor(CountingEnv([2, 1000, 40, 40]), small_config(), greedy=True), episodes=8)
    assert sorted(e.env_index for e in result.episodes) == [0, 0, 1, 2, 2, 3, 3]
    (cut,) = (e for e in result.episodes if e.env_index == 1)
    assert cut.length == 64
    assert cut.episode_return == 64 * 65 / 2
    assert result.summary()["unfinished"] == 1


def test_a_greedy_actor_repeats_itself_and_a_sampling_one_does_not():
    config = small_config()
    slots = {}
    for greedy in (True, False):
        actors = [make_actor(CountingEnv([50] * 4), config, greedy=greedy) for _ in range(2)]
        actors[1].generator.manual_seed(99)
        slots[greedy] = [new_slot(actor, config) for actor in actors]
        for actor, slot in zip(actors, slots[greedy], strict=True):
            actor.unroll(slot)
    assert torch.equal(slots[True][0].actions, slots[True][1].actions)
    assert not torch.equal(slots[False][0].actions, slots[False][1].actions)


@pytest.mark.parametrize(("batch_size", "num_envs"), [(4, 4), (8, 4), (2, 4)])
def test_the_serial_fleet_makes_batches_of_whole_unrolls(batch_size, num_envs):
    config = small_config(learner={"batch_size": batch_size}, actors={"num_envs": num_envs})
    env = CountingEnv([100] * num_envs)
    fleet = SerialFleet(config, make_actor(env, config))
    transitions = 0
    for _ in range(4):
        batch = fleet.collect().batch
        assert batch.rewards.shape == (7, batch_size)
        transitions += batch_size * 6
        assert (batch.rewards[1:] - batch.rewards[:-1]).unique().tolist() == [1.0]
    assert env.calls * num_envs == transitions
    fleet.close()
    assert env.closed


def test_the_summary_of_an_evaluation_has_every_task_and_the_suite_score():
    games = {"pong": [14.6, -20.7], "boxing": [12.1, 12.1]}
    episodes = tuple(EpisodeResult(task=t, episode_return=r, length=1) for t, returns in games.items() for r in returns)
    summary = EvaluationResult(episodes=episodes).summary()
    assert summary["tasks"]["pong"]["mean_return"] == pytest.approx(-3.05)
    assert summary["tasks"]["pong"]["human_normalised"] == pytest.approx(50.0)
    assert summary["tasks"]["boxing"]["published"] == {"IMPALA": 93.1, "V-MPO": 100.0}
    assert summary["score"] == {"median": pytest.approx(75.0), "mean": pytest.approx(75.0)}
    lines = task_table(summary["tasks"])
    assert lines[0].split() == ["task", "return", "+-", "human", "%", "IMPALA", "V-MPO"]
    assert lines[1].split() == ["boxing", "12.10", "0.00", "100.00", "93.10", "100.00"]


def test_every_task_is_evaluated_on_the_same_number_of_environments():
    assert num_evaluation_envs(num_envs=128, num_tasks=57, episodes=10) == 114
    assert num_evaluation_envs(num_envs=32, num_tasks=57, episodes=10) == 57
    assert num_evaluation_envs(num_envs=64, num_tasks=1, episodes=10) == 10


def test_each_task_has_its_episodes_evaluated():
    config = small_config()

    def make_task(name, count):
        return CountingEnv([int(name)] * count, replace(env_spec(), tasks=(name,)))

    env = MultiTaskEnv(make_task, ("2", "9"), 6)
    result = evaluate(make_actor(env, config, greedy=True), episodes=7)
    assert sorted(e.task for e in result.episodes) == ["2"] * 7 + ["9"] * 7
