"""The benchmark must print what programs read, of windows that were measured, and give peers the same work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vmpo import bench, suites
from vmpo.cli import main
from vmpo.networks.agent import make_agent, policy_family
from vmpo.workloads import WORKLOADS, Network, ceiling

ROOT = Path(__file__).parents[1]


def test_a_workload_is_measured_and_printed_as_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "cartpole", "--seconds", "0.3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["workload"] == "cartpole"
    assert len(result["windows"]) == bench.WINDOWS
    assert min(result["windows"]) <= result["agent_steps_per_second"] <= max(result["windows"])
    own = [share for phase, share in result["phases"].items() if not phase.startswith("actor's")]
    assert sum(own) == pytest.approx(1.0, abs=0.05)
    assert all(result["ceiling"][part] > result["ceiling"]["together"] for part in ("simulate", "act", "learn"))
    assert result["ceiling_share"] > 0
    for part in ("act", "learn"):
        assert result["alone"][part] > 0
        assert result["alone_over_plain"][part] > 0


@pytest.mark.parametrize("name", WORKLOADS)
def test_our_agent_has_the_plain_networks_weights(name: str) -> None:
    """Number and shapes of all weights: what peers and the ceiling compute is what we compute."""
    workload = WORKLOADS[name]
    config = bench.settings(workload)
    learner = config.learner
    assert (config.actors.num_envs, learner.unroll_length) == (workload.num_envs, workload.unroll_length)
    assert (learner.batch_size, learner.passes, learner.virtual_replicas) == (workload.num_envs, 1, 1)
    env = suites.make(config.env, 1, 0)
    spec = env.spec
    env.close()
    channels = next(iter(spec.observation.values())).shape[0]
    outputs = policy_family(spec, config).num_parameters
    network = Network(workload, channels, outputs)
    if network.lstm is not None:  # ours sees the previous action and reward as well
        network.lstm = torch.nn.LSTM(workload.features + outputs + 1, 256)
    ours = sorted(tuple(x.shape) for x in make_agent(spec, config).parameters())
    assert ours == sorted(tuple(x.shape) for x in network.parameters())


@pytest.mark.parametrize("name", ["humanoid-run", "breakout"])
def test_a_ceiling_takes_its_parts_in_turns(name: str) -> None:
    parts = ceiling(WORKLOADS[name], 0.02)
    together = parts.pop("together")
    assert set(parts) == {"simulate", "act", "learn"}
    assert 1.0 / together == pytest.approx(sum(1.0 / each for each in parts.values()))


def test_other_libraries_read_the_workloads_without_our_package() -> None:
    """Their environments have nothing of what it needs, and it would set their threads."""
    source = "import sys; from benchmarks.peers import common; print('vmpo' in sys.modules, *common.WORKLOADS)"
    done = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", *(name for name in WORKLOADS if name != "humanoid-run")]
