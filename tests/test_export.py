"""Exported agents, run by onnxruntime and by torch.export, act as the agent does; a file that would not is not left."""

from __future__ import annotations

import importlib.util

import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces

from vmpo import export as exporting
from vmpo.cli import main
from vmpo.config import AgentConfig, Config, EnvConfig
from vmpo.errors import RunFailed, UserError
from vmpo.export import GreedyStep, export_policy
from vmpo.networks.agent import make_agent
from vmpo.policy import Policy
from vmpo.records import ArraySpec, ContinuousActions, DiscreteActions, EnvSpec, Weights
from vmpo.suites.spaces import action_spec

VECTOR = ArraySpec(shape=(5,), dtype=np.dtype(np.float32), kind="vector")
EVERYTHING = {
    "camera": ArraySpec(shape=(36, 40, 3), dtype=np.dtype(np.uint8), kind="pixels", layout="HWC"),
    "body": VECTOR,
    "mission": ArraySpec(shape=(6,), dtype=np.dtype(np.int64), kind="text", vocabulary=30),
}
DISCRETE = DiscreteActions(sizes=(4,))
SEVERAL = DiscreteActions(sizes=(3, 2))
# Bounded on both sides, on one, and on none.
CONTINUOUS = ContinuousActions(
    low=np.array([-2.0, 0.0, -np.inf, -np.inf], np.float32), high=np.array([1.0, 0.4, 0.3, np.inf], np.float32)
)


# In the environment's own terms: counted from elsewhere, in another shape or type, and with bounds that float32 misses.
FORMS = {
    "a choice from 5": action_spec(spaces.Discrete(3, start=5)),
    "choices in a square": action_spec(spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [0, 9]])),
    "bits": action_spec(spaces.MultiBinary(3)),
    "doubles": action_spec(spaces.Box(-0.4, 0.4, (2, 2), np.float64)),
}


def policy(core="none", observation=None, action=DISCRETE, **options):
    """An agent of random weights that takes its time to choose: its statistics are not the initial ones."""
    spec = EnvSpec(observation=observation or {"observation": VECTOR}, action=action, tasks=("task",))
    agent = AgentConfig(
        core=core, hidden=(16,), head_units=16, pixels="nature", pixel_features=16, text_units=8, lstm_layers=2,
        lstm_units=16, transformer_layers=2, transformer_heads=2, transformer_key_size=4, transformer_mlp=16,
        transformer_width=16, transformer_memory=4, normalise_observations=True, policy_init_scale=3.0, **options,
    )  # fmt: skip
    config = Config(env=EnvConfig(), agent=agent)
    torch.manual_seed(0)
    network = make_agent(spec, config)
    for normaliser in network.normalisers:
        units = torch.linspace(-1.0, 1.0, normaliser.mean.numel()).view_as(normaliser.mean)
        normaliser.mean.copy_(units * normaliser.initial_variance**0.5)
        normaliser.var.mul_(torch.linspace(0.2, 3.0, normaliser.var.numel()).view_as(normaliser.var))
    return Policy(spec, config, Weights(version=0, tensors=network.state_dict()))


def session(path):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


AGENTS = {
    "feed-forward, discrete": lambda: policy(),
    "feed-forward, continuous": lambda: policy(action=CONTINUOUS, initial_std=0.5),
    "feed-forward, full covariance": lambda: policy(action=CONTINUOUS, covariance="full", bounded_mean=True),
    "lstm, several choices": lambda: policy("lstm", action=SEVERAL),
    "lstm, continuous, everything to see": lambda: policy("lstm", EVERYTHING, CONTINUOUS),
    "lstm that does not see its actions": lambda: policy("lstm", previous_action_and_reward=False),
    "transformer, discrete, everything to see": lambda: policy("transformer", EVERYTHING),
    "transformer, continuous": lambda: policy("transformer", action=CONTINUOUS),
}


@pytest.mark.parametrize("name", AGENTS)
def test_an_onnx_file_acts_as_the_agent_does_with_states_of_its_own(name, tmp_path):
    pytest.importorskip("onnxscript")
    """Compared here once more, by its names alone and for a batch of another size than it was written with."""
    agent = AGENTS[name]()
    exported = export_policy(agent, tmp_path / "agent.onnx")
    assert exported.difference < 1e-5
    run = session(exported.path)
    inputs = {i.name: i for i in run.get_inputs()}
    assert {n: tuple(i.shape[1:]) for n, i in inputs.items()} == exported.inputs
    names = [output.name for output in run.get_outputs()]
    assert {n.replace("next_state.", "state.") for n in names if n != "action"} == {
        n for n in inputs if n.startswith("state.")
    }
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}
    random, batch, state, chosen = np.random.default_rng(1), 5, None, []
    carried = {n: np.zeros((batch, *i.shape[1:]), kinds[i.type]) for n, i in inputs.items() if n.startswith("state.")}
    for step in range(12):
        observation = {
            n: random.normal(size=(batch, *s.shape)).astype(s.dtype)
            if s.kind == "vector"
            else random.integers(0, s.vocabulary or 255, (batch, *s.shape)).astype(s.dtype)
            for n, s in agent.spec.observation.items()
        }
        reward, first = random.normal(size=batch).astype(np.float32), np.full(batch, step in (0, 7))
        expected, state = agent.act(observation, None if first[0] else state, previous_reward=reward)
        fed = {**observation, **carried, "first": first, "previous_reward": reward}
        outputs = dict(zip(names, run.run(names, {n: fed[n] for n in inputs}), strict=True))
        assert outputs["action"].dtype == expected.dtype
        np.testing.assert_allclose(outputs["action"], expected, atol=1e-5)
        carried = {n.replace("next_", ""): v for n, v in outputs.items() if n != "action"}
        for n, value in carried.items():
            np.testing.assert_allclose(value, state[n.removeprefix("state.")].numpy(), atol=1e-5)
        chosen.append(expected)
    assert np.unique(np.concatenate(chosen), axis=0).shape[0] > 1, "the agent looks at what it sees"
    if isinstance(agent.spec.action, ContinuousActions):
        played = np.concatenate(chosen)
        assert (played >= CONTINUOUS.low).all()
        assert (played <= CONTINUOUS.high).all()


