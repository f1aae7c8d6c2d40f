"""The V-MPO loss against the paper's Eqs. 2 to 5 and Appendices A, C and E: values, and who receives gradient."""

from __future__ import annotations

import math

import numpy as np
import oracles
import pytest
import torch
from loss_inputs import Inputs, assert_agrees, expected, random_inputs, run


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_loss_and_gradients_are_those_of_the_paper(seed, masked, weighted):
    assert_agrees(random_inputs(seed, masked=masked, weighted=weighted))


@pytest.mark.parametrize("temperature", [0.05, 1.0, 30.0])
@pytest.mark.parametrize("top_fraction", [0.25, 0.5, 1.0])
def test_loss_is_right_at_other_temperatures_and_fractions(temperature, top_fraction):
    x = random_inputs(10)
    x.temperature, x.top_fraction = temperature, top_fraction
    assert_agrees(x, atol=1e-4)


def test_a_discrete_policy_has_one_alpha():
    x = random_inputs(11)
    x.kl_parts, x.alphas, x.epsilon_alphas = {"policy": x.kl_parts["mean"]}, {"policy": 5.0}, {"policy": 0.005}
    assert_agrees(x)


@pytest.mark.parametrize(("length", "batch"), [(1, 2), (1, 3), (3, 1), (5, 5), (11, 1)])
def test_odd_and_small_batches(length, batch):
    assert_agrees(random_inputs(12, length, batch, masked=False))


@pytest.mark.parametrize("num_valid", [2, 3, 4])
def test_few_valid_samples_among_many_invalid_ones(num_valid):
    x = random_inputs(13)
    x.valid = torch.zeros(7, 5, dtype=torch.bool)
    x.valid.view(-1)[torch.tensor([31, 4, 17, 22])[:num_valid]] = True
    assert_agrees(x)


@pytest.mark.parametrize("weighted", [False, True])
def test_tied_advantages(weighted):
    x = random_inputs(14, weighted=weighted)
    x.advantages = (x.advantages * 1.5).round()
    assert x.advantages.unique().numel() < 10
    assert_agrees(x)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("scale", [1e4, -1e4])
def test_advantages_of_ten_thousand_stay_finite_and_right(scale, weighted):
    x = random_inputs(15, weighted=weighted)
    x.advantages = scale * x.advantages.abs()
    x.temperature = 1.0
    assert_agrees(x, atol=1e-3)


