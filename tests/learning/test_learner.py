"""The learner: replicas, the target network, recorded behaviour, multipliers, PopArt and resets."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from samples import CONTINUOUS, DISCRETE, env_spec, new_learner, random_unrolls, small_config

from vmpo import popart
from vmpo.learning.objectives import MULTIPLIER_FLOOR
from vmpo.networks.agent import agent_inputs
from vmpo.records import concatenate, split


def parameters(learner):
    return torch.cat([p.detach().flatten() for p in (*learner.online.parameters(), *learner.multipliers.parameters())])


def gradients(learner, batch):
    learner.update(batch)
    return torch.cat([p.grad.flatten() for p in (*learner.online.parameters(), *learner.multipliers.parameters())])


@pytest.mark.parametrize("core", ["none", "lstm", "transformer"])
@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_recorded_behaviour_equals_the_targets_forward_pass(core, action):
    agent = {"core": core}
    shortcut = new_learner(small_config(agent=agent), env_spec(action))
    recomputed = new_learner(small_config(agent=agent, learner={"recorded_behaviour": False}), env_spec(action))
    batch, other = random_unrolls(shortcut, seed=1), random_unrolls(shortcut, seed=2)
    torch.testing.assert_close(gradients(shortcut, other), gradients(recomputed, other), rtol=1e-4, atol=1e-6)
    # A step away from the target the KL is not zero. It is the same step for both: a gradient that is all rounding
    # makes a first step of Adam as long as any other, in either direction.
    recomputed.online.load_state_dict(shortcut.online.state_dict())
    recomputed.multipliers.load_state_dict(shortcut.multipliers.state_dict())
    recomputed.statistics = shortcut.statistics
    torch.testing.assert_close(gradients(shortcut, batch), gradients(recomputed, batch), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_the_action_that_is_scored_is_the_one_chosen_at_that_timestep(action):
    """Before the first update the online policy is the behaviour: it must give the same probability to each action."""
    learner = new_learner(small_config(), env_spec(action))
    batch = random_unrolls(learner, seed=1)
    chosen = learner.family.distribution(batch.behaviour).log_prob(batch.actions[1:])
    torch.testing.assert_close(learner._evaluate(batch, recorded=True).log_probs, chosen, rtol=1e-4, atol=1e-5)


def test_recorded_behaviour_is_not_used_for_an_older_version():
    learner = new_learner(small_config(learner={"target_period": 1}))
    batch = random_unrolls(learner, seed=1)
    learner.update(random_unrolls(learner, seed=2))
    # The target is the online network by now: its own KL is zero, but against the old behaviour it is not.
    assert learner.version == 1
    metrics = learner.update(batch)
    assert metrics["policy_lag"] == 1
    assert metrics["kl/policy"] == pytest.approx(0.0, abs=1e-7)


def test_the_kl_is_between_the_target_and_the_online_policy():
    """KL of the online policy with itself would be zero at every step."""
    learner = new_learner(small_config(learner={"recorded_behaviour": False}))
    first = learner.update(random_unrolls(learner, seed=1))["kl/policy"]
    second = learner.update(random_unrolls(learner, seed=2))["kl/policy"]
    assert first == pytest.approx(0.0, abs=1e-7)
    assert second > 1e-5


def test_the_target_is_replaced_every_target_period_steps():
    learner = new_learner(small_config())
    before = [p.clone() for p in learner.target.parameters()]
    for step in (1, 2):
        learner.update(random_unrolls(learner, seed=step))
        assert all(torch.equal(a, b) for a, b in zip(before, learner.target.parameters(), strict=True))
    learner.update(random_unrolls(learner, seed=3))
    assert learner.version == 1
    assert all(torch.equal(a, b) for a, b in zip(learner.online.parameters(), learner.target.parameters(), strict=True))


@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_two_virtual_replicas_take_the_mean_of_two_halves(action):
    whole = new_learner(small_config(learner={"virtual_replicas": 2}), env_spec(action))
    halves = [new_learner(small_config(learner={"batch_size": 2}), env_spec(action)) for _ in range(2)]
    batch = random_unrolls(whole, seed=1)
    separate = [gradients(learner, half) for learner, half in zip(halves, split(batch, 2), strict=True)]
    torch.testing.assert_close(gradients(whole, batch), (separate[0] + separate[1]) / 2, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("exact", [False, True])
def test_a_global_top_half_over_replicas_equals_one_minibatch(exact):
    """Without resets each replica has as many valid samples, so that every mean is the same too."""
    loss = {"top_scope": "global", "exact_temperature": exact}
    one = new_learner(small_config(loss=loss))
    two = new_learner(small_config(loss=loss, learner={"virtual_replicas": 2}))
    batch = random_unrolls(one, seed=1, resets=False)
    for learner in (one, two):
        learner.update(batch)
    torch.testing.assert_close(parameters(one), parameters(two), rtol=1e-4, atol=1e-6)


def test_a_top_half_per_replica_differs_from_a_global_one():
    batches = {}
    for scope in ("replica", "global"):
        learner = new_learner(small_config(loss={"top_scope": scope}, learner={"virtual_replicas": 2}))
        batches[scope] = gradients(learner, random_unrolls(learner, seed=1))
    assert not torch.allclose(batches["replica"], batches["global"])


def test_multipliers_are_projected_after_the_update_and_recover_from_the_floor():
    learner = new_learner(small_config(loss={"initial_temperature": MULTIPLIER_FLOOR}))
    with torch.no_grad():
        learner.multipliers.alphas["policy"].fill_(1e-3)
    learner.update(random_unrolls(learner, seed=1))
    # KL is zero at the first step, so alpha sinks by its learning rate of 1e-2, below zero and back to the floor.
    assert learner.multipliers.alphas["policy"].item() == pytest.approx(MULTIPLIER_FLOOR)
    # The temperature is far below its optimum: its gradient is negative even at the floor.
    assert learner.multipliers.temperature.item() > 1e-3


def test_multipliers_have_their_own_learning_rate():
    learner = new_learner(small_config(learner={"learning_rate": 1e-6, "multiplier_learning_rate": 0.5}))
    before = learner.multipliers.alphas["policy"].item()
    learner.update(random_unrolls(learner, seed=1))
    assert abs(learner.multipliers.alphas["policy"].item() - before) == pytest.approx(0.5, rel=1e-3)


def test_the_learning_rate_falls_in_a_straight_line_and_that_of_the_multipliers_stays():
    settings = {"learning_rate": 4e-3, "final_learning_rate": 1e-3, "multiplier_learning_rate": 0.5}
    learner = new_learner(small_config(learner=settings))
    rates = []
    for progress in (0.0, 0.5, 1.0, 1.5):
        learner.update(random_unrolls(learner, seed=1), progress)
        rates.append([group["lr"] for group in learner.optimiser.param_groups])
    expected = [[4e-3, 0.5], [2.5e-3, 0.5], [1e-3, 0.5], [1e-3, 0.5]]
    assert rates == [pytest.approx(pair) for pair in expected]


def test_the_exact_temperature_meets_its_bound_on_every_batch():
    learner = new_learner(small_config(loss={"exact_temperature": True, "epsilon_temperature": 0.1}))
    for seed in range(3):
        metrics = learner.update(random_unrolls(learner, seed))
        assert metrics["e_step_kl"] == pytest.approx(0.1, rel=1e-3)


def test_an_entropy_bonus_adds_the_gradient_of_the_mean_entropy_and_nothing_else():
    none, zero, some = (new_learner(small_config(loss={"entropy_cost": cost})) for cost in (None, 0.0, 0.1))
    batch = random_unrolls(none, seed=1)
    inputs = agent_inputs(batch)
    parameters = [*none.online.parameters()]
    policy = none.family.distribution(none.online.unroll(inputs, batch.state)[0].policy[:-1])
    entropy = policy.entropy()[batch.valids[1:]].mean()
    found = torch.autograd.grad(entropy, parameters, allow_unused=True)
    by_entropy = torch.cat(
        [torch.zeros_like(p).flatten() if g is None else g.flatten() for p, g in zip(parameters, found, strict=True)]
    )
    plain = gradients(none, batch)
    torch.testing.assert_close(gradients(zero, batch), plain, rtol=0, atol=0)
    difference = (gradients(some, batch) - plain)[: len(by_entropy)]
    assert by_entropy.abs().max() > 1e-3
    torch.testing.assert_close(difference, -0.1 * by_entropy, rtol=1e-3, atol=1e-6)


def test_the_statistics_step_preserves_values_in_the_units_of_rewards():
    learner = new_learner(small_config(loss={"popart_rate": 0.3}), env_spec(tasks=("a", "b")))
    batch = random_unrolls(learner, seed=1)
    batch = replace(batch, rewards=1e3 * batch.rewards)
    features = torch.randn(10, learner.online.value_readout.in_features)
    tasks = torch.arange(10) % 2

    def unnormalised():
        outputs = learner.online.value_readout(features).gather(1, tasks[:, None])[:, 0]
        return popart.denormalise(outputs, tasks, learner.statistics).detach()

    old, before = learner.statistics, unnormalised()
    learner._move_statistics(learner._next_statistics(batch.rewards[1:], batch.tasks[:-1], batch.valids[1:]))
    assert (learner.statistics.scale > 2 * old.scale).all()
    torch.testing.assert_close(unnormalised(), before, rtol=1e-5, atol=1e-4)


def test_nothing_after_a_reset_changes_the_gradient_of_what_came_before():
    """Returns, advantages and recurrent state all stop at the final observation."""
    learners = [new_learner(small_config(agent={"core": "lstm"}, loss={"top_fraction": 1.0})) for _ in range(2)]
    batch = random_unrolls(learners[0], seed=1, resets=False)
    batch.firsts[3], batch.valids[3] = True, False
    changed = replace(
        batch,
        observations={"vector": batch.observations["vector"].clone()},
        rewards=batch.rewards.clone(),
        discounts=batch.discounts.clone(),
    )
    changed.observations["vector"][3:] += 5.0
    changed.rewards[3:] += 100.0
    changed.discounts[3:] = 1.0
    outcomes = [
        learner._evaluate(unrolls, recorded=True) for learner, unrolls in zip(learners, (batch, changed), strict=True)
    ]
    for name in ("advantages", "returns", "log_probs", "normalised_values"):
        kept, other = (getattr(outcome, name)[:2] for outcome in outcomes)
        torch.testing.assert_close(kept, other)
    assert not outcomes[0].valid[2].any()
    # The step before the final observation bootstraps from it; that observation itself has no advantage.
    torch.testing.assert_close(outcomes[0].advantages[2], torch.zeros(4))
    assert not torch.allclose(outcomes[0].returns[3], outcomes[1].returns[3])


def test_truncation_bootstraps_from_the_final_observation_and_termination_does_not():
    learner = new_learner(small_config(loss={"advantage_scale": "raw"}))
    batch = random_unrolls(learner, seed=1, resets=False)
    batch.firsts[4], batch.valids[4] = True, False
    batch.discounts[3, 0], batch.discounts[3, 1] = 0.0, 1.0
    evaluation = learner._evaluate(batch, recorded=True)
    output, _ = learner.online.unroll(agent_inputs(batch), batch.state)
    final_values = output.values[3, :, 0].detach()
    assert evaluation.returns[2, 0] == pytest.approx(batch.rewards[3, 0].item(), abs=1e-6)
    expected = batch.rewards[3, 1] + 0.99 * final_values[1]
    assert evaluation.returns[2, 1] == pytest.approx(expected.item(), abs=1e-5)


def test_each_task_has_its_own_value_output_and_statistics():
    learner = new_learner(small_config(loss={"popart_rate": 0.5}), env_spec(tasks=("a", "b", "c")))
    batch = replace(random_unrolls(learner, seed=1), tasks=torch.ones(7, 4, dtype=torch.int64))
    learner.update(batch)
    gradient = learner.online.value_readout.weight.grad
    assert gradient[1].abs().sum() > 0
    assert not gradient[[0, 2]].any()
    assert learner.statistics.mean[[0, 2]].tolist() == [0.0, 0.0]
    assert learner.statistics.mean[1] != 0


def test_importance_weights_and_vtrace_change_nothing_while_the_data_is_on_policy():
    plain = new_learner(small_config())
    weighted = new_learner(
        small_config(
            loss={"importance_weights": True, "returns": "vtrace", "gae_lambda": 1.0},
            learner={"recorded_behaviour": False},
        )
    )
    batch = random_unrolls(plain, seed=1)
    torch.testing.assert_close(gradients(plain, batch), gradients(weighted, batch), rtol=1e-4, atol=1e-6)


def test_importance_weights_act_when_the_data_lags():
    outcomes = []
    for weighted in (False, True):
        learner = new_learner(
            small_config(loss={"importance_weights": weighted}, learner={"target_period": 1, "learning_rate": 0.1})
        )
        batch = random_unrolls(learner, seed=1)
        learner.update(random_unrolls(learner, seed=2))
        outcomes.append(gradients(learner, batch))
    assert not torch.allclose(*outcomes)


def test_observation_statistics_move_only_with_the_target():
    learner = new_learner(small_config(agent={"normalise_observations": True}))
    (online,), (target,) = learner.online.normalisers, learner.target.normalisers
    for seed in range(2):
        learner.update(random_unrolls(learner, seed))
        assert online.count == 0
    learner.update(random_unrolls(learner, 2))
    assert online.count > 0
    torch.testing.assert_close(online.mean, target.mean)


def test_joining_the_halves_of_a_batch_gives_it_back():
    learner = new_learner(small_config(agent={"core": "lstm"}))
    batch = random_unrolls(learner, seed=1)
    joined = concatenate(split(batch, 2))
    torch.testing.assert_close(joined.actions, batch.actions)
    torch.testing.assert_close(joined.state, batch.state)
    torch.testing.assert_close(joined.versions, batch.versions)


@pytest.mark.parametrize("algorithm", ["impala", "ppo"])
def test_baselines_move_the_networks_but_not_the_multipliers(algorithm):
    learner = new_learner(small_config(loss={"algorithm": algorithm, "returns": "vtrace"}))
    before = copy.deepcopy([*learner.online.parameters()])
    multipliers = copy.deepcopy([*learner.multipliers.parameters()])
    metrics = learner.update(random_unrolls(learner, 0))
    assert all(not torch.equal(a, b) for a, b in zip(before, learner.online.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(multipliers, learner.multipliers.parameters(), strict=True))
    assert {"loss_policy", "loss_value", "entropy", "kl/policy"} <= set(metrics)
    assert "temperature" not in metrics


@pytest.mark.parametrize(("num_envs", "batch_size", "passes", "period"), [(8, 4, 3, 6), (4, 4, 1, 1), (2, 4, 2, 2)])
def test_baselines_act_by_new_weights_after_every_unroll(num_envs, batch_size, passes, period):
    config = small_config(
        loss={"algorithm": "ppo"},
        actors={"num_envs": num_envs},
        learner={"batch_size": batch_size, "passes": passes, "target_period": 100},
    )
    learner = new_learner(config)
    versions = []
    for step in range(2 * period):
        learner.update(random_unrolls(learner, step))
        versions.append(learner.version)
    assert versions == [0] * (period - 1) + [1] * period + [2]


def test_a_baselines_ratio_is_to_the_policy_that_acted():
    """One after another on the same batch, with the acting weights fixed: the ratio leaves 1 only after an update."""
    config = small_config(loss={"algorithm": "impala", "returns": "gae"}, learner={"passes": 3, "learning_rate": 1e-2})
    learner = new_learner(config)
    batch = random_unrolls(learner, 0)
    first, second = (learner.update(batch) for _ in range(2))
    assert first["kl/policy"].item() == pytest.approx(0.0, abs=1e-5)
    assert second["kl/policy"].item() > 1e-4


def test_a_gradient_is_scaled_down_to_its_bound_and_reported_as_it_was():
    def gradient(bound):
        learner = new_learner(small_config(learner={"max_gradient_norm": bound}))
        metrics = learner.update(random_unrolls(learner, 0))
        return metrics["gradient_norm"], torch.cat([p.grad.flatten() for p in learner.online.parameters()])

    norm, free = gradient(None)
    same_norm, bounded = gradient(float(norm) / 4)
    torch.testing.assert_close(norm, same_norm)
    torch.testing.assert_close(free.norm(), norm)
    torch.testing.assert_close(bounded, free / 4, rtol=1e-4, atol=1e-7)
