"""Checkpoints that are damaged, old, half-written or the best: which one is read, and what is said of the others."""

from __future__ import annotations

import errno
import json
import random

import pytest
import torch
from samples import new_learner, random_unrolls, small_config

import vmpo
from vmpo.errors import UserError
from vmpo.learning import checkpoint


@pytest.fixture
def three(tmp_path):
    """A folder with the checkpoints of steps 1, 2 and 3."""
    learner = new_learner(small_config())
    for seed in range(3):
        learner.update(random_unrolls(learner, seed))
        checkpoint.save(tmp_path, learner, {"agent_steps": seed}, {}, keep=5)
    return tmp_path


def tensors_of(path):
    return path / "tensors.safetensors"


def flip_a_byte(path):
    data = bytearray(tensors_of(path).read_bytes())
    data[-5] ^= 0xFF
    tensors_of(path).write_bytes(data)


DAMAGES = {
    "a flipped byte": flip_a_byte,
    "cut short": lambda path: tensors_of(path).write_bytes(tensors_of(path).read_bytes()[:-100]),
    "empty tensors": lambda path: tensors_of(path).write_bytes(b""),
    "no tensors": lambda path: tensors_of(path).unlink(),
    "no counters": lambda path: (path / "progress.json").unlink(),
    "torn counters": lambda path: (path / "progress.json").write_text('{"format": 2, "learn'),
    "counters of another kind": lambda path: (path / "progress.json").write_text("[1, 2]"),
    "negative counters": lambda path: (path / "progress.json").write_text('{"format": 2, "learner_step": -4}'),
    "bytes for counters": lambda path: (path / "progress.json").write_bytes(b"\xff\xfe\x00"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_passed_over(three, damage):
    newest = checkpoint.available(three)[-1]
    DAMAGES[damage](newest)
    found = checkpoint.latest(three)
    assert found.progress["learner_step"] == 2
    assert len(found.damaged) == 1
    assert newest.name in found.damaged[0]


def test_where_all_are_damaged_the_newest_is_named(three):
    for path in checkpoint.available(three):
        flip_a_byte(path)
    with pytest.raises(UserError, match=r"step_0000000003 is damaged.*and none of 2 older can be read"):
        checkpoint.latest(three)


def test_a_resumed_run_sets_damaged_checkpoints_aside_and_writes_their_steps_again(tmp_path, capsys):
    vmpo.train(small_config(run={"frames": 96, "checkpoint_seconds": 0.0}), tmp_path, quiet=True)
    flip_a_byte(checkpoint.available(tmp_path / "checkpoints")[-1])
    vmpo.resume(tmp_path, frames=120)
    assert "passed over" in "".join(capsys.readouterr())
    found = checkpoint.latest(tmp_path / "checkpoints")
    assert (found.progress["learner_step"], found.damaged) == (5, ())
    assert [path.name[:12] for path in (tmp_path / "checkpoints").glob("damaged_*")] == ["damaged_step"]


def test_the_first_format_is_still_read(three):
    path = checkpoint.available(three)[-1]
    progress = json.loads((path / "progress.json").read_text())
    del progress["checksum"], progress["score"]
    (path / "progress.json").write_text(json.dumps({**progress, "format": 1}))
    assert checkpoint.latest(three).progress["learner_step"] == 3


def test_a_later_format_is_refused_by_its_number(three):
    path = checkpoint.available(three)[-1]
    progress = json.loads((path / "progress.json").read_text())
    (path / "progress.json").write_text(json.dumps({**progress, "format": 7}))
    with pytest.raises(UserError, match="has format 7; this version reads 1 to 2"):
        checkpoint.load(path)


def test_the_best_checkpoint_outlives_the_newest(tmp_path):
    learner = new_learner(small_config())
    for seed, score in enumerate([1.0, 9.0, float("nan"), 3.0, 2.0, 4.0]):
        learner.update(random_unrolls(learner, seed))
        checkpoint.save(tmp_path, learner, {}, {}, keep=2, score=score)
    assert [int(path.name[5:]) for path in checkpoint.available(tmp_path)] == [2, 5, 6]
    assert checkpoint.best(tmp_path).name == "step_0000000002"


def test_what_a_killed_process_left_is_no_checkpoint_and_is_removed(three):
    left = three / ".step_0000000004.123.tmp"
    left.mkdir()
    (left / "tensors.safetensors").write_bytes(b"half")
    assert checkpoint.latest(three).progress["learner_step"] == 3
    learner = new_learner(small_config())
    learner.learner_step = 9
    checkpoint.save(three, learner, {}, {}, keep=5)
    assert not left.exists()


def test_a_full_disk_leaves_the_checkpoints_as_they_were(three, monkeypatch):
    before = {path: tensors_of(path).read_bytes() for path in checkpoint.available(three)}
    learner = new_learner(small_config())
    learner.learner_step = 9

    def no_space(tensors, path):
        path.write_bytes(b"the first block")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", no_space)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(three, learner, {}, {}, keep=1)
    assert {path: tensors_of(path).read_bytes() for path in checkpoint.available(three)} == before
    assert sorted(path.name for path in three.iterdir()) == sorted(path.name for path in before)


def test_training_goes_on_while_the_disk_is_full(tmp_path, monkeypatch, capsys):
    save_file, calls = checkpoint.save_file, []

    def full_for_a_while(tensors, path):
        calls.append(path)
        if 1 < len(calls) < 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        save_file(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", full_for_a_while)
    result = vmpo.train(small_config(run={"frames": 240, "checkpoint_seconds": 0.0}), tmp_path)
    assert result.frames == 240
    assert "a checkpoint could not be written, training goes on" in "".join(capsys.readouterr())
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["faults/disk"] == 3
    assert checkpoint.latest(tmp_path / "checkpoints").progress["frames"] == 240


def test_metrics_that_cannot_be_written_do_not_end_the_training(tmp_path, monkeypatch, capsys):
    def no_space(path, lines):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("vmpo.metrics._append", no_space)
    assert vmpo.train(small_config(), tmp_path).finished
    assert "metrics could not be written" in "".join(capsys.readouterr())


def test_random_damage_gives_our_own_error_or_nothing(three):
    """A bounded version of benchmarks/fuzz.py."""
    generator = random.Random(0)
    path = checkpoint.available(three)[-1]
    originals = {name: (path / name).read_bytes() for name in ("progress.json", "tensors.safetensors")}
    refused = 0
    for _ in range(300):
        name = generator.choice(list(originals))
        data = bytearray(originals[name])
        for _ in range(generator.randint(1, 8)):
            data[generator.randrange(min(len(data), 4000))] = generator.randrange(256)
        (path / name).write_bytes(data[: generator.choice([len(data), generator.randrange(len(data))])])
        try:
            loaded = checkpoint.load(path)
            assert all(isinstance(tensor, torch.Tensor) for tensor in loaded.tensors.values())
        except UserError:
            refused += 1
        (path / name).write_bytes(originals[name])
    assert refused > 250