def test_a_common_offset_of_the_advantages_leaves_the_gradients_alone():
    """Stability beyond finiteness: 1e4 + noise must weigh samples as the noise does."""
    x = random_inputs(16)
    x.advantages = (x.advantages * 64).round() / 64  # Exact in float32 after the shift.
    shifted = random_inputs(16)
    shifted.advantages = x.advantages + 1e4
    plain, offset = run(x), run(shifted)
    torch.testing.assert_close(plain.log_probs, offset.log_probs, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(plain.temperature, offset.temperature, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("temperature", [0.7, 1e-4])
def test_weights_of_zero_remove_a_sample(temperature):
    """min(1, ratio) underflows for an action that the target policy would never take."""
    x = random_inputs(17, weighted=True)
    x.temperature = temperature
    x.importance_weights = torch.where(x.importance_weights < 0.4, 0.0, x.importance_weights)
    assert_agrees(x)
    assert float(run(x).metrics["e_step_kl"]) == pytest.approx(expected(x).e_step_kl, rel=1e-4)


def test_weights_that_all_vanish_leave_the_loss_and_its_gradients_finite():
    x = random_inputs(17, weighted=True)
    x.importance_weights = torch.zeros_like(x.importance_weights)
    outcome = run(x)
    for tensor in (outcome.total, outcome.log_probs, outcome.temperature, *outcome.alphas.values()):
        assert torch.isfinite(tensor).all()


def test_e_step_diagnostics_are_those_of_psi():
    for seed in range(3):
        x = random_inputs(seed + 18)
        metrics, paper = run(x).metrics, expected(x)
        assert float(metrics["e_step_kl"]) == pytest.approx(paper.e_step_kl, rel=1e-4, abs=1e-5)
        assert float(metrics["effective_sample_size"]) == pytest.approx(paper.effective_sample_size, rel=1e-4)


def test_the_e_step_kl_of_weighted_samples_is_the_one_that_the_dual_bounds():
    x = random_inputs(21, weighted=True)
    outcome = run(x)
    slack = x.epsilon_temperature - float(outcome.temperature)
    assert float(outcome.metrics["e_step_kl"]) == pytest.approx(slack, rel=1e-3, abs=1e-4)


# Gradients: who learns and who does not.


def test_the_gradient_of_log_probs_is_minus_psi_and_sums_to_one():
    """A sum over D~, not a mean: the weights of one minibatch add up to 1 however large it is."""
    for batch in (4, 40):
        x = random_inputs(30, batch=batch)
        outcome = run(x)
        assert outcome.log_probs.sum().item() == pytest.approx(-1.0, abs=1e-5)
        np.testing.assert_allclose(oracles.as_array(outcome.log_probs), -expected(x).psi, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("temperature", [1e-8, 1e-5, 1e-3, 1e-1])
def test_psi_sums_to_one_at_any_temperature(temperature, tied):
    """A / eta - log sum exp(A / eta) without a shift by max A has no digits left for log |D~| when eta is small."""
    x = random_inputs(30)
    x.temperature = temperature
    if tied:
        x.advantages = torch.full_like(x.advantages, 3.3)
    outcome = run(x)
    assert outcome.log_probs.sum().item() == pytest.approx(-1.0, rel=1e-5)
    np.testing.assert_allclose(oracles.as_array(outcome.log_probs), -expected(x).psi, rtol=1e-4, atol=1e-6)


def test_only_the_selected_half_trains_the_policy():
    x = random_inputs(31)
    selected = oracles.select_top(oracles.as_array(x.advantages), oracles.as_array(x.valid))
    trained = oracles.as_array(run(x).log_probs) != 0
    assert (trained == selected).all()


def test_the_temperature_learns_from_its_own_loss_alone():
    x = random_inputs(32)
    other = random_inputs(32)
    other.log_probs = 100.0 * x.log_probs
    other.kl_parts = {name: 100.0 * kl for name, kl in x.kl_parts.items()}
    assert run(x).temperature == run(other).temperature


def test_psi_carries_no_gradient_into_advantages_or_importance_weights():
    outcome = run(random_inputs(33, weighted=True))
    assert not outcome.advantages.any()
    assert not outcome.importance_weights.any()


def test_the_gradient_of_each_alpha_is_its_slack():
    """eps - KL, the KL averaged over the valid samples; positive slack lowers alpha."""
    x = random_inputs(34)
    outcome = run(x)
    for name in x.alphas:
        slack = x.epsilon_alphas[name] - x.kl_parts[name][x.valid].mean()
        torch.testing.assert_close(outcome.alphas[name], slack, rtol=1e-5, atol=1e-6)


def test_alpha_times_kl_trains_the_policy_on_every_valid_sample():
    """D, not D~: the gradient by each sample's KL is alpha / |D|, and no alpha (eps - KL) takes it back."""
    x = random_inputs(35)
    outcome = run(x)
    for name, alpha in x.alphas.items():
        torch.testing.assert_close(outcome.kl_parts[name], alpha * x.valid.float() / x.valid.sum())


def test_a_parts_alpha_and_bound_do_not_touch_the_other_part():
    x, other = random_inputs(36), random_inputs(36)
    other.alphas = {"mean": 77.0, "covariance": other.alphas["covariance"]}
    other.epsilon_alphas = {"mean": 9.0, "covariance": other.epsilon_alphas["covariance"]}
    first, second = run(x), run(other)
    assert torch.equal(first.alphas["covariance"], second.alphas["covariance"])
    assert torch.equal(first.kl_parts["covariance"], second.kl_parts["covariance"])


def test_invalid_samples_receive_no_gradient():
    outcome, x = run(random_inputs(37, weighted=True)), random_inputs(37, weighted=True)
    for received in (outcome.log_probs, *outcome.kl_parts.values()):
        assert not received[~x.valid].any()


@pytest.mark.parametrize("garbage", [1e20, float("inf"), float("nan")])
def test_garbage_on_invalid_samples_changes_nothing(garbage):
    x, dirty = random_inputs(38, weighted=True), random_inputs(38, weighted=True)
    spoil = lambda tensor: torch.where(x.valid, tensor, garbage)  # noqa: E731
    dirty.log_probs, dirty.advantages = spoil(x.log_probs), spoil(x.advantages)
    dirty.kl_parts = {name: spoil(kl) for name, kl in x.kl_parts.items()}
    dirty.importance_weights = spoil(x.importance_weights)
    clean, outcome = run(x), run(dirty)
    for name in ("total", "log_probs", "temperature", "kl_parts", "alphas"):
        torch.testing.assert_close(getattr(outcome, name), getattr(clean, name))


@pytest.mark.parametrize("floor", [1e-8, 1e-9])
def test_alphas_at_the_floor_still_learn(floor):
    """Clipping inside the loss would give a multiplier below its floor no gradient, for ever."""
    x = random_inputs(39)
    x.alphas = {"mean": floor, "covariance": floor}
    outcome, paper = run(x), expected(x)
    for name in x.alphas:
        assert outcome.alphas[name].item() == pytest.approx(paper.alpha_gradients[name], rel=1e-4)


@pytest.mark.parametrize("floor", [1e-8, 1e-9])
def test_a_temperature_at_the_floor_still_learns(floor):
    """There psi is one sample, the KL log |D~|, and the gradient eps - log |D~| < 0 lifts the temperature."""
    x = random_inputs(40)
    x.temperature = floor
    outcome, paper = run(x), expected(x)
    assert paper.temperature_gradient < 0
    assert outcome.temperature.item() == pytest.approx(paper.temperature_gradient, rel=1e-3)
    np.testing.assert_allclose(oracles.as_array(outcome.log_probs), -paper.psi, atol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_single_valid_sample_is_no_top_half_but_still_constrains_the_policy(weighted):
    """floor(1 / 2) = 0 samples are selected: no policy or temperature gradient, no NaN; L_alpha uses D as ever."""
    x = random_inputs(41, weighted=weighted)
    x.valid = torch.zeros(7, 5, dtype=torch.bool)
    x.valid[2, 3] = True
    outcome = run(x)
    assert torch.isfinite(outcome.total)
    assert not outcome.log_probs.any()
    assert outcome.temperature == 0
    for name in x.kl_parts:
        slack = x.epsilon_alphas[name] - x.kl_parts[name][2, 3].item()
        assert outcome.alphas[name].item() == pytest.approx(slack, rel=1e-5)
        assert outcome.kl_parts[name][2, 3].item() == pytest.approx(x.alphas[name], rel=1e-5)
        assert not outcome.kl_parts[name][~x.valid].any()


@pytest.mark.parametrize("weighted", [False, True])
def test_a_batch_without_valid_samples_teaches_nothing(weighted):
    x = random_inputs(41, weighted=weighted)
    x.valid = torch.zeros(7, 5, dtype=torch.bool)
    outcome = run(x)
    assert torch.isfinite(outcome.total)
    for received in (outcome.log_probs, outcome.temperature, *outcome.kl_parts.values(), *outcome.alphas.values()):
        assert not received.any()


@pytest.mark.parametrize("num_valid", [0, 1])
def test_metrics_of_an_empty_selection_are_finite_and_bounded(num_valid):
    x = random_inputs(42)
    x.valid = torch.zeros(7, 5, dtype=torch.bool)
    x.valid[2, 3] = num_valid == 1
    metrics = {name: float(m) for name, m in run(x).metrics.items()}
    assert all(math.isfinite(m) for m in metrics.values())
    assert 0 <= metrics["effective_sample_size"] <= 1
    assert metrics["e_step_kl"] == 0


# Invariants.


def test_importance_weights_of_one_change_nothing():
    x, weighted = random_inputs(50), random_inputs(50)
    weighted.importance_weights = torch.ones_like(x.log_probs)
    first, second = run(x), run(weighted)
    torch.testing.assert_close(first.total, second.total)
    torch.testing.assert_close(first.log_probs, second.log_probs)
    torch.testing.assert_close(first.temperature, second.temperature)


def test_selection_ignores_importance_weights():
    x = random_inputs(51, weighted=True)
    selected = oracles.select_top(oracles.as_array(x.advantages), oracles.as_array(x.valid))
    assert ((oracles.as_array(run(x).log_probs) != 0) == selected).all()


def test_no_mask_means_that_every_sample_is_valid():
    x, masked = random_inputs(52, masked=False), random_inputs(52, masked=False)
    masked.valid = torch.ones(7, 5, dtype=torch.bool)
    first, second = run(x), run(masked)
    torch.testing.assert_close(first.total, second.total)
    torch.testing.assert_close(first.log_probs, second.log_probs)


def test_masked_samples_might_as_well_not_be_there():
    x = random_inputs(53, weighted=True)
    pick = lambda tensor: tensor[x.valid][:, None]  # noqa: E731
    compact = Inputs(
        log_probs=pick(x.log_probs),
        advantages=pick(x.advantages),
        kl_parts={name: pick(kl) for name, kl in x.kl_parts.items()},
        importance_weights=pick(x.importance_weights),
    )
    first, second = run(x), run(compact)
    torch.testing.assert_close(first.total, second.total)
    torch.testing.assert_close(pick(first.log_probs), second.log_probs)
    torch.testing.assert_close(first.temperature, second.temperature, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(first.alphas, second.alphas)


def test_the_order_of_samples_does_not_matter():
    x = random_inputs(54)
    order = torch.randperm(35, generator=torch.Generator().manual_seed(54))
    shuffle = lambda tensor: tensor.reshape(-1)[order].reshape(7, 5)  # noqa: E731
    shuffled = Inputs(
        log_probs=shuffle(x.log_probs),
        advantages=shuffle(x.advantages),
        kl_parts={name: shuffle(kl) for name, kl in x.kl_parts.items()},
        valid=shuffle(x.valid),
    )
    first, second = run(x), run(shuffled)
    torch.testing.assert_close(first.total, second.total)
    torch.testing.assert_close(shuffle(first.log_probs), second.log_probs)


def test_metrics_carry_no_graph_and_the_parts_add_up():
    outcome = run(random_inputs(55))
    assert not any(isinstance(m, torch.Tensor) and m.requires_grad for m in outcome.metrics.values())
    parts = sum(float(outcome.metrics[name]) for name in ("loss_policy", "loss_temperature", "loss_alpha"))
    assert outcome.total.item() == pytest.approx(parts, rel=1e-5)


# Selection of D~.
