"""Environments that raise or return nonsense: what a run survives, and what ends it."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from samples import CountingEnv, env_spec, small_config

from vmpo.acting.actor import Actor, allocate
from vmpo.acting.faults import BrokenUnroll, Faults
from vmpo.errors import RunFailed, UserCodeError, UserError
from vmpo.networks.agent import make_agent, policy_family


class Poisoned(CountingEnv):
    """Returns NaN or infinity at its third call."""

    def __init__(self, where, value, **options):
        super().__init__([50, 50], **options)
        self.where, self.value = where, value

    def step(self, actions):
        arrival = super().step(actions)
        if self.calls == 3:
            (arrival.reward if self.where == "reward" else arrival.observation["vector"][:, 2])[1] = self.value
        return arrival


def supervised(envs, limit=10, version=1):
    """An actor whose environments are those of the list, one after another, with weights that were learned or not."""
    left, reports = list(envs), []
    config, spec = small_config(), env_spec()
    family = policy_family(spec, config)
    actor = Actor(
        left.pop(0),
        make_agent(spec, config),
        family,
        seed=0,
        make_env=lambda seed: left.pop(0),
        faults=Faults(limit, report=reports.append, pause=0.0),
    )
    actor.version = version
    slot = allocate(spec, family, actor.network, 6, actor.env.num_envs, pin=False)
    return actor, slot, reports


def test_an_environment_that_raises_is_replaced_and_its_unroll_made_again():
    broken, sound = CountingEnv([3, 50], fail_at=5), CountingEnv([4, 50])
    actor, slot, reports = supervised([broken, sound])
    episodes = actor.unroll(slot)
    assert actor.faults.count == 1
    assert "the simulator broke" in reports[0]
    assert broken.closed
    # Nothing of the broken unroll is left: neither its episode of three steps nor its timesteps.
    assert [e.length for e in episodes] == [4]
    assert slot.firsts[0].all()
    assert slot.observations["vector"][:, 1, 1].tolist() == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("where", ["reward", "observation"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_never_reaches_the_learner(where, value):
    actor, slot, reports = supervised([Poisoned(where, value), CountingEnv([50, 50])])
    actor.unroll(slot)
    assert torch.isfinite(slot.rewards).all()
    assert torch.isfinite(slot.observations["vector"]).all()
    assert f"{env_spec().tasks[0]} returned the {where}" in reports[0]
    assert f"{value} (environment 1, step 3 of an unroll)" in reports[0]


def test_too_many_faults_end_the_run_with_the_first_cause():
    class First(CountingEnv):
        def step(self, actions):
            raise OSError("the first cause")

    actor, slot, _ = supervised([First([5]), *(CountingEnv([5], fail_at=1) for _ in range(9))], limit=3)
    with pytest.raises(RunFailed, match=r"failed 4 times .* OSError: the first cause"):
        actor.unroll(slot)


def test_a_fault_before_anything_worked_ends_the_run_at_once():
    actor, slot, reports = supervised([CountingEnv([50], fail_at=3), CountingEnv([50])], version=0)
    line = "the environments failed in their first unroll: RuntimeError: the simulator broke"
    with pytest.raises(RunFailed, match=rf"^{line} \(samples.py:\d+ in step\)$") as raised:
        actor.unroll(slot)
    assert isinstance(raised.value.__cause__, RuntimeError)
    assert len(reports) == 1
    assert reports[0].startswith("Traceback")


def test_a_fault_after_a_good_unroll_is_survived_and_its_place_named():
    actor, slot, reports = supervised([CountingEnv([50], fail_at=9), CountingEnv([50])], version=0)
    actor.unroll(slot)
    actor.unroll(slot)
    assert actor.faults.count == 1
    last = reports[0].splitlines()[-1]
    assert re.fullmatch(r"environments restart after: RuntimeError: .* \(samples.py:\d+ in step\)", last)


def test_what_the_users_code_raises_is_survived_once_it_has_worked():
    class Broken(CountingEnv):
        def step(self, actions):
            raise UserCodeError("KeyError: 'missing'", "broken.py:14 in step")

    actor, slot, reports = supervised([Broken([5]), CountingEnv([5])])
    actor.unroll(slot)
    assert reports[0].endswith("environments restart after: KeyError: 'missing' (broken.py:14 in step)")


def test_faults_now_and_then_are_survived_without_end():
    actor, slot, _ = supervised([CountingEnv([50], fail_at=700) for _ in range(8)], limit=1)
    for _ in range(600):
        actor.unroll(slot)
    assert actor.faults.count > 4


def test_environments_that_cannot_be_made_again_are_a_fault_too():
    actor, slot, _ = supervised([CountingEnv([5], fail_at=2)], limit=2)
    with pytest.raises(RunFailed, match="the simulator broke"):
        actor.unroll(slot)


def test_a_users_mistake_is_not_survived():
    class Mistaken(CountingEnv):
        def step(self, actions):
            raise UserError("one line")

    actor, slot, _ = supervised([Mistaken([5]), CountingEnv([5])])
    with pytest.raises(UserError, match="one line"):
        actor.unroll(slot)


def test_without_a_way_to_restart_a_fault_is_raised():
    config, spec = small_config(), env_spec()
    family = policy_family(spec, config)
    actor = Actor(Poisoned("reward", np.nan), make_agent(spec, config), family, seed=0)
    with pytest.raises(BrokenUnroll, match="environment 1"):
        actor.unroll(allocate(spec, family, actor.network, 6, 2, pin=False))


def test_pauses_double_and_start_anew_after_a_good_unroll(monkeypatch):
    waited = []
    monkeypatch.setattr("vmpo.acting.faults.time.sleep", waited.append)
    faults = Faults(100, report=lambda text: None)
    for _ in range(7):
        faults.survive(ValueError(), learned=True)
    faults.unrolled()
    faults.survive(ValueError(), learned=False)
    assert waited == [1, 2, 4, 8, 16, 30, 30, 1]
