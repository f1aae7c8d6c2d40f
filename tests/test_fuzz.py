"""Files from strangers: whatever stands in a configuration or a checkpoint, only our own errors come out.

A few hundred cases in ``make test``; ``VMPO_FUZZ=10000 pytest tests/test_fuzz.py`` for more.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from samples import new_learner, random_unrolls, small_config

from vmpo.config import Config, from_dict, to_dict
from vmpo.errors import UserError
from vmpo.learning import checkpoint
from vmpo.problems import problems
from vmpo.run_directory import RunDirectory

CASES = int(os.environ.get("VMPO_FUZZ", "200"))
fuzzed = settings(
    max_examples=CASES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
SECTIONS = to_dict(Config())
paths = [
    ("preset",),
    *((section, field) for section, fields in SECTIONS.items() if section != "preset" for field in fields),
]


def snapshot(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@fuzzed
@given(data=st.binary(max_size=300))
def test_bytes_for_a_configuration(tmp_path, data):
    directory = RunDirectory(tmp_path)
    directory.config_file.write_bytes(data)
    before = snapshot(tmp_path)
    with pytest.raises(UserError):
        directory.read_config()
    assert snapshot(tmp_path) == before


@fuzzed
@given(path=st.sampled_from(paths), value=json_values)
def test_any_value_in_any_field_of_a_configuration(tmp_path, path, value):
    values = json.loads(json.dumps(SECTIONS))
    place = values
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    directory = RunDirectory(tmp_path)
    directory.config_file.write_text(json.dumps(values))
    try:
        config = directory.read_config()
    except UserError:
        return
    assert to_dict(from_dict(to_dict(config))).keys() == SECTIONS.keys()
    assert all(isinstance(problem, str) for problem in problems(config))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    return checkpoint.save(folder, new_learner(small_config()), {"agent_steps": 0, "seconds": 0.0}, {}, keep=1)


@fuzzed
@given(
    changes=st.dictionaries(
        st.sampled_from(["format", "checksum", "learner_step", "version", "score", "seconds"]), json_values
    )
)
def test_any_counters_of_a_checkpoint(tmp_path, saved, changes):
    progress = json.loads((saved / "progress.json").read_text())
    (tmp_path / "tensors.safetensors").write_bytes((saved / "tensors.safetensors").read_bytes())
    (tmp_path / "progress.json").write_text(json.dumps({**progress, **changes}))
    before = snapshot(tmp_path)
    try:
        loaded = checkpoint.load(tmp_path)
        checkpoint.online_weights(loaded)
        checkpoint.restore(new_learner(small_config()), loaded)
    except UserError:
        pass
    assert snapshot(tmp_path) == before


def write_first_format(folder, saved):
    """Counters without a checksum, so that the reader of tensors itself is tried."""
    progress = json.loads((saved / "progress.json").read_text())
    del progress["checksum"]
    (folder / "progress.json").write_text(json.dumps({**progress, "format": 1}))


@fuzzed
@given(data=st.binary(max_size=2000), where=st.integers(0, 3000), cut=st.booleans())
def test_any_bytes_in_the_tensors_of_a_checkpoint(tmp_path, saved, data, where, cut):
    whole = bytearray((saved / "tensors.safetensors").read_bytes())
    whole[where : where + len(data)] = data
    if cut:
        whole = whole[:where]
    (tmp_path / "tensors.safetensors").write_bytes(whole)
    write_first_format(tmp_path, saved)
    try:
        loaded = checkpoint.load(tmp_path)
        checkpoint.restore(new_learner(small_config()), loaded)
    except UserError:
        pass


@fuzzed
@given(
    names=st.lists(
        st.sampled_from(["online.x", "adam.online.value_readout.bias.exp_avg", "popart.mean", "../up"]), unique=True
    ),
    shape=st.lists(st.integers(0, 4), max_size=3),
    dtype=st.sampled_from([torch.float32, torch.int64, torch.bool, torch.float64]),
)
def test_tensors_of_any_name_shape_and_type(tmp_path, saved, names, shape, dtype):
    loaded = checkpoint.load(saved)
    tensors = {**loaded.tensors, **{name: torch.zeros(shape, dtype=dtype) for name in names}}
    save_file(tensors, tmp_path / "tensors.safetensors")
    write_first_format(tmp_path, saved)
    before = snapshot(tmp_path)
    try:
        learner = new_learner(small_config())
        checkpoint.restore(learner, checkpoint.load(tmp_path))
        learner.update(random_unrolls(learner, 0))
    except UserError:
        pass
    assert snapshot(tmp_path) == before
