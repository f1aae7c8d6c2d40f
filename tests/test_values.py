"""n-step returns, GAE and V-trace against the paper's sums, and against leaks across episode boundaries."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
import torch

from vmpo.values import gae_returns, n_step_returns, vtrace


def random_inputs(seed: int, length: int = 9, batch: int = 5, masked: bool = True) -> dict[str, torch.Tensor]:
    """Unrolls with terminations (discount 0), boundaries (valid False) and garbage on every boundary."""
    g = torch.Generator().manual_seed(seed)
    discounts = 0.97 * (torch.rand(length, batch, generator=g) > 0.15)
    valid = torch.rand(length, batch, generator=g) > (0.25 if masked else -1.0)
    rewards = torch.randn(length, batch, generator=g)
    return {
        "rewards": torch.where(valid, rewards, 1e6),
        "discounts": torch.where(valid, discounts, 1.0),
        "values": torch.randn(length, batch, generator=g),
        "bootstrap": torch.randn(batch, generator=g),
        "valid": valid,
    }


def random_log_ratios(seed: int, valid: torch.Tensor) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed + 1000)
    return torch.where(valid, torch.randn(valid.shape, generator=g), 50.0)


def arrays(inputs: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: oracles.as_array(x) for name, x in inputs.items()}


def assert_close(result: torch.Tensor, expected: np.ndarray) -> None:
    assert result.dtype == torch.float32
    np.testing.assert_allclose(oracles.as_array(result), expected, rtol=1e-5, atol=1e-5)


# Oracle.


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("masked", [False, True])
def test_n_step_returns_are_the_discounted_sums_of_section_4_1(seed, masked):
    inputs = random_inputs(seed, masked=masked)
    assert_close(n_step_returns(**inputs), oracles.n_step_returns(**arrays(inputs)))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("trace_decay", [0.0, 0.5, 0.95, 1.0])
def test_gae_returns_are_the_discounted_sums_of_td_errors(seed, trace_decay):
    inputs = random_inputs(seed)
    assert_close(
        gae_returns(**inputs, trace_decay=trace_decay), oracles.gae_returns(**arrays(inputs), trace_decay=trace_decay)
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"trace_decay": 0.9},
        {"trace_decay": 0.0},
        {"clip_rho": 2.0},
        {"clip_c": 0.5},
        {"clip_rho": 1.5, "clip_c": 0.8, "trace_decay": 0.7},
    ],
)
def test_vtrace_gives_the_targets_and_advantages_of_espeholt(seed, options):
    inputs = random_inputs(seed)
    log_ratios = random_log_ratios(seed, inputs["valid"])
    result = vtrace(**inputs, log_ratios=log_ratios, **options)
    returns, advantages = oracles.vtrace(**arrays(inputs), log_ratios=oracles.as_array(log_ratios), **options)
    assert_close(result.returns, returns)
    assert_close(result.advantages, advantages)


def test_n_step_returns_of_a_worked_example():
    column = lambda *xs: torch.tensor(xs)[:, None]  # noqa: E731
    rewards, discounts = column(1.0, 2.0, 4.0), column(0.5, 0.5, 0.5)
    returns = n_step_returns(rewards, discounts, torch.full((3, 1), 100.0), torch.tensor([8.0]))
    assert returns[:, 0].tolist() == [4.0, 6.0, 8.0]


def test_a_single_step_unroll_is_the_one_step_return():
    inputs = random_inputs(7, length=1, masked=False)
    expected = inputs["rewards"] + inputs["discounts"] * inputs["bootstrap"]
    torch.testing.assert_close(n_step_returns(**inputs), expected)
    torch.testing.assert_close(gae_returns(**inputs, trace_decay=0.3), expected)


# Invariants.


def test_gae_without_decay_equals_n_step_returns():
    inputs = random_inputs(11)
    torch.testing.assert_close(gae_returns(**inputs, trace_decay=1.0), n_step_returns(**inputs), rtol=1e-5, atol=1e-5)


def test_gae_with_full_decay_is_the_td_target():
    inputs = random_inputs(12)
    following = torch.cat([inputs["values"][1:], inputs["bootstrap"][None]])
    target = inputs["rewards"] + inputs["discounts"] * following
    expected = torch.where(inputs["valid"], target, inputs["values"])
    torch.testing.assert_close(gae_returns(**inputs, trace_decay=0.0), expected, rtol=1e-5, atol=1e-5)


def test_vtrace_on_policy_equals_n_step_returns():
    inputs = random_inputs(13)
    result = vtrace(**inputs, log_ratios=torch.zeros_like(inputs["rewards"]))
    expected = n_step_returns(**inputs)
    torch.testing.assert_close(result.returns, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(result.advantages, expected - inputs["values"], rtol=1e-5, atol=1e-5)


def test_vtrace_on_policy_with_decay_equals_gae_returns():
    inputs = random_inputs(14)
    result = vtrace(**inputs, log_ratios=torch.zeros_like(inputs["rewards"]), trace_decay=0.8)
    torch.testing.assert_close(result.returns, gae_returns(**inputs, trace_decay=0.8), rtol=1e-5, atol=1e-5)


def test_vtrace_advantages_are_not_multiplied_by_rho():
    inputs = random_inputs(15, masked=False)
    log_ratios = torch.full_like(inputs["rewards"], -20.0)
    result = vtrace(**inputs, log_ratios=log_ratios)
    following = torch.cat([inputs["values"][1:], inputs["bootstrap"][None]])
    td_error = inputs["rewards"] + inputs["discounts"] * following - inputs["values"]
    torch.testing.assert_close(result.advantages, td_error, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(result.returns, inputs["values"], rtol=1e-4, atol=1e-4)


def test_vtrace_survives_ratios_that_overflow():
    inputs = random_inputs(16)
    log_ratios = torch.where(torch.rand(inputs["rewards"].shape) > 0.5, 300.0, -300.0)
    result = vtrace(**inputs, log_ratios=log_ratios)
    returns, advantages = oracles.vtrace(**arrays(inputs), log_ratios=oracles.as_array(log_ratios))
    assert_close(result.returns, returns)
    assert_close(result.advantages, advantages)


ESTIMATORS = {
    "n_step": lambda inputs, log_ratios: n_step_returns(**inputs),
    "gae": lambda inputs, log_ratios: gae_returns(**inputs, trace_decay=0.9),
    "vtrace_returns": lambda inputs, log_ratios: vtrace(**inputs, log_ratios=log_ratios).returns,
    "vtrace_advantages": lambda inputs, log_ratios: vtrace(**inputs, log_ratios=log_ratios).advantages,
}


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_no_mask_means_that_every_step_is_valid(estimator):
    inputs = random_inputs(21, masked=False)
    log_ratios = random_log_ratios(21, inputs["valid"])
    unmasked = {name: x for name, x in inputs.items() if name != "valid"}
    torch.testing.assert_close(ESTIMATORS[estimator](inputs, log_ratios), ESTIMATORS[estimator](unmasked, log_ratios))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("boundary", ["reset", "termination"])
def test_nothing_beyond_an_episode_boundary_reaches_the_steps_before_it(estimator, boundary):
    """A truncation bootstraps from V of its own final observation; a termination from nothing at all."""
    cut = 4
    inputs = random_inputs(22, masked=False)
    log_ratios = random_log_ratios(22, inputs["valid"])
    inputs["discounts"] = torch.full_like(inputs["discounts"], 0.97)
    if boundary == "reset":
        inputs["valid"][cut] = False
        inputs["discounts"][cut] = 1.0
    else:
        inputs["discounts"][cut - 1] = 0.0
    before = ESTIMATORS[estimator](inputs, log_ratios)[:cut].clone()
    changed = {name: x.clone() for name, x in inputs.items()}
    changed["rewards"][cut:] += 100.0
    changed["discounts"][cut:] = 0.5
    changed["values"][cut + 1 :] -= 100.0
    if boundary == "termination":
        changed["values"][cut] -= 100.0
    changed["bootstrap"] += 100.0
    after = ESTIMATORS[estimator](changed, torch.cat([log_ratios[:cut], log_ratios[cut:] - 2.0]))[:cut]
    assert torch.equal(before, after)


@pytest.mark.parametrize("estimator", ["n_step", "gae", "vtrace_returns"])
def test_the_step_before_a_truncation_bootstraps_from_the_final_observation(estimator):
    inputs = random_inputs(23, length=4, masked=False)
    inputs["discounts"] = torch.full_like(inputs["discounts"], 0.9)
    inputs["valid"][2] = False
    returns = ESTIMATORS[estimator](inputs, torch.zeros_like(inputs["rewards"]))
    torch.testing.assert_close(returns[1], inputs["rewards"][1] + 0.9 * inputs["values"][2])


@pytest.mark.parametrize("estimator", ["n_step", "gae", "vtrace_returns"])
def test_the_target_of_an_invalid_step_is_its_own_value(estimator):
    inputs = random_inputs(24)
    returns = ESTIMATORS[estimator](inputs, random_log_ratios(24, inputs["valid"]))
    assert torch.equal(returns[~inputs["valid"]], inputs["values"][~inputs["valid"]])


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("garbage", [-1e6, float("inf"), float("nan")])
def test_garbage_on_invalid_steps_changes_nothing(estimator, garbage):
    inputs = random_inputs(25)
    log_ratios = random_log_ratios(25, inputs["valid"])
    expected = ESTIMATORS[estimator](inputs, log_ratios).clone()
    spoil = lambda x: torch.where(inputs["valid"], x, garbage)  # noqa: E731
    dirty = {**inputs, "rewards": spoil(inputs["rewards"]), "discounts": spoil(inputs["discounts"])}
    torch.testing.assert_close(ESTIMATORS[estimator](dirty, spoil(log_ratios)), expected)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_columns_do_not_influence_each_other(estimator):
    inputs = random_inputs(26)
    log_ratios = random_log_ratios(26, inputs["valid"])
    together = ESTIMATORS[estimator](inputs, log_ratios)
    for b in range(together.shape[1]):
        alone = ESTIMATORS[estimator]({name: x[..., b : b + 1] for name, x in inputs.items()}, log_ratios[:, b : b + 1])
        torch.testing.assert_close(alone[:, 0], together[:, b])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_inputs_stay_untouched(estimator):
    inputs = random_inputs(27)
    log_ratios = random_log_ratios(27, inputs["valid"])
    copies = {name: x.clone() for name, x in inputs.items()}
    ESTIMATORS[estimator](inputs, log_ratios)
    assert all(torch.equal(inputs[name], copies[name]) for name in inputs)
