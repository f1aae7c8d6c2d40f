"""The benchmark must print what programs read, of windows that were measured, and give peers the same work."""

from __future__ import annotations

import json

import pytest

from benchmarks.peers import common
from vmpo import bench
from vmpo.cli import main


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


@pytest.mark.parametrize("name", common.WORKLOADS)
def test_peers_have_the_same_network_and_batch(name: str) -> None:
    theirs, ours = common.WORKLOADS[name], bench.WORKLOADS[name].config
    assert (theirs.num_envs, theirs.unroll_length) == (ours.actors.num_envs, ours.learner.unroll_length)
    assert theirs.batch_size == ours.learner.batch_size * ours.learner.unroll_length
    assert ours.learner.passes == ours.learner.virtual_replicas == 1
    assert theirs.heads == ((ours.agent.head_units,) if ours.agent.head_units else ())
    if theirs.pixels:
        assert theirs.pixels == ours.agent.pixels
        assert (ours.agent.core == "lstm") == (theirs.pixels == "resnet")
    else:
        assert theirs.task == ours.env.id
        assert (theirs.hidden, theirs.activation) == (ours.agent.hidden, ours.agent.activation)
