"""Training on a Ray cluster: this process places learners and actors, watches over them, and shows how they do.

Ray restarts actors by itself. Learners that compute one update together cannot go on without one of them: if one is
lost, all of them start again from the last checkpoint. The first learner runs on this machine, where its files are.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from vmpo.acting.remote import Crew, RemoteActor, envs_of_each
from vmpo.actors import distant_actor, environment_spec
from vmpo.callbacks import Callbacks, listed
from vmpo.config import ClusterConfig, Config
from vmpo.display import Display, make_display
from vmpo.errors import RunFailed, UserError
from vmpo.learner_process import LearnerProcess, Order
from vmpo.learning.checkpoint import available
from vmpo.learning.replicas import RENDEZVOUS, ReplicaLost, Replicas, share_of
from vmpo.presets import settled
from vmpo.problems import check, cluster_problems
from vmpo.result import RunResult
from vmpo.run_directory import RunDirectory
from vmpo.signals import StopSignal

POLL_SECONDS = 0.5
"""How often the learners are looked after."""

CONNECT_SECONDS = 5.0
"""How long a cluster may take to answer."""

LEAVE_SECONDS = 60.0
"""How long the other learners may take to save and leave when one is lost."""

MAX_RESTARTS = 3
"""Restarts of the learners without a new checkpoint in between; one more stops the run."""


def train(
    config: Config | str,
    directory: str | Path,
    cluster: ClusterConfig,
    *,
    quiet: bool = False,
    callbacks: Callbacks = (),
) -> RunResult:
    """Start a run in a new directory, as ``vmpo.train`` does, on a cluster.

    The first learner has a copy of the callbacks, and a new copy if it is started again.
    """
    config, heard = settled(config), listed(callbacks)
    RunDirectory(directory).check_new()
    order = Order(directory=str(Path(directory).absolute()), config=config, callbacks=heard)
    return _run(config, cluster, order, quiet)


def resume(
    directory: str | Path,
    cluster: ClusterConfig,
    *,
    frames: int | None = None,
    quiet: bool = False,
    trust: bool = False,
    callbacks: Callbacks = (),
) -> RunResult:
    """Continue a run on a cluster, wherever it was before."""
    heard = listed(callbacks)
    config = RunDirectory(directory).read_config(trust)
    if frames is not None:
        config = replace(config, run=replace(config.run, frames=frames))
    order = Order(directory=str(Path(directory).absolute()), frames=frames, callbacks=heard)
    return _run(config, cluster, order, quiet)


def _run(config: Config, cluster: ClusterConfig, order: Order, quiet: bool) -> RunResult:
    check(config, cluster.learners)
    if found := cluster_problems(cluster, config):
        raise UserError("; ".join(found))
    title = f"{order.directory} ({config.preset}: {config.env.id})"
    assert cluster.address is not None
    with connected(cluster.address, cluster.actors + cluster.learners):
        check_resources(config, cluster)
        with make_display(config.run.frames, title, quiet=quiet) as display, StopSignal() as stop:
            team = Team(config, cluster, begins=order.config is not None)
            try:
                return team.train(order, display, stop)
            finally:
                team.dismiss()


@contextmanager
def connected(address: str, processes: int | None = None) -> Iterator[None]:
    """A cluster that this process has joined already is used as it is; a local one ends with the context.

    A local cluster has room for so many processes of ours, or for one on each core.
    """
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if address == "local":
        # Nothing that can be reached from outside.
        options |= {"num_cpus": processes, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    host, _, port = address.rpartition(":")
    try:
        if port.isdigit():
            # Ray itself would wait for minutes.
            socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
        ray.init(address=address, **options)
    except (OSError, OverflowError, ValueError, RuntimeError) as error:
        raise UserError(
            f"no Ray cluster at address {address} ({' '.join(str(error).split())[:200]}); "
            "start one with 'ray start --head', or use the address local"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def check_resources(config: Config, cluster: ClusterConfig) -> None:
    """Refuse at once what the cluster as it is now cannot hold, instead of waiting for it."""
    on_gpu = config.learner.device.startswith("cuda")
    asked = {"CPU": cluster.actors + (0 if on_gpu else cluster.learners), "GPU": cluster.learners if on_gpu else 0}
    present = {name: int(ray.available_resources().get(name, 0)) for name in asked}
    if any(asked[name] > present[name] for name in asked):
        raise UserError(
            f"cluster.actors={cluster.actors} and cluster.learners={cluster.learners} ask for {asked['CPU']} CPUs and "
            f"{asked['GPU']} GPUs; the cluster has {present['CPU']} CPUs and {present['GPU']} GPUs free"
        )


class Team:
    """The processes of one run: actors that stay, and learners that are replaced all together."""

    def __init__(self, config: Config, cluster: ClusterConfig, begins: bool) -> None:
        self.config, self.cluster = config, cluster
        share = actor_share(config, cluster)
        kind = ray.remote(RemoteActor).options(
            num_cpus=1,
            max_restarts=-1,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": {"CUDA_VISIBLE_DEVICES": ""}},
        )
        spec = partial(environment_spec, share)
        self.actors = [
            kind.remote(share, partial(distant_actor, share, i), spec, begins) for i in range(cluster.actors)
        ]
        self.learners: list[Any] = []
        self.scratch = tempfile.TemporaryDirectory()

    def train(self, order: Order, display: Display, stop: StopSignal) -> RunResult:
        """Until the learners have finished, or something ends that starting again would not mend."""
        spec = _answer(self.actors[0].spec.remote())
        dealt = self._dealt()
        crews = [
            Crew(handles=own, others=tuple(actor for hand in dealt if hand is not own for actor in hand), spec=spec)
            for own in dealt
        ]
        folder, restarts, reached = RunDirectory(order.directory), 0, None
        while True:
            self._start_learners()
            outcomes = self._follow(order, crews, display, stop)
            for outcome in outcomes:
                if isinstance(outcome, Exception) and not _lost(outcome):
                    raise outcome
            lost = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
            if not lost:
                return outcomes[0]
            newest = available(folder.checkpoints)[-1:] if folder.config_file.exists() else None
            restarts, reached = (restarts + 1 if newest == reached else 1), newest
            if restarts > MAX_RESTARTS or stop.requested():
                raise RunFailed(f"learners were lost {restarts} times since the last checkpoint: {lost[0]}")
            display.note("a learner was lost; all of them start again from the last checkpoint")
            if folder.config_file.exists():
                order = replace(order, config=None)

    def dismiss(self) -> None:
        for process in (*self.learners, *self.actors):
            ray.kill(process)
        self.scratch.cleanup()

    def _start_learners(self) -> None:
        for learner in self.learners:
            ray.kill(learner)
        on_gpu = self.config.learner.device.startswith("cuda")
        kind = ray.remote(LearnerProcess)
        # Actors that move to this machine must not take the place of a learner that starts again: it reserves no CPU.
        options = {"num_cpus": 0, "num_gpus": 1 if on_gpu else 0, "max_concurrency": 4}
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.learners = [
            kind.options(**options, scheduling_strategy=here if rank == 0 else "SPREAD").remote()
            for rank in range(self.cluster.learners)
        ]

    def _dealt(self) -> list[tuple[Any, ...]]:
        """The actors of each learner, from as many machines as there are: none depends on a single one."""
        asked = [actor.node.remote() for actor in self.actors]
        nodes = [str(_outcome(request)) for request in asked]
        by_node = [actor for _, actor in sorted(zip(nodes, self.actors, strict=True), key=lambda pair: pair[0])]
        return [tuple(by_node[rank :: self.cluster.learners]) for rank in range(self.cluster.learners)]

    def _follow(self, order: Order, crews: list[Crew], display: Display, stop: StopSignal) -> list[Any]:
        """Let the learners train; what came of each of them, or its error."""
        count = len(self.learners)
        try:
            variables = self._meeting()
        except RayError as error:
            return [error] * count
        running = {
            learner.train.remote(order, crews[rank], variables | {"RANK": str(rank)}): rank
            for rank, learner in enumerate(self.learners)
        }
        outcomes: dict[int, Any] = {}
        end, told = float("inf"), False
        while running and time.monotonic() < end:
            if stop.requested() and not told:
                told = True
                for learner in self.learners:
                    learner.stop.remote()
            for result in ray.wait(list(running), timeout=POLL_SECONDS)[0]:
                outcomes[running.pop(result)] = outcome = _outcome(result)
                if isinstance(outcome, Exception):
                    end = min(end, time.monotonic() + LEAVE_SECONDS)
            self._show(display)
        lost = ReplicaLost(f"a learner did not leave within {LEAVE_SECONDS:.0f} s after another was lost")
        return [outcomes.get(rank, lost) for rank in range(count)]

    def _meeting(self) -> dict[str, str]:
        """Where the learners find each other: a file if they are all on this machine, or a port of the first."""
        count, places = len(self.learners), ray.get([learner.place.remote() for learner in self.learners])
        hosts = [host for host, _ in places]
        one_machine = set(hosts) == {ray.util.get_node_ip_address()}
        where = f"file://{self.scratch.name}/{time.time_ns()}" if one_machine else f"tcp://{hosts[0]}:{places[0][1]}"
        return {
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count if one_machine else 1),
            "LOCAL_RANK": "0",
            RENDEZVOUS: where,
        }

    def _show(self, display: Display) -> None:
        try:
            lines, notes = ray.get(self.learners[0].news.remote(), timeout=POLL_SECONDS)
        except RayError:
            return
        for text in notes:
            display.note(text)
        for line in lines:
            display.update(line)


def actor_share(config: Config, cluster: ClusterConfig) -> Config:
    """What one actor process does: its share of a learner's environments, on one CPU."""
    share = share_of(config, Replicas(count=cluster.learners))
    num_envs = envs_of_each(share, cluster.actors // cluster.learners)
    return replace(
        share,
        actors=replace(share.actors, device="cpu", num_envs=num_envs),
        env=replace(share.env, simulator_threads=share.env.simulator_threads or 1),
    )


def _answer(request: Any) -> Any:
    """A result, or the error as it was raised in the other process."""
    try:
        return ray.get(request)
    except RayTaskError as error:
        raise error.cause if isinstance(error.cause, UserError | RunFailed | OSError) else error from None


def _outcome(request: Any) -> Any:
    try:
        return _answer(request)
    except Exception as error:
        return error


def _lost(error: Exception) -> bool:
    """Whether a process has gone, and not its work gone wrong."""
    return isinstance(error, ReplicaLost) or (isinstance(error, RayError) and not isinstance(error, RayTaskError))
