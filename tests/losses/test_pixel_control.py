"""Pixel control: rewards and loss against slow NumPy, who learns, and the shapes of the head."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vmpo.errors import UserError
from vmpo.losses.pixel_control import pixel_control_loss, pixel_rewards
from vmpo.networks.pixel_control import PixelControlHead
from vmpo.records import ActionSpec, ArraySpec, ContinuousActions, DiscreteActions, EnvSpec

T, B, A, H, W = 6, 3, 4, 9, 14
"""The frame leaves a margin of 1 row and 2 columns around its 2 x 3 cells."""


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def data(seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    valid = torch.rand(T, B, generator=g) < 0.7
    valid[:, 0] = True
    return {
        "actions": torch.randint(0, A, (T, B), generator=g),
        "discounts": 0.9 * (torch.rand(T, B, generator=g) < 0.8).float(),
        "valid": valid,
        "q_values": torch.randn(T + 1, B, A, 2, 3, generator=g, requires_grad=True),
        "frames": torch.randint(0, 256, (T + 1, B, 2, H, W), dtype=torch.uint8, generator=g),
    }


def slow_rewards(frames: np.ndarray) -> np.ndarray:
    top, left = H % 4 // 2, W % 4 // 2
    rewards = np.zeros((T, B, H // 4, W // 4))
    for t, b, i, j in np.ndindex(rewards.shape):
        rows, columns = slice(top + 4 * i, top + 4 * i + 4), slice(left + 4 * j, left + 4 * j + 4)
        now, then = (frames[s, b, :, rows, columns].astype(float) / 255 for s in (t + 1, t))
        rewards[t, b, i, j] = np.abs(now - then).mean()
    return rewards


def slow_loss(actions, discounts, valid, q_values, frames) -> float:
    rewards = slow_rewards(frames)
    total, count = 0.0, 0
    for t, b in np.ndindex(T, B):
        if not valid[t, b]:
            continue
        count += 1
        for i, j in np.ndindex(rewards.shape[2:]):
            target, discount, s = 0.0, 1.0, t
            while s < T and valid[s, b]:
                target += discount * rewards[s, b, i, j]
                discount *= discounts[s, b]
                s += 1
            target += discount * q_values[s, b, :, i, j].max()
            total += 0.5 * (q_values[t, b, actions[t, b], i, j] - target) ** 2
    return total / count


def test_rewards_are_the_mean_absolute_change_of_each_cell():
    frames = data()["frames"]
    np.testing.assert_allclose(pixel_rewards(frames).numpy(), slow_rewards(frames.numpy()), rtol=1e-5)


def test_rewards_lie_between_0_for_no_change_and_1_for_black_to_white():
    frames = torch.zeros(3, 1, 1, 8, 8, dtype=torch.uint8)
    frames[1] = 255
    frames[2] = 255
    assert pixel_rewards(frames).flatten(1).tolist() == [[1.0] * 4, [0.0] * 4]
    assert pixel_rewards(frames.flip(0)).flatten(1).tolist() == [[0.0] * 4, [1.0] * 4]


@pytest.mark.parametrize("seed", range(3))
def test_loss_equals_the_slow_transcription(seed):
    given = data(seed)
    expected = slow_loss(**{name: value.detach().numpy() for name, value in given.items()})
    assert pixel_control_loss(**given).item() == pytest.approx(expected, rel=1e-5)


def test_only_the_taken_actions_of_valid_transitions_learn():
    given = data()
    pixel_control_loss(**given).backward()
    gradient = given["q_values"].grad
    assert gradient is not None
    expected = torch.zeros(T + 1, B, A, dtype=torch.bool)
    expected[:-1].scatter_(2, given["actions"][..., None], given["valid"][..., None])
    assert torch.equal(gradient.abs().sum(dim=(3, 4)) > 0, expected)


def test_loss_without_valid_transitions_is_zero():
    given = {**data(), "valid": torch.zeros(T, B, dtype=torch.bool)}
    loss = pixel_control_loss(**given)
    loss.backward()
    assert loss == 0.0
    assert not given["q_values"].grad.any()


FIVE = DiscreteActions(sizes=(5,))


def spec(height: int, width: int, action: ActionSpec = FIVE, layout: str = "CHW") -> EnvSpec:
    shape = (3, height, width) if layout == "CHW" else (height, width, 3)
    image = ArraySpec(shape=shape, dtype=np.dtype(np.uint8), kind="pixels", layout=layout)  # type: ignore[arg-type]
    return EnvSpec(observation={"image": image}, action=action, tasks=("task",))


@pytest.mark.parametrize("size", [(72, 96), (84, 84), (4, 8), (21, 13)])
def test_head_has_one_value_per_action_and_cell(size):
    head = PixelControlHead(7, spec(*size))
    q_values = head(torch.randn(2, 3, 7))
    assert q_values.shape == (2, 3, 5, size[0] // 4, size[1] // 4)
    frames = torch.zeros(2, 1, 3, *size, dtype=torch.uint8)
    assert pixel_rewards(frames).shape[2:] == q_values.shape[3:]
    assert q_values.flatten(3).std(dim=2).min() > 0


def test_head_splits_q_into_a_value_and_advantages_of_mean_zero():
    head = PixelControlHead(7, spec(24, 24))
    features = torch.randn(2, 7)
    before = head(features)
    torch.nn.init.constant_(head.advantage.bias, 3.0)
    torch.testing.assert_close(head(features), before)
    torch.nn.init.constant_(head.value.bias, 3.0)
    torch.testing.assert_close(head(features), before + 3.0)


def test_head_gives_frames_with_channels_first():
    head = PixelControlHead(7, spec(8, 12, layout="HWC"))
    frames = torch.randint(0, 256, (2, 1, 8, 12, 3), dtype=torch.uint8)
    assert head.cells == (2, 3)
    assert torch.equal(head.frames({"image": frames}), frames.permute(0, 1, 4, 2, 3))


@pytest.mark.parametrize("action", [DiscreteActions(sizes=(3, 2)), ContinuousActions(low=-np.ones(2), high=np.ones(2))])
def test_head_refuses_actions_other_than_one_choice(action):
    with pytest.raises(UserError, match="one discrete action"):
        PixelControlHead(7, spec(24, 24, action))


def test_head_refuses_environments_without_large_enough_pixels():
    with pytest.raises(UserError, match="at least 4x4, not 3x24"):
        PixelControlHead(7, spec(3, 24))
    joints = ArraySpec(shape=(4,), dtype=np.dtype(np.float32), kind="vector")
    with pytest.raises(UserError, match="needs an observation of pixels"):
        PixelControlHead(7, EnvSpec(observation={"joints": joints}, action=DiscreteActions(sizes=(2,)), tasks=("t",)))
