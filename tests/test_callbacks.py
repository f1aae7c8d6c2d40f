"""Programs that watch a run: when they are called, how they end it, and what remains if they fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from samples import small_config

import vmpo
from vmpo.callbacks import listed
from vmpo.learning import checkpoint


def config(**run):
    return small_config(env={"id": "CartPole-v1"}, run=run)


class Journal(vmpo.Callback):
    def __init__(self):
        self.events, self.episodes, self.lines = [], [], []

    def on_start(self, run):
        self.events.append(("start", run.learner.learner_step))

    def on_episodes(self, run, episodes):
        self.episodes += episodes

    def on_log(self, run, line):
        self.lines.append(line)

    def on_checkpoint(self, run, path):
        self.events.append(("checkpoint", path.name))

    def on_end(self, run, result):
        self.events.append(("end", result.agent_steps))


def test_a_callback_hears_what_the_files_hold(tmp_path):
    journal = Journal()
    vmpo.train(config(frames=960), tmp_path / "run", quiet=True, callbacks=[journal])
    assert journal.events == [("start", 0), ("checkpoint", "step_0000000040"), ("end", 960)]
    assert journal.lines == [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").open()]
    assert len(journal.lines) == 40
    written = [json.loads(line)["return"] for line in (tmp_path / "run/episodes.jsonl").open()]
    assert [episode.episode_return for episode in journal.episodes] == written != []


def test_a_resumed_run_starts_where_it_was(tmp_path):
    journal = Journal()
    vmpo.train(config(frames=96), tmp_path / "run", quiet=True)
    vmpo.resume(tmp_path / "run", frames=192, quiet=True, callbacks=[journal])
    assert journal.events[0] == ("start", 4)
    assert journal.events[-1] == ("end", 192)


def test_a_single_callback_needs_no_list(tmp_path):
    journal = Journal()
    vmpo.train(config(frames=96), tmp_path / "run", quiet=True, callbacks=journal)
    vmpo.resume(tmp_path / "run", frames=192, quiet=True, callbacks=(journal,))
    assert [event for event in journal.events if event[0] == "end"] == [("end", 96), ("end", 192)]


class Foreign:
    def on_epoch(self): ...


class Both(Foreign, vmpo.Callback):
    """What is called by others may have names of its own."""


class Misspelt(vmpo.Callback):
    def on_episode(self, run, episodes): ...


class Derived(Misspelt):
    def on_log(self, run, line): ...


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        (Misspelt(), "unknown event of Misspelt 'on_episode'; did you mean 'on_episodes'"),
        ([Both(), Derived()], "unknown event of Misspelt 'on_episode'"),
        ([Journal], "objects of classes that derive from vmpo.Callback; given: the class Journal"),
        (Journal, "given: the class Journal"),
        (print, "given: <built-in function print>"),
        ([Foreign()], "given: <.*Foreign object"),
        (None, "given: None"),
    ],
)
def test_what_no_run_would_call_is_refused_before_anything_is_written(tmp_path, callbacks, message):
    with pytest.raises(vmpo.UserError, match=message):
        vmpo.train(config(), tmp_path / "run", quiet=True, callbacks=callbacks)
    with pytest.raises(vmpo.UserError, match=message):
        vmpo.resume(tmp_path / "run", quiet=True, callbacks=callbacks)
    assert not (tmp_path / "run").exists()


def test_classes_beside_ours_keep_their_own_events():
    both = Both()
    assert listed(both) == [both]


class Broken(vmpo.Callback):
    def on_log(self, run, line):
        if line["learner_step"] == 7:
            raise RuntimeError("of the callback")


def test_a_callback_that_fails_ends_the_run_with_a_checkpoint(tmp_path):
    with pytest.raises(RuntimeError, match="of the callback"):
        vmpo.train(config(frames=960), tmp_path / "run", quiet=True, callbacks=[Broken()])
    assert checkpoint.latest(tmp_path / "run" / "checkpoints").progress["agent_steps"] == 7 * 24
    assert vmpo.resume(tmp_path / "run", quiet=True).finished


def test_a_callback_that_fails_within_an_unroll_leaves_targets_in_step_with_unrolls(tmp_path):
    """The seventh update is the first of three on the third unroll."""
    three_passes = small_config(env={"id": "CartPole-v1"}, learner={"passes": 3}, run={"frames": 960, "log_steps": 1})
    with pytest.raises(RuntimeError, match="of the callback"):
        vmpo.train(three_passes, tmp_path / "run", quiet=True, callbacks=[Broken()])
    assert checkpoint.latest(tmp_path / "run" / "checkpoints").progress["learner_step"] == 9
    assert vmpo.resume(tmp_path / "run", quiet=True).finished


def test_weights_and_biases_keeps_one_run_per_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    vmpo.train(config(frames=96, wandb="project"), tmp_path / "run", quiet=True)
    vmpo.resume(tmp_path / "run", frames=192, quiet=True)
    identity = (tmp_path / "run" / "wandb_id").read_text()
    files = sorted((tmp_path / "run" / "wandb").glob(f"offline-run-*-{identity}/run-{identity}.wandb"))
    assert len(files) >= 1
    assert sum(file.stat().st_size for file in files) > 1_000


@pytest.mark.parametrize("reference", ["os:abort", "builtins:exit", "not_imported:Thing"])
@pytest.mark.parametrize("section", ["env.id", "agent.encoder", "loss.algorithm"])
def test_a_strangers_run_imports_and_calls_nothing_without_trust(tmp_path: Path, section, reference):
    vmpo.train(config(frames=96), tmp_path / "run", quiet=True)
    file = tmp_path / "run" / "config.json"
    values = json.loads(file.read_text())
    part, field = section.split(".")
    values[part][field] = reference
    file.write_text(json.dumps(values))
    for use in (vmpo.load, vmpo.resume, lambda directory: vmpo.evaluate(directory, 1)):
        with pytest.raises(vmpo.UserError, match="trust"):
            use(tmp_path / "run")


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"agent": {"encoder": "standart"}}, "did you mean 'standard'"),
        ({"agent": {"encoder": "samples:narrow_encoder"}}, r"\(2, 3\).*\(2, 5\)"),
        ({"agent": {"encoder": "samples:Nothing"}}, "unknown encoder in samples"),
        ({"loss": {"algorithm": "vpmo"}}, "did you mean 'vmpo'"),
        ({"loss": {"algorithm": "samples:nothing"}}, "unknown loss in samples"),
        ({"loss": {"algorithm": "no_such_module:loss"}}, "cannot import 'no_such_module'"),
    ],
)
def test_own_code_that_does_not_fit_is_refused_before_anything_is_written(tmp_path, sections, message):
    wrong = small_config(env={"id": "CartPole-v1"}, **sections)
    with pytest.raises(vmpo.UserError, match=message):
        vmpo.train(wrong, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
