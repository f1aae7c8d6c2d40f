"""The temperature that is solved on each batch: it meets the bound wherever the bound can be met."""

from __future__ import annotations

import math

import numpy as np
import oracles
import pytest
import torch
from loss_inputs import Inputs, random_inputs, run

from vmpo.losses.vmpo import centre, solve_temperature


def selection(x: Inputs) -> torch.Tensor:
    return torch.from_numpy(oracles.select_top(oracles.as_array(x.advantages), oracles.as_array(x.valid)))


def solved(x: Inputs, epsilon: float) -> tuple[float, dict]:
    """Our solution, and the arguments with which an oracle can judge it."""
    chosen = selection(x)
    result = solve_temperature(centre(x.advantages, chosen, x.importance_weights), epsilon)
    weights = None if x.importance_weights is None else oracles.as_array(x.importance_weights)
    judged = {"advantages": oracles.as_array(x.advantages), "selected": oracles.as_array(chosen), "weights": weights}
    return float(result), judged


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("epsilon", [1e-5, 0.01, 0.1, 0.5, 1.0])
def test_the_solved_temperature_meets_the_e_step_bound(epsilon, scale):
    x = random_inputs(70)
    x.advantages = scale * x.advantages
    eta, judged = solved(x, epsilon)
    assert oracles.e_step_kl(temperature=eta, **judged) == pytest.approx(epsilon, rel=1e-3)
    assert eta == pytest.approx(oracles.solve_temperature(epsilon=epsilon, **judged), rel=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_the_solved_temperature_beats_every_point_of_a_dense_grid(seed):
    x = random_inputs(seed + 71)
    eta, judged = solved(x, 0.1)
    at = lambda temperature: oracles.temperature_loss(temperature=temperature, epsilon=0.1, **judged)  # noqa: E731
    assert at(eta) <= min(at(point) for point in np.geomspace(1e-2, 1e3, 150)) + 1e-7


def test_the_solved_temperature_has_no_gradient_left_in_the_loss():
    x = random_inputs(74)
    x.temperature, _ = solved(x, x.epsilon_temperature)
    assert abs(run(x).temperature.item()) < 1e-3 * x.epsilon_temperature + 1e-5


def test_the_solved_temperature_ignores_an_offset_and_follows_a_scale():
    x = random_inputs(75)
    x.advantages = (x.advantages * 64).round() / 64
    chosen = selection(x)
    plain = solve_temperature(centre(x.advantages, chosen), 0.1).item()
    assert solve_temperature(centre(x.advantages + 1e4, chosen), 0.1).item() == pytest.approx(plain, rel=1e-3)
    assert solve_temperature(centre(x.advantages * 512.0, chosen), 0.1).item() == pytest.approx(512.0 * plain, rel=1e-3)


def test_the_solved_temperature_weighs_samples_by_importance():
    """Weights near 1: with mean rho <= exp(-eps) the loss of Appendix E falls for ever and has no minimiser."""
    x = random_inputs(76, weighted=True)
    x.importance_weights = 0.97 + 0.03 * x.importance_weights
    eta, judged = solved(x, 0.1)
    assert oracles.temperature_gradient(temperature=eta, epsilon=0.1, **judged) == pytest.approx(0.0, abs=1e-4)
    assert eta == pytest.approx(oracles.solve_temperature(epsilon=0.1, **judged), rel=1e-3)


def test_small_importance_weights_leave_the_solved_temperature_finite():
    x = random_inputs(77, weighted=True)
    eta, _ = solved(x, 0.01)
    assert math.isfinite(eta)
    assert eta > 0


@pytest.mark.parametrize("case", ["ties", "bound out of reach", "one sample", "no sample"])
def test_the_solved_temperature_stays_positive_and_finite_without_a_stationary_point(case):
    """Then L_eta rises all the way from its infimum, max A, at eta -> 0."""
    x = random_inputs(78)
    epsilon = 0.1
    if case == "ties":
        x.advantages = torch.full_like(x.advantages, 3.0)
    if case == "bound out of reach":
        epsilon = 10.0
    if case in ("one sample", "no sample"):
        x.valid = torch.zeros_like(x.valid)
        x.valid[0, : 2 if case == "one sample" else 1] = True
    eta, judged = solved(x, epsilon)
    assert math.isfinite(eta)
    assert eta > 0
    if case != "no sample":
        best = oracles.as_array(x.advantages)[judged["selected"]].max()
        assert oracles.temperature_loss(temperature=eta, epsilon=epsilon, **judged) == pytest.approx(best, abs=1e-3)


def test_the_solved_temperature_meets_the_bound_beside_a_sample_that_is_far_below_all_others():
    """A fall among thousands of ordinary steps: the temperature is that of the others, a millionth of the range."""
    advantages = torch.randn(16, 16, generator=torch.Generator().manual_seed(80))
    advantages[0, 0] = -3e6
    everything = torch.ones_like(advantages, dtype=torch.bool)
    eta = solve_temperature(centre(advantages, everything), 0.1).item()
    kl = oracles.e_step_kl(advantages=oracles.as_array(advantages), selected=everything.numpy(), temperature=eta)
    assert kl == pytest.approx(0.1, rel=1e-3)


def test_the_solved_temperature_carries_no_gradient():
    x = random_inputs(79)
    advantages = x.advantages.clone().requires_grad_()
    assert not solve_temperature(centre(advantages, selection(x)), 0.1).requires_grad


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("power", [1, 3, 5])
def test_more_iterations_do_not_leave_the_solution(power, epsilon):
    """Rounding at the root must not send the next step away from it."""
    advantages = torch.randn(8, 40, generator=torch.Generator().manual_seed(power)).double() ** power
    selected = advantages > advantages.median()
    solutions = [solve_temperature(centre(advantages, selected), epsilon, iterations=n).item() for n in range(10, 40)]
    assert solutions == pytest.approx([solutions[0]] * len(solutions), rel=1e-9)
