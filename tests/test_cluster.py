"""Training on Ray: what is refused at once, and a simulated cluster whose processes and machines are lost and found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from samples import small_config

import vmpo
from vmpo import presets
from vmpo.cli import main
from vmpo.config import ClusterConfig
from vmpo.learning import checkpoint
from vmpo.problems import cluster_problems

ROOT = Path(__file__).parents[1]
LOOPBACK = {"node_ip_address": "127.0.0.1", "object_store_memory": 100_000_000}
CHECKPOINT_SECONDS = 2.0


def test_without_ray_one_line_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    for module in ("vmpo.cluster", "vmpo.sweep", "vmpo.learner_process", "vmpo.acting.remote"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    for command in (["train", "cartpole", "--cluster.address", "local"], ["sweep", "cartpole"]):
        assert main(command) == 2
        assert capsys.readouterr().err == "vmpo: ray is not installed; install it with: pip install -e '.[ray]'\n"


def test_impossible_numbers_of_processes_are_named():
    config = presets.get("cartpole").config
    assert cluster_problems(ClusterConfig(actors=2, learners=2), config) == []
    assert "cluster.actors=0 must be at least 1" in cluster_problems(ClusterConfig(actors=0), config)
    assert "must be at least cluster.learners=3" in cluster_problems(ClusterConfig(actors=2, learners=3), config)[0]


def test_actors_in_turns_must_divide_the_environments():
    config = presets.get("cartpole").config
    assert cluster_problems(ClusterConfig(actors=3), config) == [
        "actors.num_envs=16 does not divide over cluster.actors=3, which take turns with the learner; "
        "try --actors.num-envs 18, or --actors.fleet overlapping"
    ]
    assert cluster_problems(ClusterConfig(actors=8, learners=3), config) == [
        "cluster.actors=8 does not divide over cluster.learners=3; try 6"
    ]
    ahead = replace(config, actors=replace(config.actors, fleet="overlapping"))
    assert cluster_problems(ClusterConfig(actors=3), ahead) == []
    assert cluster_problems(ClusterConfig(actors=8, learners=3), ahead) == []


def test_actors_in_turns_share_what_one_would_have():
    pytest.importorskip("ray")
    from vmpo.cluster import actor_share

    config = presets.get("cartpole").config
    assert actor_share(config, ClusterConfig(actors=4, learners=2)).actors.num_envs == 4
    ahead = replace(config, actors=replace(config.actors, fleet="overlapping"))
    assert actor_share(ahead, ClusterConfig(actors=4, learners=2)).actors.num_envs == 8


def test_callbacks_are_called_by_the_first_learner(tmp_path):
    """In another process, where this module cannot be imported: what they hear is written down."""
    pytest.importorskip("ray")
    from vmpo import cluster

    class StopSoon(vmpo.Callback):
        def on_unroll(self, run):
            if run.learner.learner_step >= 3:
                run.stop.request()

        def on_end(self, run, result):
            (run.directory.path / "heard").write_text(f"{result.learner_steps} {result.finished}")

    config = small_config(env={"id": "CartPole-v1"}, run={"frames": 1_000_000})
    where = ClusterConfig(address="local", actors=2, learners=1)
    with pytest.raises(vmpo.UserError, match="callbacks must be objects"):
        cluster.train(config, tmp_path / "run", where, quiet=True, callbacks=StopSoon)
    result = cluster.train(config, tmp_path / "run", where, quiet=True, callbacks=StopSoon())
    assert not result.finished
    assert (tmp_path / "run" / "heard").read_text() == f"{result.learner_steps} False"


@pytest.fixture
def simulated(monkeypatch):
    """A head node with two CPUs, on loopback alone; tests add others."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_health_check_period_ms", "500")
    monkeypatch.setenv("RAY_health_check_failure_threshold", "4")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # Ray's name for: processes that join take loopback for their address too, as the nodes below do.
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False, **LOOPBACK})
    yield cluster
    cluster.shutdown()


def command(address, run, *options):
    return [
        *(sys.executable, "-m", "vmpo", "train", "cartpole", "--directory", str(run), "--frames", "100000000"),
        *("--cluster.address", address, "--run.tensorboard", "False", "--run.evaluation-episodes", "0", *options),
    ]


