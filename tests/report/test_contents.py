"""What a report says of its runs: thinned curves, aggregates on a common scale, levels beside the paper."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from report_samples import groups_of, large_groups, write_run

from vmpo import presets
from vmpo.config import to_dict
from vmpo.errors import UserError
from vmpo.report import aggregates, curves
from vmpo.report.page import contents
from vmpo.scores import benchmarks


def test_thinning_keeps_the_ends_and_every_peak():
    values = np.random.default_rng(0).normal(size=10_000)
    values[4321], values[7777] = 50, -50
    kept = curves.thinned(values, 1000)
    assert len(kept) <= 1000
    assert len(kept) > 900
    assert {0, 4321, 7777, 9999} <= set(kept.tolist())
    assert (np.diff(kept) > 0).all()
    # Each stretch between kept points lies within what is kept around it.
    edges = np.linspace(1, 9999, 500).astype(int)
    for start, stop in itertools.pairwise(edges):
        inside = kept[(kept >= start) & (kept < stop)]
        assert values[inside].max() == values[start:stop].max()
        assert values[inside].min() == values[start:stop].min()


@pytest.mark.parametrize("length", [0, 1, 2, 99, 100])
def test_short_curves_are_kept_whole(length):
    np.testing.assert_array_equal(curves.thinned(np.arange(float(length)), 100), np.arange(length))


@pytest.mark.parametrize("length", [101, 102, 150, 199, 1001])
def test_thinned_curves_have_at_most_the_points_asked_for(length):
    kept = curves.thinned(np.random.default_rng(length).normal(size=length), 100)
    assert 50 <= len(kept) <= 100
    assert {0, length - 1} <= set(kept.tolist())


def test_numbers_are_short_and_never_nan():
    values = np.array([1.0, 1 / 3, np.nan, np.inf, -1234567.8, 1e-9])
    assert curves.numbers(values) == [1, 0.333333, None, None, -1234570, 1e-9]


def test_the_page_has_a_budget_of_points(monkeypatch):
    assert curves.points_per_curve(large_groups(5, 10)) == curves.MOST_POINTS
    # 200 runs, each with a return and six curves of a third of its points.
    assert curves.points_per_curve(large_groups(200, 10)) == curves.BUDGET // (200 * 3)
    monkeypatch.setattr(curves, "BUDGET", 1000)
    assert curves.points_per_curve(large_groups(200, 10)) == curves.FEWEST_POINTS


def test_an_embedded_curve_agrees_with_the_run(tmp_path):
    (group,) = groups_of(write_run(tmp_path / "a", rows=4))
    drawn = curves.curves(group.runs[0], 1000)
    assert drawn["clocks"] == {
        "agent_steps": [1000, 2000, 3000, 4000],
        "frames": [4000, 8000, 12000, 16000],
        "seconds": [0.5, 1, 1.5, 2],
    }
    assert drawn["curves"]["return CartPole-v1"] == [[1000, 2000, 3000, 4000], [0, 10, 20, 30]]
    assert list(drawn["curves"]) == [
        "return CartPole-v1",
        "health temperature",
        "health e_step_kl_over_bound",
        "health kl_over_bound/policy",
        "health alpha/policy",
        "health entropy",
        "throughput steps_per_second",
    ]


def atari_runs(folder, seeds):
    """The last returns are 190 on boxing, 290 on pong, plus ten times the seed."""
    return [
        write_run(
            folder / f"atari-seed{seed}",
            tasks=("boxing", "pong"),
            env__suite="atari",
            run__seed=seed,
            score=lambda index, task, seed=seed: 10.0 * index + 100 * task + 10 * seed,
        )
        for seed in range(seeds)
    ]


def test_atari_scores_are_aggregated_human_normalised(tmp_path):
    groups = groups_of(*atari_runs(tmp_path, 3))
    (block,) = aggregates.score_blocks(groups)
    assert (block["title"], block["normalised"], block["tasks"]) == ("atari57", True, 2)
    (row,) = block["groups"]
    assert (row["tasks"], row["runs"]) == (2, [3, 3])
    normalised = benchmarks()["atari57"].normalised
    expected = np.mean([normalised("boxing", 200.0), normalised("pong", 300.0)])
    value, low, high = row["estimates"]["mean"]
    assert value == pytest.approx(expected, rel=1e-5)
    assert low < value < high
    assert row["estimates"]["median"] == row["estimates"]["mean"]
    assert row["profile"]["shares"][0] == 1
    assert row["profile"]["shares"][-1] == 0


def test_returns_without_a_common_scale_are_not_mixed(tmp_path):
    seeds = [write_run(tmp_path / f"a{seed}", tasks=("x", "y"), run__seed=seed) for seed in range(2)]
    blocks = aggregates.score_blocks(groups_of(*seeds))
    assert [(block["title"], block["tasks"], block["normalised"]) for block in blocks] == [
        ("x", 1, False),
        ("y", 1, False),
    ]
    assert [block["groups"][0]["estimates"]["mean"][0] for block in blocks] == [190, 290]


def test_a_single_score_is_no_aggregate(tmp_path):
    assert aggregates.score_blocks(groups_of(write_run(tmp_path / "a"))) == []


def test_levels_stand_beside_the_papers_columns(tmp_path):
    groups = groups_of(write_run(tmp_path / "other"), *atari_runs(tmp_path, 2))
    (table,) = aggregates.level_tables(groups)
    assert (table["benchmark"], table["groups"]) == ("atari57", [1])
    assert [row["level"] for row in table["rows"]] == ["boxing", "pong"]
    pong = table["rows"][1]
    reference = benchmarks()["atari57"].levels["pong"]
    assert pong["returns"] == [295]
    assert {agent: value for agent, (value, _) in pong["published"].items()} == reference.published
    assert set(reference.published) == {"IMPALA", "V-MPO"}
    expected = 100 * (295 - reference.random) / (reference.human - reference.random)
    assert pong["normalised"] == [pytest.approx(expected, rel=1e-5)]


def test_settings_that_were_varied_stand_beside_the_return_of_each_run(tmp_path):
    runs = [
        write_run(tmp_path / name, learner__learning_rate=rate, loss__returns=kind, run__seed=seed)
        for seed, (name, rate, kind) in enumerate([("a", 1e-3, "gae"), ("b", 1e-2, "n_step"), ("c", 1e-4, "vtrace")])
    ]
    plot = contents(groups_of(*runs))["parallel"]
    assert plot["fields"] == ["learner.learning_rate"], "neither words nor seeds"
    assert [row["values"] for row in plot["rows"]] == [[1e-3], [1e-2], [1e-4]]
    assert [row["score"] for row in plot["rows"]] == [190.0] * 3
    assert contents(groups_of(*runs[:2]))["parallel"] is None


def test_a_sweep_stands_for_its_trials(tmp_path):
    write_run(tmp_path / "sweep" / "trial_001")
    write_run(tmp_path / "sweep" / "trial_000")
    (tmp_path / "sweep" / "sweep.json").write_text("{}")
    assert [run.name for group in groups_of(tmp_path / "sweep") for run in group.runs] == ["trial_000", "trial_001"]
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "sweep.json").write_text("{}")
    with pytest.raises(UserError, match="no trial of the sweep"):
        groups_of(tmp_path / "empty")


def test_a_single_run_has_its_settings_beside_those_of_its_preset(tmp_path):
    preset = to_dict(presets.get("pendulum").config)
    (tmp_path / "a").mkdir()
    values = {**preset, "loss": {**preset["loss"], "discount": 0.5}}
    (tmp_path / "a" / "config.json").write_text(json.dumps(values))
    single = contents(groups_of(tmp_path / "a"))["settings"]["single"]
    assert single["changed"] == {"loss.discount": [str(preset["loss"]["discount"]), "0.5"]}
    assert single["all"]["env.id"] == "Pendulum-v1"
    other = write_run(tmp_path / "b", preset="of another version")
    assert contents(groups_of(other))["settings"]["single"]["changed"] is None
    assert contents(groups_of(tmp_path / "a", other))["settings"]["single"] is None