@pytest.mark.parametrize("name", ["feed-forward, continuous", "transformer, discrete, everything to see"])
def test_a_torch_program_acts_as_the_agent_does(name, tmp_path):
    agent = AGENTS[name]()
    exported = export_policy(agent, tmp_path / "agent.pt2")
    program = torch.export.load(exported.path).module()
    inputs = GreedyStep(agent).example(4)
    name, first = next(iter(agent.spec.observation.items()))
    inputs[name] = torch.ones_like(inputs[name])
    expected, _ = agent.act({n: inputs[n].numpy() for n in agent.spec.observation})
    np.testing.assert_allclose(program(inputs=inputs)["action"].numpy(), expected, atol=1e-6)
    assert first.shape == exported.inputs[name]


@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
@pytest.mark.parametrize("name", FORMS)
def test_an_exported_action_is_the_environments_own(name, suffix, tmp_path):
    agent = policy(action=FORMS[name])
    exported = export_policy(agent, tmp_path / f"agent.{suffix}")
    observation = 30.0 * np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32)
    expected, _ = agent.act(observation)
    if suffix == "onnx":
        (actions,) = session(exported.path).run(["action"], {"observation": observation})
    else:
        inputs = {"observation": torch.from_numpy(observation)}
        actions = torch.export.load(exported.path).module()(inputs=inputs)["action"].numpy()
    assert actions.dtype == expected.dtype
    np.testing.assert_allclose(actions, expected, atol=1e-5)
    assert len(np.unique(actions)) > 1
    if name == "a choice from 5":
        assert set(actions) <= {5, 6, 7}
    if name == "doubles":
        assert actions.shape == (20, 2, 2)
        assert np.abs(actions).max() == 0.4


def test_the_check_sees_a_state_that_is_not_reset_and_an_action_that_is_not_clipped(tmp_path, monkeypatch):
    """Each broken on purpose in what is exported, not in what it is compared with. An old file stays as it is."""
    (tmp_path / "agent.pt2").write_bytes(b"the agent of last week")
    agent = policy("lstm", action=CONTINUOUS, initial_std=0.5)
    with monkeypatch.context() as patch:
        forward = GreedyStep.forward
        never = lambda self, inputs: forward(self, {**inputs, "first": torch.zeros_like(inputs["first"])})  # noqa: E731
        patch.setattr(GreedyStep, "forward", never)
        with pytest.raises(RunFailed, match="would differ from the agent by"):
            export_policy(agent, tmp_path / "agent.pt2")
    with monkeypatch.context() as patch:
        patch.setattr(GreedyStep, "_executable", lambda self, raw: raw)
        with pytest.raises(RunFailed, match="would differ from the agent by"):
            export_policy(agent, tmp_path / "agent.pt2")
    assert [path.name for path in tmp_path.iterdir()] == ["agent.pt2"]
    assert (tmp_path / "agent.pt2").read_bytes() == b"the agent of last week"
    assert export_policy(agent, tmp_path / "agent.pt2").difference < 1e-5


def test_an_agent_that_cannot_be_exported_is_one_error_and_no_file(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("no such\noperator")

    monkeypatch.setattr(torch.export, "export", refuse)
    with pytest.raises(RunFailed, match=r"cannot be exported to \.onnx"):
        export_policy(policy(), tmp_path / "agent.onnx")
    assert list(tmp_path.iterdir()) == []


def test_an_observation_may_not_have_the_name_of_another_input(tmp_path):
    with pytest.raises(UserError, match="'first' has the name of another input"):
        export_policy(policy(observation={"first": VECTOR}), tmp_path / "agent.onnx")


def test_the_command_exports_the_runs_agent_and_says_how_it_was_checked(tmp_path, capsys):
    small = "--agent.hidden 8 --learner.batch-size 4 --learner.unroll-length 8 --actors.num-envs 4 --frames 64"
    rest = "--run.evaluation-episodes 0 --run.tensorboard False --quiet --directory"
    assert main(["train", "pendulum", *small.split(), *rest.split(), str(tmp_path / "run")]) == 0
    capsys.readouterr()
    out = tmp_path / "agent.onnx"
    assert main(["export", str(tmp_path / "run"), str(out)]) == 0
    printed = capsys.readouterr().out
    assert "inputs: observation [3]; each with a batch axis before it" in printed
    assert "largest difference" in printed
    assert f"exported: {out}" in printed
    from vmpo import load

    observation = np.array([[1.0, 0.0, 0.5]], np.float32)
    expected, _ = load(tmp_path / "run").act(observation)
    (action,) = session(out).run(["action"], {"observation": observation})
    np.testing.assert_allclose(action, expected, atol=1e-5)


def test_without_onnx_the_extra_is_named(tmp_path, monkeypatch, capsys):
    find = importlib.util.find_spec
    hidden = lambda name: None if name == "onnxscript" else find(name)  # noqa: E731
    monkeypatch.setattr(exporting.importlib.util, "find_spec", hidden)
    assert main(["export", "run", str(tmp_path / "agent.onnx")]) == 2
    assert capsys.readouterr().err == "vmpo: onnxscript is not installed; install it with: pip install -e '.[export]'\n"
