"""A batch that would poison the learner leaves no trace in it."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
import torch
from samples import new_learner, random_unrolls, small_config

import vmpo
from vmpo.errors import RunFailed
from vmpo.learning import checkpoint
from vmpo.learning.learner import Learner


def state(learner):
    moments = {
        f"{index}.{key}": value
        for index, parameter in enumerate(p for group in learner.optimiser.param_groups for p in group["params"])
        for key, value in learner.optimiser.state[parameter].items()
    }
    return copy.deepcopy(
        {
            **learner.online.state_dict(),
            **{f"multiplier.{k}": v for k, v in learner.multipliers.state_dict().items()},
            "mean": learner.statistics.mean,
            "second_moment": learner.statistics.second_moment,
            **moments,
        }
    )


def poisoned(batch, value):
    rewards = batch.rewards.clone()
    rewards[2, 1] = value
    return replace(batch, rewards=rewards, valids=torch.ones_like(batch.valids))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("exact", [True, False])
def test_a_loss_that_is_not_finite_changes_nothing(value, exact):
    config = small_config(agent={"normalise_observations": True}, loss={"exact_temperature": exact, "popart_rate": 0.1})
    learner = new_learner(config)
    learner.update(random_unrolls(learner, 0))
    before = state(learner)
    metrics = learner.update(poisoned(random_unrolls(learner, 1), value))
    after = state(learner)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert int(metrics["skipped_updates"]) == learner.skipped == learner.skipped_in_a_row == 1
    assert learner.learner_step == 2
    learner.update(random_unrolls(learner, 2))
    assert (learner.skipped, learner.skipped_in_a_row) == (1, 0)
    assert any(not torch.equal(before[name], value) for name, value in state(learner).items())


def test_the_diagnosis_says_where_it_was():
    learner = new_learner(small_config())
    learner.update(poisoned(random_unrolls(learner, 0), float("nan")))
    rewards = learner.diagnosis["batch"]["rewards"]
    assert rewards["not_finite"] == 1
    assert rewards["min"] <= rewards["mean"] <= rewards["max"]
    assert learner.diagnosis["batch"]["observations.vector"]["not_finite"] == 0


def test_a_run_whose_updates_all_fail_stops_with_a_diagnosis_and_can_be_resumed(tmp_path, monkeypatch):
    update = Learner.update

    def sabotaged(self, batch, *options):
        return update(self, poisoned(batch, float("nan")) if self.learner_step >= 3 else batch, *options)

    monkeypatch.setattr(Learner, "update", sabotaged)
    with pytest.raises(RunFailed, match="5 updates in a row"):
        vmpo.train(small_config(run={"frames": 10**6}, learner={"max_skipped": 4}), tmp_path, quiet=True)
    diagnoses = [json.loads(line) for line in (tmp_path / "skipped_updates.jsonl").read_text().splitlines()]
    assert [d["learner_step"] for d in diagnoses] == [3, 4, 5, 6, 7]
    assert diagnoses[0]["batch"]["rewards"]["not_finite"] == 1
    saved = checkpoint.latest(tmp_path / "checkpoints")
    assert all(torch.isfinite(t).all() for t in saved.tensors.values() if t.is_floating_point())
    monkeypatch.setattr(Learner, "update", update)
    assert vmpo.resume(tmp_path, frames=480, quiet=True).frames == 480
