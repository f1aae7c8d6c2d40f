"""The reported experiments can be run, and the results page is drawn from committed files alone."""

from __future__ import annotations

import csv
import json
import shlex

import pytest

from benchmarks import results
from benchmarks.experiments import EXPERIMENTS
from vmpo.cli import _configured
from vmpo.options import TrainOptions
from vmpo.problems import problems

GROUPS = [(figure, group) for figure, experiment in EXPERIMENTS.items() for group in experiment.groups]


@pytest.mark.parametrize(("figure", "group"), GROUPS)
def test_every_reported_command_is_valid(figure: str, group: str) -> None:
    _, config, _ = _configured(TrainOptions, "train", shlex.split(EXPERIMENTS[figure].groups[group]))
    assert problems(config) == []


def test_a_curve_is_the_running_mean_over_the_experiments_window(tmp_path) -> None:
    episodes = [{"agent_steps": 10 * n, "seconds": float(n), "return": float(n)} for n in range(1, 31)]
    (tmp_path / "episodes.jsonl").write_text("\n".join(map(json.dumps, episodes)))
    assert results.curve(tmp_path, window=10)[0] == (100, 10.0, 5.5)
    assert results.curve(tmp_path, window=10)[-1] == (300, 30.0, 25.5)
    assert results.curve(tmp_path, window=1000) == [(300, 30.0, 15.5)]


def test_committed_results_have_a_curve_for_each_evaluation_and_are_of_known_experiments() -> None:
    rows = results.evaluations(results.DATA)
    assert rows
    assert {(row["figure"], row["group"]) for row in rows} <= set(GROUPS)
    names = {f"{row['figure']}/{row['group']}-seed{row['seed']}.csv" for row in rows}
    assert names == {str(path.relative_to(results.DATA)) for path in results.DATA.glob("*/*.csv")}


def test_every_committed_figure_can_be_drawn(tmp_path) -> None:
    for figure in sorted(path for path in results.DATA.iterdir() if path.is_dir()):
        results.draw(figure, tmp_path / f"{figure.name}.png")
        assert (tmp_path / f"{figure.name}.png").stat().st_size > 5000


def test_the_table_has_a_row_for_each_curve(tmp_path) -> None:
    lines = [("cartpole", "vmpo", seed, 100, 5, 499.5, 100, 500.0 - seed, 1.5) for seed in (1, 2)]
    with open(tmp_path / "evaluations.csv", "w", newline="") as file:
        csv.writer(file).writerows([results.EVALUATION, *lines])
    header, _, row = results.table(tmp_path).splitlines()
    assert row.startswith("| cartpole | vmpo | `cartpole` | 1, 2 | 100, 100 | 499 ± 1.5, 498 ± 1.5 | 499.5, 499.5 ")
    assert header.count("|") == row.count("|")
