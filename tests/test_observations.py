"""A loaded agent takes what its environment gives and returns what its ``step`` takes; wrong input is named."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import gymnasium
import numpy as np
import probes
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from samples import small_config

import vmpo
from vmpo import saved_spec, suites
from vmpo.config import EnvConfig
from vmpo.networks.agent import make_agent
from vmpo.observations import received
from vmpo.policy import Policy
from vmpo.records import EnvSpec, Weights
from vmpo.suites.spaces import action_spec, encoded, observation_spec


class Shop(probes.Counting):
    """Observes a shelf from 1 to 9 and a weight, and takes an action from 1 to 3; it refuses any other."""

    observation_space = spaces.Dict(
        {"bag": spaces.Box(-1.0, 1.0, (2,), np.float64), "shelf": spaces.Discrete(9, start=1)}
    )
    action_space = spaces.Discrete(3, start=1)

    def _observe(self):
        return {"bag": np.array([0.25, -0.5]), "shelf": np.int64(1 + self.steps % 9)}

    def step(self, action):
        assert self.action_space.contains(action), action
        return super().step(action)


if "Shop-v0" not in gymnasium.registry:
    gymnasium.register("Shop-v0", entry_point=Shop)

ACTIONS = [
    spaces.Discrete(3, start=5),
    spaces.MultiDiscrete([3]),
    spaces.MultiDiscrete([2, 4], start=[0, 10]),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    spaces.MultiBinary((2, 2)),
    spaces.Box(-0.4, 0.4, (2, 2), np.float64),
    spaces.Box(np.float32([0.1, -np.inf]), np.float32([0.3, 5.0])),
]


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    directory = tmp_path_factory.mktemp("shop") / "run"
    vmpo.train(small_config(env={"id": "Shop-v0"}), directory, quiet=True)
    return directory


def nested(action_space=None, num_envs=1):
    """A policy of random weights for one of everything, its environment, and several of them side by side."""
    env = probes.Nested()
    vector = SyncVectorEnv([probes.Nested] * num_envs)
    action = action_spec(env.action_space if action_space is None else action_space)
    spec = EnvSpec(observation=observation_spec(env.observation_space), action=action, tasks=("nested",))
    config = small_config(agent={"pixels": "resnet", "resnet_channels": (4,)})
    weights = Weights(version=0, tensors=make_agent(spec, config).state_dict())
    return Policy(spec, config, weights), env, vector


def test_a_loaded_agent_plays_its_environment_without_any_conversion(shop):
    policy, env = vmpo.load(shop), gymnasium.make("Shop-v0")
    observation, _ = env.reset(seed=0)
    state = None
    for _ in range(4):
        assert env.observation_space.contains(observation)
        action, state = policy.act(observation, state, greedy=False)
        assert env.action_space.contains(action)
        observation, *_ = env.step(action)


def test_it_acts_on_the_same_as_in_training(shop):
    """By the environment's own observations, by its vector environment's, and by the arrays that training makes."""
    policy, env = vmpo.load(shop), suites.make(EnvConfig(id="Shop-v0"), 3, 0)
    arrays = env.reset(0).observation
    env.close()
    assert {
        name: array.tolist() for name, array in received(policy.spec.observation, Shop().reset()[0]).arrays.items()
    } == {
        "bag": [[0.25, -0.5]],
        "shelf": [[1, 0, 0, 0, 0, 0, 0, 0, 0]],
    }
    batch = {"bag": np.tile([0.25, -0.5], (3, 1)), "shelf": np.ones(3, np.int64)}
    alone, _ = policy.act(Shop().reset()[0])
    assert policy.act(batch)[0].tolist() == policy.act(arrays)[0].tolist() == [alone] * 3
    assert alone in (1, 2, 3)


def test_no_environment_is_made_to_load_it(shop, monkeypatch):
    monkeypatch.setattr(suites, "make", lambda *_, **__: pytest.fail("an environment was made"))
    assert vmpo.load(shop).act(Shop().reset()[0])[0] in (1, 2, 3)


def test_a_run_that_saved_no_spec_asks_its_environment(shop, tmp_path):
    known = vmpo.load(shop).spec
    shutil.copytree(shop, tmp_path / "old")
    file = max((tmp_path / "old").glob("checkpoints/*/progress.json"))
    progress = json.loads(file.read_text())
    spec = progress.pop("spec")
    file.write_text(json.dumps(progress))
    assert repr(vmpo.load(tmp_path / "old").spec) == repr(known)
    file.write_text(json.dumps({**progress, "spec": {**spec, "action": {"sizes": 3}}}))
    with pytest.raises(vmpo.UserError, match="spec of the environment cannot be read"):
        vmpo.load(tmp_path / "old")


def test_everything_that_can_be_observed_is_taken_as_it_is_given():
    policy, env, vector = nested(num_envs=2)
    many = vector.reset(seed=0)[0]
    expected = encoded(policy.spec.observation, many)
    one = received(policy.spec.observation, env.reset(seed=0)[0])
    several = received(policy.spec.observation, many)
    by_name = received(policy.spec.observation, {name: array[0] for name, array in expected.items()})
    assert (one.single, several.single, by_name.single) == (True, False, True)
    for name, array in expected.items():
        np.testing.assert_array_equal(one.arrays[name], array[:1])
        np.testing.assert_array_equal(by_name.arrays[name], array[:1])
        np.testing.assert_array_equal(several.arrays[name], array)
        assert several.arrays[name].dtype == policy.spec.observation[name].dtype


@pytest.mark.parametrize("space", ACTIONS, ids=str)
def test_actions_are_elements_of_the_space_alone_and_in_a_batch(space):
    policy, env, vector = nested(space, num_envs=2)
    state = None
    for _ in range(5):
        action, state = policy.act(env.reset(seed=0)[0], state, greedy=False)
        assert space.contains(action), action
    actions, _ = policy.act(vector.reset(seed=0)[0], greedy=False)
    assert len(actions) == 2
    assert all(space.contains(action) for action in actions)


@pytest.mark.parametrize("space", ACTIONS, ids=str)
def test_a_spec_survives_as_json(space):
    policy, *_ = nested(space)
    spec = replace(policy.spec, steps_per_second=50.0)
    text = json.dumps(saved_spec.to_json(spec), allow_nan=False)
    assert repr(saved_spec.from_json(json.loads(text))) == repr(spec)


@pytest.mark.parametrize(("shape", "batch"), [((5, 7), (1, 5, 7)), ((), (1,)), ((3, 4), (2, 3, 4))])
def test_what_could_be_either_is_what_the_environment_gives(shape, batch):
    dtype = np.uint8 if shape == (5, 7) else np.float32
    spec = observation_spec(spaces.Box(0, 9, shape, dtype))
    assert received(spec, np.zeros(shape, dtype)).single
    assert not received(spec, np.zeros(batch, dtype)).single


def test_an_agent_that_sees_a_part_takes_the_whole_or_the_part():
    env = suites.make(replace(small_config().env, id="CartPole-v1", hidden=(1, 3)), 1, 0)
    spec = env.spec.observation
    env.close()
    for given in ([0.1, 0.2, 0.3, 0.4], [0.1, 0.3]):
        np.testing.assert_array_equal(received(spec, given).arrays["observation"], np.float32([[0.1, 0.3]]))


def test_the_callers_arrays_are_not_the_agents():
    given = np.zeros(4, np.float32)
    given.flags.writeable = False
    array = received(observation_spec(spaces.Box(-1, 1, (4,))), given).arrays["observation"]
    assert not np.shares_memory(array, given)


CARTPOLE = spaces.Box(-1.0, 1.0, (4,))
BAG = Shop.observation_space


@pytest.mark.parametrize(
    ("space", "given", "message"),
    [
        (CARTPOLE, 0.0, r"'observation' must be numbers of the shape \(4,\), or \(B, 4\).*; given: float64 of .* \(\)"),
        (CARTPOLE, [0.0] * 3, r"\(4,\), or \(B, 4\).*given: float64 of the shape \(3,\)"),
        (CARTPOLE, np.zeros((2, 2, 4)), r"given: float64 of the shape \(2, 2, 4\)"),
        (CARTPOLE, None, r"given: object of the shape \(\)"),
        (CARTPOLE, "north", r"given: text of the shape \(\)"),
        (CARTPOLE, [[0.0], [0.0, 1.0]], "'observation' is no array"),
        (CARTPOLE, {"position": 0.0}, "no 'observation'; expected: observation; given: position"),
        (BAG, {"shelf": 1}, "no 'bag'; expected: bag, shelf; given: shelf"),
        (BAG, np.zeros(3), "no 'bag'; expected: bag, shelf; given: a ndarray"),
        (BAG, {"bag": [0.0, 0.0], "shelf": 10}, r"'shelf' must be integers from 1 to 9 of the shape \(\).*given: 10"),
        (BAG, {"bag": [0.0, 0.0], "shelf": 0}, "from 1 to 9.*given: 0"),
        (BAG, {"bag": [0.0, 0.0], "shelf": 2.0}, r"from 1 to 9.*given: float64 of the shape \(\)"),
        (BAG, {"bag": [0.0, 0.0], "shelf": [1, 2]}, "one batch size, or none; given: bag none, shelf 2"),
        (BAG, {"bag": np.zeros((3, 2)), "shelf": [1, 2]}, "given: bag 3, shelf 2"),
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), np.zeros((8, 8, 3)), "integers from 0 to 255.*given: float64"),
        (spaces.Box(0, 255, (8, 8), np.uint8), np.full((8, 8), 256), "integers from 0 to 255.*given: .*256"),
        (spaces.Text(9), 3, "'observation' must be a text"),
        (spaces.Text(9), [1001] * 5, "'observation' must be a text.*given: .*1001"),
        (spaces.MultiDiscrete([2, 3], start=[0, 5]), [0, 8], "integers from 0 to 1, 5 to 7"),
        (spaces.Tuple((CARTPOLE, CARTPOLE)), (np.zeros(4),), "no '1'; expected: 0, 1; given: a tuple"),
    ],
)  # fmt: skip
def test_wrong_input_is_named_with_what_is_expected(space, given, message):
    with pytest.raises(vmpo.UserError, match=message):
        received(observation_spec(space), given)
