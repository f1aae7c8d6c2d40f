"""Run directories as they are found: whole, damaged, empty, from strangers."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import pytest
from report_samples import groups_of, row, write_evaluation, write_run
from samples import small_config

import vmpo
from vmpo.errors import UserError
from vmpo.report.groups import differences
from vmpo.report.runs import Evaluation, read_runs


def test_curves_and_scores_are_read(tmp_path):
    (run,) = read_runs([write_run(tmp_path / "a", rows=5)])
    assert run.name == "a"
    assert run.task_columns == {"CartPole-v1": "return_mean"}
    assert run.score("CartPole-v1") == 40
    np.testing.assert_array_equal(run.clocks["frames"], [4000, 8000, 12000, 16000, 20000])
    assert run.phase_shares() == pytest.approx({"simulate": 0.2, "infer": 0.1, "learn": 0.65, "rest": 0.05})
    assert run.notes == ()


def test_a_run_of_several_tasks_has_a_curve_for_each(tmp_path):
    (run,) = read_runs([write_run(tmp_path / "a", rows=3, tasks=("pong", "a/b"))])
    assert run.task_columns == {"a/b": "return/a/b", "pong": "return/pong"}
    assert (run.score("pong"), run.score("a/b")) == (20, 120)


def test_damaged_lines_are_skipped_and_counted(tmp_path):
    path = write_run(tmp_path / "a", rows=3)
    damage = [
        b"",
        b'{"agent_steps": 10',
        b"\xff\xfe\x00",
        b"[1, 2]",
        b'{"agent_steps": 5, "frames": 5}',
        b'{"agent_steps": NaN, "frames": 1, "seconds": 1}',
        b'{"agent_steps": true, "frames": 1, "seconds": 1}',
        b"[" * 200_000,
        b'{"agent_steps": 1' + b"0" * 400 + b', "frames": 1, "seconds": 1}',
    ]
    with open(path / "metrics.jsonl", "ab") as file:
        file.write(b"\n".join(damage) + b"\n" + json.dumps(row(3, {"x": 7.0})).encode() + b"\n")
    (run,) = read_runs([path])
    assert run.notes == ("9 damaged lines of metrics.jsonl skipped",)
    assert len(run.clocks["frames"]) == 4
    assert run.score("CartPole-v1") == 7


def test_values_that_are_no_numbers_leave_a_gap_and_not_a_line(tmp_path):
    path = write_run(tmp_path / "a", rows=2)
    lines = [row(2, {"x": 1.0}, return_mean=None), row(3, {"x": 1.0}, return_mean="<b>", temperature=[1])]
    with open(path / "metrics.jsonl", "a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    (run,) = read_runs([path])
    assert run.notes == ()
    np.testing.assert_array_equal(run.columns["return_mean"], [0, 10, np.nan, np.nan])
    assert run.score("CartPole-v1") == 10


@pytest.mark.parametrize("content", [None, b"", b"nonsense\n"])
def test_a_run_without_metrics_is_told_and_kept(tmp_path, content):
    path = write_run(tmp_path / "a")
    (path / "metrics.jsonl").unlink()
    if content is not None:
        (path / "metrics.jsonl").write_bytes(content)
    (run,) = read_runs([path])
    assert "metrics.jsonl" in run.notes[-1]
    assert run.task_columns == {}
    assert run.last("frames") == 0


def test_a_pipe_in_place_of_metrics_does_not_hang(tmp_path):
    path = write_run(tmp_path / "a")
    (path / "metrics.jsonl").unlink()
    os.mkfifo(path / "metrics.jsonl")
    assert read_runs([path])[0].notes == ("has no metrics.jsonl",)


def test_lines_in_disorder_are_sorted(tmp_path):
    path = write_run(tmp_path / "a", rows=4)
    lines = (path / "metrics.jsonl").read_text().splitlines()
    (path / "metrics.jsonl").write_text("\n".join(reversed(lines)))
    (run,) = read_runs([path])
    assert run.score("CartPole-v1") == 30
    assert (np.diff(run.clocks["seconds"]) > 0).all()


def test_names_are_as_long_as_needed_and_a_run_given_twice_counts_once(tmp_path):
    first, second = write_run(tmp_path / "x" / "run"), write_run(tmp_path / "y" / "run")
    assert [run.name for run in read_runs([first, second, first / "." / ""])] == ["x/run", "y/run"]


def test_no_module_that_a_run_names_is_imported(tmp_path, monkeypatch):
    (tmp_path / "trap_of_a_stranger.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    (run,) = read_runs([write_run(tmp_path / "a", tasks=("trap_of_a_stranger:Env-v0",))])
    assert list(run.task_columns) == ["trap_of_a_stranger:Env-v0"]
    assert "trap_of_a_stranger" not in sys.modules


def test_runs_of_other_versions_stand_side_by_side(tmp_path):
    now = write_run(tmp_path / "now")
    older, newer = write_run(tmp_path / "older"), write_run(tmp_path / "newer")
    values = json.loads((now / "config.json").read_text())
    del values["loss"]["popart_rate"]
    (older / "config.json").write_text(json.dumps(values))
    values["loss"]["not_known_here"] = [1, {"x": None}]
    values["not_a_section"] = 3
    (newer / "config.json").write_text(json.dumps(values))
    groups = groups_of(now, older, newer)
    # The missing field has its default, so that the older run has the same settings.
    assert [[run.name for run in group.runs] for group in groups] == [["now", "older"], ["newer"]]
    assert differences(groups) == {"loss.not_known_here": ["–", '[1, {"x": null}]'], "not_a_section": ["–", "3"]}


def test_a_configuration_nested_beyond_reading_is_a_users_error(tmp_path):
    path = write_run(tmp_path / "a")
    (path / "config.json").write_text('{"env": ' + "[" * 100_000)
    with pytest.raises(UserError, match="cannot be read"):
        read_runs([path])


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.write_text("x"), lambda p: p.mkdir()])
def test_what_is_no_run_is_a_users_error(tmp_path, make):
    make(tmp_path / "a")
    with pytest.raises(UserError, match="no run"):
        read_runs([tmp_path / "a"])


def test_runs_that_differ_in_their_seed_alone_form_a_group(tmp_path):
    seeds = [write_run(tmp_path / f"pong-seed{seed}", run__seed=seed) for seed in range(3)]
    other = write_run(tmp_path / "pong-fast", run__seed=0, learner__learning_rate=0.1)
    groups = groups_of(seeds[0], other, *seeds[1:])
    assert [(group.name, len(group.runs)) for group in groups] == [("pong", 3), ("pong-fast", 1)]
    assert groups[0].scores("CartPole-v1") == [190, 190, 190]
    assert differences(groups) == {"learner.learning_rate": ["0.0001", "0.1"], "run.seed": ["0, 1, 2", "0"]}


def test_single_task_runs_of_one_agent_are_a_group_over_games_and_other_sets_of_tasks_are_not(tmp_path):
    single = [write_run(tmp_path / game, tasks=(game,), env__suite="atari") for game in ("pong", "boxing")]
    several = write_run(tmp_path / "both", tasks=("pong", "boxing"), env__suite="atari")
    more = write_run(tmp_path / "more", tasks=("pong", "boxing", "breakout"), env__suite="atari")
    groups = groups_of(*single, several, more)
    assert [len(group.runs) for group in groups] == [2, 1, 1]
    assert groups[0].tasks == ["pong", "boxing"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("cartpole-200", "cartpole-204"), "cartpole"),
        (("games_s1", "games_s2"), "games"),
        (("games-1", "games-2"), "games"),
        (("a", "b"), "custom"),
    ],
)
def test_a_group_is_called_by_what_its_runs_names_share(tmp_path, names, expected):
    (group,) = groups_of(*(write_run(tmp_path / name, run__seed=seed) for seed, name in enumerate(names)))
    assert group.name == expected


def test_the_greedy_evaluation_is_read(tmp_path):
    path = write_run(tmp_path / "a")
    assert read_runs([path])[0].evaluation is None
    write_evaluation(path, 20_000, mean_return=432.5, std_return=3.25, tasks={"x": {"mean_return": 1}})
    assert read_runs([path])[0].evaluation == Evaluation(
        mean=432.5, deviation=3.25, episodes=100, agent_steps=20_000, tasks={"x": 1.0}
    )


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"summary": {"mean_return": NaN}}', "[" * 100_000])
def test_a_damaged_evaluation_is_told_and_left_out(tmp_path, content):
    path = write_run(tmp_path / "a")
    (path / "evaluation.json").write_text(content)
    (run,) = read_runs([path])
    assert (run.evaluation, run.notes) == (None, ("evaluation.json cannot be read",))


@pytest.mark.parametrize("number", [float("nan"), 1e301, "many", None])
def test_an_evaluation_that_is_no_number_is_left_out(tmp_path, number):
    path = write_run(tmp_path / "a")
    write_evaluation(path, 20_000, std_return=number)
    assert read_runs([path])[0].evaluation is None


def test_a_runs_own_evaluation_is_the_one_that_is_read(tmp_path):
    result = vmpo.train(small_config(run={"evaluation_episodes": 3}), tmp_path / "run", quiet=True)
    evaluation = read_runs([tmp_path / "run"])[0].evaluation
    assert evaluation.mean == result.evaluation.summary()["mean_return"]
    assert (evaluation.episodes, evaluation.agent_steps) == (3, result.agent_steps)
