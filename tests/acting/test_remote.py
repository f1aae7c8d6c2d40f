"""Actors on Ray, as their learner sees them: who is asked, in which order, and what is learned from."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest
import torch
from samples import CountingEnv, make_actor, new_slot, small_config

from vmpo.errors import RunFailed
from vmpo.records import Weights, tree_map


def test_weights_survive_as_one_array():
    pytest.importorskip("ray")
    from vmpo.acting.remote import packed, unpacked

    tensors = {
        "flag": torch.tensor([True, False, True]),
        "mean": torch.randn(3, dtype=torch.float64),
        "weight": torch.randn(4, 5),
        "count": torch.tensor(7),
    }
    flat = packed(tensors)
    assert flat.nbytes == 3 + 24 + 80 + 8
    restored = unpacked(flat, tensors)
    assert restored.keys() == tensors.keys()
    assert all(torch.equal(restored[name], tensors[name]) for name in tensors)


class Ready:
    """Stands for Ray, where every request is answered at once, and the newest is told first."""

    def __init__(self):
        config = small_config()
        self.actor = make_actor(CountingEnv([9] * 4), config)
        self.asked, self.taken, self._slot = 0, list[int](), new_slot(self.actor, config)
        self.unroll, self.back, self.lost = self, False, set[int]()
        self.versions: dict[int, int] = {}

    def fleet(self, monkeypatch, kind, handles, **options):
        """Its unrolls have four environments."""
        from vmpo.acting import remote

        self.answer = remote.Unroll(
            arrays=tree_map(torch.Tensor.numpy, self._slot), episodes=[], faults=[], spent={}, fetched=0
        )
        monkeypatch.setattr(remote, "ray", self)
        turns = {"fleet": "serial", "num_envs": 4 * len(handles)}
        config = small_config(actors=turns if kind == "TurnsFleet" else {"fleet": "overlapping"})
        return getattr(remote, kind)(config, handles, self.weights(0), **options)

    def weights(self, version):
        return Weights(version=version, tensors=self.actor.network.state_dict())

    def put(self, array):
        return array

    def remote(self, version, array):
        self.asked += 1
        self.versions[self.asked] = version
        return self.asked

    def wait(self, requests, num_returns=1, timeout=None):
        newest = sorted((request for request in requests if request > 0 or self.back), reverse=True)
        return newest[:num_returns], newest[num_returns:]

    def get(self, request):
        if request in self.lost:
            from ray.exceptions import RayActorError

            raise RayActorError
        self.taken.append(request)
        return self.answer


def test_unrolls_are_learned_from_in_the_order_in_which_they_were_asked_for(monkeypatch):
    pytest.importorskip("ray")
    ready = Ready()
    fleet = ready.fleet(monkeypatch, "AheadFleet", [ready, ready])
    for _ in range(12):
        fleet.collect()
    assert ready.taken == list(range(1, 13))


class Silent:
    """An actor whose machine is gone: Ray holds its requests, and tells nothing."""

    def __init__(self):
        self.asked = 0
        self.unroll = self

    def remote(self, version, array):
        self.asked += 1
        return -self.asked


def test_a_learner_without_actors_borrows_until_one_of_its_own_is_back(monkeypatch):
    pytest.importorskip("ray")
    from vmpo.acting import remote

    monkeypatch.setattr(remote, "BORROW_SECONDS", 0.0)
    ready, silent = Ready(), Silent()
    own = SimpleNamespace(unroll=silent)
    fleet = ready.fleet(monkeypatch, "AheadFleet", [own], others=[ready, ready])
    for _ in range(4):
        fleet.collect()
    assert ready.asked == 6, "one each at any time, and none ahead"
    assert silent.asked == fleet._ahead == 3

    # Back again: the requests that Ray held are answered.
    monkeypatch.setattr(remote, "BORROW_SECONDS", 60.0)
    ready.back = True
    own.unroll = ready
    for _ in range(6):
        fleet.collect()
    assert not fleet._borrowing
    assert [request for request in ready.taken if request < 0] == [-1, -2, -3]


def columns(fleet):
    """Environments in the batches of one round."""
    batches = [fleet.collect()]
    while fleet.batches_waiting:
        batches.append(fleet.collect())
    assert sum(collected.agent_steps for collected in batches) == sum(
        c.batch.behaviour[..., 0].numel() for c in batches
    )
    return sum(collected.batch.behaviour.shape[1] for collected in batches)


def test_actors_in_turns_act_by_the_newest_weights_and_never_ahead(monkeypatch):
    pytest.importorskip("ray")
    ready = Ready()
    fleet = ready.fleet(monkeypatch, "TurnsFleet", [ready, ready])
    for version in range(3):
        fleet.publish(ready.weights(version))
        assert columns(fleet) == 8
        assert ready.asked == 2 * version + 2
    assert ready.taken == [1, 2, 3, 4, 5, 6]
    assert [ready.versions[request] for request in ready.taken] == [0, 0, 1, 1, 2, 2]


def test_what_a_lost_actor_owes_is_asked_of_another(monkeypatch):
    pytest.importorskip("ray")
    ready = Ready()
    fleet = ready.fleet(monkeypatch, "TurnsFleet", [ready, ready])
    ready.lost = {1}
    assert columns(fleet) == 8
    assert ready.taken == [2, 3]
    assert fleet.counts()["actors/lost_unrolls"] == 1
    assert fleet.counts()["actors/present"] == 1


def test_an_answer_that_comes_after_its_turn_is_not_learned_from(monkeypatch):
    pytest.importorskip("ray")
    from vmpo.acting import remote

    monkeypatch.setattr(remote, "BORROW_SECONDS", 0.0)
    ready, silent = Ready(), Silent()
    fleet = ready.fleet(monkeypatch, "TurnsFleet", [SimpleNamespace(unroll=silent), ready])
    assert columns(fleet) == 8
    assert ready.taken == [1, 2], "both of the one that answers"
    assert fleet.counts()["actors/present"] == 1
    fleet.publish(ready.weights(1))
    ready.back = True
    received = fleet.counts()["transport/unroll_bytes"]
    assert columns(fleet) == 8
    assert -1 in ready.taken
    assert fleet.counts()["transport/unroll_bytes"] == 2 * received, "two of this version, and not the late one"
    assert fleet.counts()["actors/present"] == 2


def test_a_learner_whose_actors_in_turns_are_silent_borrows(monkeypatch):
    pytest.importorskip("ray")
    from vmpo.acting import remote

    monkeypatch.setattr(remote, "BORROW_SECONDS", 0.0)
    ready, silent = Ready(), Silent()
    fleet = ready.fleet(monkeypatch, "TurnsFleet", [SimpleNamespace(unroll=silent)], others=[ready])
    assert columns(fleet) == 4
    assert ready.taken == [1]
    assert fleet.counts()["actors/present"] == 0


def test_an_actor_that_gives_up_tells_the_faults_that_it_had_not_told(monkeypatch):
    pytest.importorskip("ray")
    from vmpo.acting import remote

    def make_actor(start, report):
        report("the traceback")
        raise RunFailed("the environments failed in their first unroll")

    answer = remote.RemoteActor(small_config(), make_actor, lambda: None).unroll(0, [None])
    ready, heard = Ready(), []
    fleet = ready.fleet(monkeypatch, "TurnsFleet", [ready], report=heard.append)
    ready.answer = pickle.loads(pickle.dumps(answer))
    with pytest.raises(RunFailed, match=r"^the environments failed in their first unroll$"):
        fleet.collect()
    assert heard == ["the traceback"]
