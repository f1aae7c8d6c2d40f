"""Statistics of observations against NumPy, and what the encoders make of vectors and images with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vmpo.networks.normalisers import ImageNormaliser, RunningStatistics, VectorNormaliser


def see(normaliser: RunningStatistics, rows: torch.Tensor, valid: torch.Tensor) -> None:
    """As unrolls of one environment."""
    normaliser.merge(normaliser.moments(rows[:, None], valid[:, None]))


def test_normaliser_equals_numpy_after_commit_and_is_unchanged_before():
    rng = np.random.default_rng(0)
    rows = rng.normal(5.0, 3.0, (60, 4)).astype(np.float32)
    valid = rng.random(60) < 0.7
    rows[~valid] = np.nan
    normaliser = VectorNormaliser(4)
    x = torch.randn(3, 4)
    for part in (slice(0, 7), slice(7, 8), slice(8, 60)):
        see(normaliser, torch.from_numpy(rows[part]), torch.from_numpy(valid[part]))
    see(normaliser, torch.full((2, 4), np.nan), torch.tensor([False, False]))
    assert torch.equal(normaliser(x), x)
    normaliser.commit()
    kept = rows[valid].astype(np.float64)
    np.testing.assert_allclose(normaliser.mean.numpy(), kept.mean(0), rtol=1e-12)
    np.testing.assert_allclose(normaliser.var.numpy(), kept.var(0), rtol=1e-12)
    assert normaliser.count == valid.sum()
    expected = (x.numpy() - kept.mean(0)) / np.sqrt(kept.var(0) + 1e-8)
    np.testing.assert_allclose(normaliser(x).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_normaliser_clips_and_an_empty_one_stays_the_identity_after_commit():
    normaliser = VectorNormaliser(1)
    normaliser.commit()
    assert normaliser(torch.tensor([[-50.0], [0.3], [50.0]])).flatten().tolist() == pytest.approx([-10.0, 0.3, 10.0])


def test_normaliser_continues_from_its_state_dict():
    one, other = VectorNormaliser(2), VectorNormaliser(2)
    everything = torch.ones(5, dtype=torch.bool)
    see(one, torch.randn(5, 2), everything)
    other.load_state_dict(one.state_dict())
    more = torch.randn(5, 2)
    for normaliser in (one, other):
        see(normaliser, more, everything)
        normaliser.commit()
    assert torch.equal(one.mean, other.mean)
    assert torch.equal(one.var, other.var)
    assert one.count == other.count == 10


def test_images_are_centred_pixel_by_pixel_and_scaled_all_alike():
    rng = np.random.default_rng(0)
    # Pixels of different means, some of which never change.
    pictures = rng.integers(0, 60, (20000, 2, 3, 4)) * rng.integers(0, 2, (2, 3, 4)) + rng.integers(0, 190, (2, 3, 4))
    pictures = pictures.astype(np.uint8)
    valid = rng.random(20000) < 0.7
    normaliser = ImageNormaliser(2, 3, 4)
    see(normaliser, torch.from_numpy(pictures[:200]), torch.from_numpy(valid[:200]))
    see(normaliser, torch.from_numpy(pictures[200:]), torch.from_numpy(valid[200:]))
    normaliser.commit()
    sample = np.concatenate([np.arange(0, 200, ImageNormaliser.SAMPLE), np.arange(200, 20000, ImageNormaliser.SAMPLE)])
    kept = pictures[sample[valid[sample]]].astype(np.float64)
    assert normaliser.count == len(kept)
    np.testing.assert_allclose(normaliser.mean.numpy(), kept.mean(0), rtol=1e-12)
    variance = (len(kept) * kept.var(0) + 255.0**2) / (len(kept) + 1)
    np.testing.assert_allclose(normaliser.var.numpy(), variance, rtol=1e-9)
    expected = (pictures - kept.mean(0)) / np.sqrt(variance.mean() + 1.0)
    actual = normaliser(torch.from_numpy(pictures.astype(np.float32))).numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    assert 0.5 < actual.std() < 2.0


def test_which_images_are_counted_does_not_depend_on_how_a_batch_is_divided():
    normaliser = ImageNormaliser(1, 2, 2)
    pictures = torch.randint(0, 256, (40, 6, 1, 2, 2), dtype=torch.uint8)
    valid = torch.rand(40, 6) < 0.8
    halves = ImageNormaliser(1, 2, 2)
    normaliser.merge(normaliser.moments(pictures, valid))
    for half in (slice(0, 3), slice(3, 6)):
        halves.merge(halves.moments(pictures[:, half], valid[:, half]))
    assert halves.pending_count == normaliser.pending_count == valid[:: ImageNormaliser.SAMPLE].sum()
    torch.testing.assert_close(halves.pending_mean, normaliser.pending_mean)
    torch.testing.assert_close(halves.pending_squares, normaliser.pending_squares)


def test_a_still_picture_does_not_blow_up_what_moves_after_it():
    normaliser = ImageNormaliser(1, 2, 2)
    picture = torch.full((ImageNormaliser.SAMPLE * 100, 1, 2, 2), 87, dtype=torch.uint8)
    see(normaliser, picture, torch.ones(len(picture), dtype=torch.bool))
    normaliser.commit()
    assert 5.0 < normaliser(torch.full((1, 1, 2, 2), 255.0)).max() < 10.0


def test_images_without_statistics_are_divided_by_255():
    normaliser = ImageNormaliser(1, 2, 2)
    picture = torch.tensor([[[[0.0, 255.0], [51.0, 102.0]]]])
    expected = torch.tensor([[[[0.0, 1.0], [0.2, 0.4]]]])
    torch.testing.assert_close(normaliser(picture.clone()), expected, rtol=1e-4, atol=0.0)
    normaliser.commit()
    torch.testing.assert_close(normaliser(picture), expected, rtol=1e-4, atol=0.0)


def test_a_picture_that_never_changes_is_zero():
    normaliser = ImageNormaliser(1, 2, 2)
    picture = torch.full((30, 1, 2, 2), 87, dtype=torch.uint8)
    see(normaliser, picture, torch.ones(30, dtype=torch.bool))
    normaliser.commit()
    assert normaliser(picture.float()).abs().max() == 0.0
