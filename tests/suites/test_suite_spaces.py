"""Every Gymnasium space must become the right named arrays, and actions must reach the space as its own elements."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import probes
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from vmpo.errors import UserError
from vmpo.records import ContinuousActions, DiscreteActions
from vmpo.suites.gymnasium import GymnasiumEnv
from vmpo.suites.words import hash_words


def single(env: gymnasium.Env) -> GymnasiumEnv:
    return GymnasiumEnv(SyncVectorEnv([lambda: env]), "probe")


def test_nested_observations_become_named_arrays() -> None:
    env = GymnasiumEnv(SyncVectorEnv([probes.Nested, probes.Nested]), "probe")
    shapes = {name: (spec.kind, spec.shape) for name, spec in env.spec.observation.items()}
    assert shapes == {
        "camera": ("pixels", (6, 8, 3)),
        "body.gear": ("vector", (4,)),
        "body.touch": ("vector", (3,)),
        "hands.0": ("vector", (5,)),
        "hands.1": ("vector", (4,)),
        "mission": ("text", (20,)),
    }
    start = {name: array.copy() for name, array in env.reset(0).observation.items()}
    step = env.step(np.zeros((2, 1), np.int64)).observation
    for name, array in step.items():
        assert array.shape == (2, *env.spec.observation[name].shape)
        assert array.dtype == env.spec.observation[name].dtype
    assert (step["camera"] == 7).all()
    assert start["body.gear"][0].tolist() == [1, 0, 0, 0]
    assert step["body.gear"][1].tolist() == [0, 1, 0, 0]
    assert step["body.touch"][0].tolist() == [1, 0, 1]
    assert step["hands.0"][0].tolist() == [0, 1, 0, 0, 1]
    np.testing.assert_array_equal(step["hands.1"][1], np.float32([0.1, -0.2, 0.3, 1.0]))
    assert step["mission"][0].tolist() == hash_words("go there", length=20).tolist()
    assert start["mission"][0].tolist() == hash_words("wait", length=20).tolist()


@pytest.mark.parametrize(
    ("shape", "expected", "layout"),
    [
        ((5, 7), (1, 5, 7), "CHW"),
        ((4, 8, 8), (4, 8, 8), "CHW"),
        ((8, 8, 3), (8, 8, 3), "HWC"),
        ((3, 3, 3), (3, 3, 3), "HWC"),
    ],
)
def test_images_stay_as_they_are_and_say_where_their_channels_are(
    shape: tuple[int, ...], expected: tuple[int, ...], layout: str
) -> None:
    image = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    env = single(probes.Observing(spaces.Box(0, 255, shape, np.uint8), image))
    spec = env.spec.observation["observation"]
    assert (spec.kind, spec.shape, spec.layout) == ("pixels", expected, layout)
    seen = env.reset(0).observation["observation"]
    assert seen.dtype == np.uint8
    assert seen.tobytes() == image.tobytes()


def test_a_text_observation_becomes_stable_codes() -> None:
    env = single(probes.Observing(spaces.Text(9), "Red red"))
    codes = env.reset(0).observation["observation"]
    assert env.spec.observation["observation"].kind == "text"
    assert codes.tolist() == [[codes[0, 0], codes[0, 0], 0, 0, 0]]
    assert hash_words("123456789", length=2).tolist() == [0xCBF43926 % 1000 + 1, 0], "the check value of CRC-32"


@pytest.mark.parametrize(
    "space",
    [
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Graph(spaces.Discrete(2), None),
        spaces.Box(0, 255, (4, 8, 8, 3), np.uint8),
    ],
)
def test_unsupported_observations_are_named_with_what_is_supported(space: spaces.Space) -> None:
    nested = spaces.Dict({"strange": space})
    with pytest.raises(UserError, match=r"'strange'.*not supported; supported: Box, Discrete"):
        single(probes.Observing(nested, None))


@pytest.mark.parametrize(
    "space", [spaces.Tuple((spaces.Discrete(2),)), spaces.Box(0, 9, (1,), np.int64), spaces.Text(3)]
)
def test_unsupported_actions_are_named_with_what_is_supported(space: spaces.Space) -> None:
    with pytest.raises(UserError, match="not supported; supported: Discrete"):
        single(probes.Recording(space, []))


@pytest.mark.parametrize(
    ("space", "sizes", "given", "executed"),
    [
        (spaces.Discrete(3, start=5), (3,), [2], 7),
        (spaces.MultiDiscrete([2, 4], start=[0, 10]), (2, 4), [1, 3], [1, 13]),
        (spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])), (2, 3, 4, 5), [1, 2, 3, 4], [[1, 2], [3, 4]]),
        (spaces.MultiBinary(3), (2, 2, 2), [1, 0, 1], [1, 0, 1]),
    ],
)
def test_discrete_actions_reach_the_environment_in_its_own_terms(
    space: spaces.Space, sizes: tuple[int, ...], given: list[int], executed: Any
) -> None:
    record: list[Any] = []
    env = single(probes.Recording(space, record))
    assert env.spec.action == DiscreteActions(sizes=sizes)
    env.reset(0)
    env.step(np.array([given]))
    assert np.asarray(record[0]).tolist() == executed


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_continuous_actions_are_scaled_to_the_bounds_and_never_beyond(dtype: type) -> None:
    low, high = np.array([[-0.4, 0.1], [-np.inf, 0.0]], dtype), np.array([[0.4, 0.3], [np.inf, 5.0]], dtype)
    record: list[np.ndarray] = []
    env = single(probes.Recording(spaces.Box(low, high, dtype=dtype), record))
    assert isinstance(env.spec.action, ContinuousActions)
    env.reset(0)
    for raw in ([3.0, 1.0, 7.0, 0.0], [-3.0, -1.0, 7.0, 0.0]):
        env.step(env.spec.action.executable(np.array([raw], np.float32)))
    np.testing.assert_allclose(record[0], [[0.4, 0.3], [7.0, 2.5]], rtol=1e-6)
    np.testing.assert_allclose(record[1], [[-0.4, 0.1], [7.0, 2.5]], rtol=1e-6)
    assert record[0].dtype == dtype


HASHES = [775, 757, 79, 456, 380, 0, 0, 0]
"""CRC-32 modulo 1000, plus one, of: go to the red ball."""


def test_word_codes_are_the_same_everywhere():
    assert hash_words("Go to the Red ball", 8).tolist() == HASHES
    assert hash_words("go TO the red  ball", 3).tolist() == HASHES[:3]
    assert hash_words("", 2).tolist() == [0, 0]
    codes = hash_words(" ".join(str(i) for i in range(10_000)), 10_000)
    assert codes.dtype == np.int64
    assert set(codes) == set(range(1, 1001)), "every bucket, and no other number"