def test_not_enough_resources_fail_at_once_with_the_numbers(simulated, tmp_path):
    options = ("--cluster.actors", "4", "--cluster.learners", "2")
    result = subprocess.run(
        command(simulated.address, tmp_path / "run", *options), capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 2
    assert result.stderr == (
        "vmpo: cluster.actors=4 and cluster.learners=2 ask for 6 CPUs and 0 GPUs; "
        "the cluster has 2 CPUs and 0 GPUs free\n"
    )
    assert not (tmp_path / "run").exists()


def test_a_cluster_that_is_not_there_is_named_at_once(tmp_path, capsys):
    pytest.importorskip("ray")
    arguments = command("127.0.0.1:1", tmp_path / "run")[3:]
    assert main(arguments) == 2
    assert "no Ray cluster at address 127.0.0.1:1" in capsys.readouterr().err


class Watched:
    """A training command on a simulated cluster, and what can be seen of it from outside."""

    def __init__(self, cluster, run, *options):
        self.metrics, self.checkpoints = run / "metrics.jsonl", run / "checkpoints"
        intervals = ("--run.log-seconds", "0.2", "--run.checkpoint-seconds", str(CHECKPOINT_SECONDS))
        self.process = subprocess.Popen(
            command(cluster.address, run, *intervals, *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def lines(self):
        return [json.loads(line) for line in self.metrics.read_text().splitlines() if line.endswith("}")]

    def wait(self, condition, what, seconds=180.0):
        end = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end, f"{what} has not happened within {seconds:.0f} s"
            time.sleep(0.2)

    def wait_for_progress(self, what):
        """A new line of metrics, beyond the last of now."""
        before = self.lines()[-1]["seconds"] if self.metrics.exists() and self.lines() else -1.0
        newer = lambda: self.metrics.exists() and self.lines() and self.lines()[-1]["seconds"] > before  # noqa: E731
        self.wait(newer, f"progress after {what}")


def processes(title, node=None, *, without=()):
    """Ray's processes of a title, of one node or of all on this machine."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                named = folder.joinpath("cmdline").read_bytes().startswith(f"ray::{title}".encode())
                parent = int(folder.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if (
                named
                and int(folder.name) not in without
                and (node is None or parent == node.all_processes["raylet"][0].process.pid)
            ):
                found.append(int(folder.name))
    return sorted(found)


@pytest.mark.parametrize("fleet", ["serial", "overlapping"])
def test_training_survives_lost_actors_nodes_and_learners(fleet, simulated, tmp_path):
    """Kill an actor, kill a node with two actors, add a node, kill a learner; then stop, and count."""
    # Others may use Ray on this machine too.
    ours = partial(processes, without=set(processes("")))
    other = simulated.add_node(num_cpus=4, **LOOPBACK)
    sizes = ("--cluster.actors", "4", "--cluster.learners", "2", "--actors.fleet", fleet)
    watched = Watched(simulated, tmp_path / "run", *sizes)
    try:
        watched.wait_for_progress("the start")
        assert len(ours("RemoteActor")) == 4
        assert len(ours("RemoteActor", other)) == 2

        os.kill(ours("RemoteActor")[0], signal.SIGKILL)
        # Seen here, whichever learner it worked for: later the lines may be taken back to a checkpoint before it.
        watched.wait(lambda: watched.lines()[-1]["actors/lost_unrolls"] > 0, "the loss of an actor being counted")
        watched.wait_for_progress("the loss of an actor")
        watched.wait(lambda: len(ours("RemoteActor")) == 4, "the restart of an actor")

        simulated.remove_node(other, allow_graceful=False)
        watched.wait_for_progress("the loss of a node")
        watched.wait(lambda: len(ours("RemoteActor")) == 2, "the end of its actors")
        third = simulated.add_node(num_cpus=2, **LOOPBACK)
        watched.wait(lambda: len(ours("RemoteActor", third)) == 2, "the return of two actors")
        watched.wait_for_progress("the arrival of a node")

        watched.wait(lambda: len(checkpoint.available(watched.checkpoints)) > 1, "a checkpoint")
        reached = watched.lines()[-1]
        os.kill(ours("LearnerProcess")[0], signal.SIGKILL)
        watched.wait(lambda: watched.lines()[-1]["agent_steps"] > reached["agent_steps"], "progress of new learners")
        resumed = [line for line in watched.lines() if line["seconds"] <= reached["seconds"]][-1]
        assert reached["seconds"] - resumed["seconds"] < CHECKPOINT_SECONDS + 3.0

        watched.process.send_signal(signal.SIGTERM)
        output, errors = watched.process.communicate(timeout=120)
    finally:
        watched.process.kill()
    assert watched.process.returncode == 0, errors
    assert "stopped at" in output
    assert "a learner was lost; all of them start again from the last checkpoint" in errors
    lines = watched.lines()
    steps = [line["agent_steps"] for line in lines]
    assert steps == sorted(set(steps)), "nothing is counted twice"
    assert max(line["actors/present"] for line in lines) == 4
    assert lines[-1]["transport/unroll_bytes"] > 0
    assert lines[-1]["transport/weight_bytes"] > 0
    progress = checkpoint.latest(watched.checkpoints).progress
    # 16 environments of 64 steps, in batches of 4, each taken 8 times.
    assert progress["learner_step"] == progress["agent_steps"] // (16 * 64) * 32


def test_one_actor_on_ray_makes_the_very_run_that_one_process_makes(tmp_path):
    """Its actor plays the same episodes by the same noise, and the learner takes the same steps to the last bit."""
    pytest.importorskip("ray")
    quick = ["--frames", "8192", "--run.threads", "1", "--run.evaluation-episodes", "0", "--run.tensorboard", "False"]
    clusters = {"local": [], "ray": ["--cluster.address", "local", "--cluster.actors", "1"]}
    saved, episodes = {}, {}
    for name, cluster in clusters.items():
        directory = tmp_path / name
        assert main(["train", "cartpole", "--directory", str(directory), "--quiet", *quick, *cluster]) == 0
        saved[name] = checkpoint.latest(directory / "checkpoints").tensors
        lines = [json.loads(line) for line in (directory / "episodes.jsonl").read_text().splitlines()]
        episodes[name] = [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
    assert len(episodes["local"]) > 100
    assert episodes["ray"] == episodes["local"]
    # The local actor's generator is saved as well; one on Ray keeps its own.
    assert saved["local"].keys() - saved["ray"].keys() == {"extra.actor_random_state.0"}
    for name in saved["ray"]:
        assert torch.equal(saved["ray"][name], saved["local"][name]), name


@pytest.mark.learning
@pytest.mark.parametrize("fleet", ["serial", "overlapping"])
def test_two_actors_and_a_learner_on_ray_solve_cartpole(fleet, tmp_path, capsys):
    pytest.importorskip("ray")
    arguments = ["--directory", str(tmp_path / "run"), "--run.evaluation-episodes", "100", "--run.tensorboard", "False"]
    options = ["--cluster.address", "local", "--cluster.actors", "2", "--actors.fleet", fleet, "--quiet", "--json"]
    assert main(["train", "cartpole", *arguments, *options]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["evaluation"]["mean_return"] >= 475
