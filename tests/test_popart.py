"""PopArt statistics against their recursion, and the preservation of unnormalised outputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import oracles
import pytest
import torch
from torch import nn

from vmpo.popart import PopArtStatistics, denormalise, initial_statistics, normalise, rescale_, updated


def statistics(mean: list[float], scales: list[float]) -> PopArtStatistics:
    mean_, scales_ = torch.tensor(mean, dtype=torch.float64), torch.tensor(scales, dtype=torch.float64)
    return PopArtStatistics(mean=mean_, second_moment=scales_**2 + mean_**2)


def random_targets(seed: int, num_tasks: int, length: int = 6, batch: int = 7) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    tasks = torch.randint(num_tasks, (length, batch), generator=g)
    valid = torch.rand(length, batch, generator=g) > 0.3
    targets = torch.randn(length, batch, generator=g) * 10.0**tasks + 3.0 * tasks
    return targets, tasks, valid


def moments(s: PopArtStatistics) -> tuple[np.ndarray, np.ndarray]:
    return oracles.as_array(s.mean), oracles.as_array(s.second_moment)


# Oracle.


def test_initial_statistics_are_those_of_a_standardised_target():
    s = initial_statistics(3)
    assert s.mean.dtype == s.second_moment.dtype == torch.float64
    assert s.mean.tolist() == [0.0, 0.0, 0.0]
    assert s.second_moment.tolist() == [1.0, 1.0, 1.0]
    assert s.scale.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("rate", [1e-4, 0.1, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_one_step_moves_each_task_towards_the_moments_of_its_own_valid_targets(seed, rate):
    s = statistics([0.5, -2.0, 30.0], [1.0, 4.0, 0.3])
    targets, tasks, valid = random_targets(seed, num_tasks=3)
    result = updated(s, targets, tasks, valid, rate=rate)
    mean, second = oracles.popart_updated(*moments(s), *map(oracles.as_array, (targets, tasks, valid)), rate)
    np.testing.assert_allclose(oracles.as_array(result.mean), mean, rtol=1e-6)
    np.testing.assert_allclose(oracles.as_array(result.second_moment), second, rtol=1e-6)
    assert result.mean.dtype == result.second_moment.dtype == torch.float64


def test_scale_is_the_clipped_standard_deviation():
    s = statistics([0.0, 5.0, -3.0, 0.0, 0.0], [1.0, 2.0, 1e-5, 1e9, 0.0])
    np.testing.assert_allclose(oracles.as_array(s.scale), [1.0, 2.0, 1e-2, 1e6, 1e-2], rtol=1e-9)
    np.testing.assert_allclose(oracles.as_array(s.scale), oracles.popart_scale(*moments(s)), rtol=1e-9)
    clipped = replace(s, bounds=(1.5, 1.8)).scale
    np.testing.assert_allclose(oracles.as_array(clipped), [1.5, 1.8, 1.5, 1.8, 1.5], rtol=1e-9)


def test_scale_takes_a_variance_below_zero_for_zero():
    mean = torch.tensor([1e5], dtype=torch.float64)
    s = PopArtStatistics(mean=mean, second_moment=mean**2 * (1 - 1e-12))
    np.testing.assert_allclose(s.scale.tolist(), [1e-2], rtol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_normalise_uses_the_statistics_of_each_samples_task(seed):
    s = statistics([0.5, -2.0, 300.0], [1.0, 4e3, 1e-4])
    targets, tasks, _ = random_targets(seed, num_tasks=3)
    result = normalise(targets, tasks, s)
    expected = oracles.popart_normalised(*map(oracles.as_array, (targets, tasks)), *moments(s))
    assert result.dtype == torch.float32
    np.testing.assert_allclose(oracles.as_array(result), expected, rtol=1e-5, atol=1e-5)


# Invariants.


def test_denormalise_undoes_normalise():
    s = statistics([0.5, -2.0, 300.0], [1.0, 4e3, 0.3])
    targets, tasks, _ = random_targets(3, num_tasks=3)
    result = denormalise(normalise(targets, tasks, s), tasks, s)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, targets, rtol=1e-5, atol=1e-3)


def test_a_larger_batch_does_not_move_the_statistics_faster():
    s = initial_statistics(2)
    targets, tasks, valid = random_targets(4, num_tasks=2)
    once = updated(s, targets, tasks, valid, rate=0.1)
    repeated = updated(s, targets.repeat(8, 3), tasks.repeat(8, 3), valid.repeat(8, 3), rate=0.1)
    torch.testing.assert_close(once.mean, repeated.mean, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(once.second_moment, repeated.second_moment, rtol=1e-6, atol=1e-9)


def test_one_step_never_overshoots_the_batch():
    s = initial_statistics(1)
    targets = torch.full((50, 40), 7.0)
    result = updated(s, targets, torch.zeros(50, 40, dtype=torch.int64), torch.ones(50, 40, dtype=torch.bool), rate=0.1)
    torch.testing.assert_close(result.mean, torch.tensor([0.7], dtype=torch.float64))
    torch.testing.assert_close(result.second_moment, torch.tensor([0.9 + 4.9], dtype=torch.float64))


def test_a_rare_task_moves_as_fast_as_a_common_one():
    targets = torch.full((10, 10), 4.0)
    tasks = torch.zeros(10, 10, dtype=torch.int64)
    tasks[0, 0] = 1
    result = updated(initial_statistics(2), targets, tasks, torch.ones(10, 10, dtype=torch.bool), rate=0.25)
    torch.testing.assert_close(result.mean, torch.tensor([1.0, 1.0], dtype=torch.float64))


def test_absent_tasks_keep_their_statistics():
    s = statistics([0.5, -2.0, 30.0], [1.0, 4.0, 0.3])
    targets, _, valid = random_targets(5, num_tasks=3)
    tasks = torch.ones_like(targets, dtype=torch.int64)
    tasks[2, 3], valid[2, 3] = 2, False  # Task 2 is there, but not with a valid target.
    result = updated(s, targets, tasks, valid, rate=0.1)
    for n in (0, 2):
        assert result.mean[n] == s.mean[n]
        assert result.second_moment[n] == s.second_moment[n]
    assert result.mean[1] != s.mean[1]


@pytest.mark.parametrize("garbage", [1e18, float("inf"), float("nan")])
def test_invalid_targets_do_not_count(garbage):
    s = statistics([0.5, -2.0], [1.0, 4.0])
    targets, tasks, valid = random_targets(6, num_tasks=2)
    expected = updated(s, targets, tasks, valid, rate=0.1)
    result = updated(s, torch.where(valid, targets, garbage), tasks, valid, rate=0.1)
    torch.testing.assert_close(result.mean, expected.mean)
    torch.testing.assert_close(result.second_moment, expected.second_moment)


def test_a_batch_without_valid_targets_changes_nothing():
    s = statistics([0.5, -2.0], [1.0, 4.0])
    targets, tasks, valid = random_targets(7, num_tasks=2)
    result = updated(s, targets, tasks, torch.zeros_like(valid), rate=0.1)
    assert torch.equal(result.mean, s.mean)
    assert torch.equal(result.second_moment, s.second_moment)


def test_updating_leaves_the_old_statistics_alone():
    s = statistics([0.5, -2.0], [1.0, 4.0])
    copy = PopArtStatistics(mean=s.mean.clone(), second_moment=s.second_moment.clone())
    targets, tasks, valid = random_targets(8, num_tasks=2)
    updated(s, targets, tasks, valid, rate=0.1)
    assert torch.equal(s.mean, copy.mean)
    assert torch.equal(s.second_moment, copy.second_moment)


def test_a_small_spread_around_a_large_mean_is_kept():
    """Float32 moments of 1e4 +- 1 would lose the variance in second moment minus squared mean."""
    g = torch.Generator().manual_seed(9)
    s = statistics([1e4], [1.0])
    tasks, valid = torch.zeros(20, 20, dtype=torch.int64), torch.ones(20, 20, dtype=torch.bool)
    for _ in range(100):
        s = updated(s, 1e4 + torch.randn(20, 20, generator=g), tasks, valid, rate=0.01)
    assert s.scale.item() == pytest.approx(1.0, rel=0.05)
    two_values = 1e4 + torch.ones(20, 20) * torch.tensor([-1.0, 1.0]).repeat(10)
    assert updated(s, two_values, tasks, valid, rate=1.0).scale.item() == pytest.approx(1.0, rel=1e-6)


def test_one_step_at_the_papers_rate_is_seen_by_large_statistics():
    """A float32 mean would swallow a step of 1e-4 times a small difference."""
    s = statistics([1e5], [1.0])
    ones = torch.ones(4, 4, dtype=torch.bool)
    result = updated(s, torch.full((4, 4), 1e5 + 1.0), torch.zeros(4, 4, dtype=torch.int64), ones, rate=1e-4)
    assert (result.mean - s.mean).item() == pytest.approx(1e-4, rel=1e-3)


def preserved_error(old: PopArtStatistics, new: PopArtStatistics, seed: int = 0) -> torch.Tensor:
    """Change of sigma * readout(x) + mean per task, over the largest magnitude that entered it, in float64."""
    torch.manual_seed(seed)
    num_tasks = len(old.mean)
    readout, x = nn.Linear(16, num_tasks), torch.randn(64, 16)

    def outputs(s: PopArtStatistics) -> torch.Tensor:
        return readout(x).double() * s.scale + s.mean

    with torch.no_grad():
        before = outputs(old)
        rescale_(readout, old, new)
        after = outputs(new)
    magnitude = torch.maximum(before.abs().amax(0), torch.maximum(old.mean.abs(), new.mean.abs()))
    return (after - before).abs().amax(0) / magnitude


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (([0.0], [1.0]), ([0.0], [1e-2])),
        (([0.0], [1.0]), ([0.0], [1e6])),
        (([0.0], [1e-2]), ([0.0], [1e6])),
        (([0.0], [1e6]), ([0.0], [1e-2])),
        (([0.0], [1e-9]), ([0.0], [1e9])),
        (([3.0], [1e-2]), ([-7.0], [1e6])),
        (([-2e5], [1e6]), ([4e5], [2e5])),
        (([0.0, 1.0, -5e3], [1.0, 0.1, 1e3]), ([0.3, 0.9, -7e3], [2.0, 1e-3, 3e3])),
    ],
)
def test_rescaling_preserves_every_tasks_unnormalised_outputs(old, new):
    assert preserved_error(statistics(*old), statistics(*new)).max() < 1e-5


def test_rescaling_uses_the_clip_that_it_is_given():
    old, new = (replace(s, bounds=(0.5, 20.0)) for s in (statistics([0.0], [0.1]), statistics([1.0], [50.0])))
    assert preserved_error(old, new).max() < 1e-5


def test_outputs_survive_a_thousand_statistics_steps():
    torch.manual_seed(10)
    s = initial_statistics(2)
    readout, x = nn.Linear(8, 2), torch.randn(32, 8)
    with torch.no_grad():
        before = readout(x).double() * s.scale + s.mean
        for step in range(1000):
            targets, tasks, valid = random_targets(step, num_tasks=2)
            new = updated(s, 100.0 * targets, tasks, valid, rate=1e-2)
            rescale_(readout, s, new)
            s = new
        after = readout(x).double() * s.scale + s.mean
    assert s.scale.min() > 10.0  # The statistics did move.
    assert (after - before).abs().max() < 1e-5 * s.scale.max() + 1e-3


def test_rescaling_gives_the_weights_of_the_formula():
    torch.manual_seed(11)
    old, new = statistics([1.0, -2.0], [2.0, 0.5]), statistics([4.0, 3.0], [5.0, 0.1])
    readout = nn.Linear(3, 2)
    weight, bias = readout.weight.detach().clone().double(), readout.bias.detach().clone().double()
    identity, parameters = readout.weight.data_ptr(), {id(p) for p in readout.parameters()}
    rescale_(readout, old, new)
    ratio = torch.tensor([2.0 / 5.0, 0.5 / 0.1], dtype=torch.float64)
    torch.testing.assert_close(readout.weight.detach().double(), ratio[:, None] * weight, rtol=1e-6, atol=1e-7)
    shift = torch.tensor([(1.0 - 4.0) / 5.0, (-2.0 - 3.0) / 0.1], dtype=torch.float64)
    torch.testing.assert_close(readout.bias.detach().double(), ratio * bias + shift, rtol=1e-6, atol=1e-7)
    assert readout.weight.data_ptr() == identity  # In place: the optimiser keeps hold of the same tensors.
    assert {id(p) for p in readout.parameters()} == parameters
    assert readout.weight.requires_grad
    assert readout.weight.dtype == torch.float32


def test_unchanged_statistics_leave_the_readout_bitwise_equal():
    torch.manual_seed(12)
    s = statistics([0.1, 77.7], [0.3, 13.7])
    readout = nn.Linear(4, 2)
    weight, bias = readout.weight.detach().clone(), readout.bias.detach().clone()
    rescale_(readout, s, s)
    assert torch.equal(readout.weight, weight)
    torch.testing.assert_close(readout.bias.detach(), bias, rtol=1e-6, atol=1e-6)


# Gradient.


def test_gradients_pass_through_denormalise_with_the_scale_of_the_task():
    s = statistics([1.0, -2.0], [2.0, 0.5])
    x = torch.zeros(1, 2, requires_grad=True)
    denormalise(x, torch.tensor([[1, 0]]), s).sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([[0.5, 2.0]]))
