"""The report in headless Chromium: what it draws, and what happens when a reader clicks, hovers or types."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from browser import CHROMIUM, chromium
from report_samples import HOSTILE, groups_of, large_groups, write_evaluation, write_run

from vmpo import report
from vmpo.report.page import render

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")

CURVE = "#curves .chart"
GIF = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
"""One transparent pixel."""


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Three seeds of one agent and a run of another; the last is shorter and worse. One line is damaged."""
    folder = tmp_path_factory.mktemp("runs")
    seeds = [
        write_run(folder / f"good-seed{s}", run__seed=s, rows=40, score=lambda i, _, s=s: 5.0 * i + 30 * s)
        for s in range(3)
    ]
    other = write_run(folder / "other", rows=20, loss__discount=0.5, score=lambda i, _: -1.0 * i)
    with open(other / "metrics.jsonl", "a") as file:
        file.write("torn")
    report.write([*seeds, other], folder / "report.html")
    return folder / "report.html"


@pytest.fixture
def opened(tab, page):
    tab.view(1300, 900)
    tab.open(page)
    yield tab
    assert tab.errors == []
    assert tab.requests == [page.resolve().as_uri()], "the page has asked for something else"


def paths(tab, kind):
    return tab.run(f"document.querySelectorAll('{CURVE} path.{kind}').length")


def drawn(tab, kind="main"):
    return tab.run(f"[...document.querySelectorAll('{CURVE} path.{kind}')].map((path) => path.getAttribute('d'))")


def test_every_section_is_there(opened):
    titles = ["Runs", "Learning curves", "Aggregate scores", "Dual health", "Throughput", "Settings that differ"]
    assert opened.texts("h2") == titles
    assert opened.texts("#contents a") == titles
    assert opened.texts("#summary")[0].startswith("4 runs in 2 groups on 1 task, written 20")
    assert opened.texts("#notes p") == ["other: 1 damaged line of metrics.jsonl skipped"]
    assert opened.texts("#health h3") == [
        "Temperature η",
        "E-step KL over its bound ε_η",
        "KL of the policy over its bound ε_α",
        "Multiplier α of the policy",
        "Entropy of the policy",
    ]
    assert opened.texts("#settings tbody td:first-child") == ["loss.discount", "run.seed"]
    assert opened.texts("#settings tbody tr:last-child td") == ["run.seed", "0, 1, 2", "0"]


def test_a_group_is_drawn_as_its_runs_their_mean_and_its_interval(opened):
    assert (paths(opened, "main"), paths(opened, "faint"), paths(opened, "band")) == (2, 3, 1)
    assert opened.texts(f"{CURVE} text.direct") == ["good (3)", "other"]


def test_scores_are_aggregated_and_profiled_where_there_are_several(opened):
    assert opened.texts("#scores th") == ["group", "runs", "IQM", "mean"]
    good, other = opened.run("[...document.querySelectorAll('#scores tbody tr')].map((row) => row.textContent)")
    # Last returns of 195, 225 and 255; a single run has no interval.
    assert good == " good3225 [195, 255]225 [195, 255]"
    assert other == " other1−19−19"
    assert opened.run("document.querySelectorAll('#scores path.main').length") == 1


def test_hovering_reads_out_values_at_the_pointer(opened):
    assert opened.texts(".tip") == []
    opened.hover(f"{CURVE} svg.plot", 0.3)
    (title,) = opened.texts(f"{CURVE} .tip b")
    assert title.endswith("k frames")
    frames = float(title.removesuffix("k frames")) * 1000
    values = [float(text.split(" [")[0].replace("−", "-")) for text in opened.texts(f"{CURVE} .tip .value")]
    index = frames / 4000 - 1
    assert values == pytest.approx([5 * index + 30, -index], abs=0.5)
    # Three seeds 30 apart: the interval of their mean reaches from the worst to the best.
    assert opened.run("valueAt([0, 10], [1, 2], 5)") == 1.5
    low, high = opened.texts(f"{CURVE} .tip .interval")[0].strip(" []").split(", ")
    assert (float(low), float(high)) == (pytest.approx(5 * index, abs=0.6), pytest.approx(5 * index + 60, abs=0.6))
    assert opened.run("document.querySelectorAll('.dot').length") == 2
    opened.hover("h1")
    assert opened.texts(".tip") == []


def test_the_arrow_keys_move_the_read_out(opened):
    opened.run(f"document.querySelector('{CURVE} svg.plot').focus()")
    opened.key("ArrowRight")
    first = opened.texts(".tip b")
    opened.key("ArrowRight")
    second = opened.texts(".tip b")
    assert len(first) == len(second) == 1
    assert first != second
    opened.key("Escape")
    assert opened.texts(".tip") == []


def test_a_group_is_hidden_and_shown_by_its_chip(opened):
    opened.click("#group-0")
    assert (paths(opened, "main"), paths(opened, "faint"), paths(opened, "band")) == (1, 0, 0)
    assert opened.run("document.querySelector('#group-0').getAttribute('aria-pressed')") == "false"
    assert opened.run("document.querySelectorAll('#runs input:checked').length") == 1
    opened.click("#group-1")
    assert opened.texts(f"{CURVE} text") == ["nothing to show"]
    opened.click("#group-0")
    assert (paths(opened, "main"), paths(opened, "faint")) == (1, 3)


def test_a_run_is_left_out_of_the_mean_by_its_box(opened):
    before = drawn(opened)[0]
    opened.click("#run-2")
    assert (paths(opened, "main"), paths(opened, "faint")) == (2, 2)
    assert drawn(opened)[0] != before
    opened.hover(f"{CURVE} svg.plot", 0.9)
    assert "good (2)" in opened.texts(f"{CURVE} .tip")[0]
    opened.click("#run-1")
    assert (paths(opened, "main"), paths(opened, "faint"), paths(opened, "band")) == (2, 0, 0)
    opened.click("#run-1")
    opened.click("#run-2")
    assert drawn(opened)[0] == before


def test_the_axis_changes_to_agent_steps_and_time(opened):
    label, ticks = f"{CURVE} .label-x", f"{CURVE} .tick-x"
    assert opened.texts(label) == ["frames"]
    frames = opened.texts(ticks)
    assert frames[-1] == "160k"
    opened.click("#axis-agent_steps")
    assert opened.texts(label) == ["agent steps"]
    assert opened.texts(ticks)[-1] == "40k"
    opened.click("#axis-seconds")
    assert opened.texts(label) == ["time of training"]
    assert opened.texts(ticks)[-1] == "20 s"
    opened.click("#axis-frames")
    assert opened.texts(ticks) == frames


def test_logarithmic_scales_on_both_axes(opened):
    kinds = f"(({{xscale, yscale}}) => [xscale, yscale])(document.querySelector('{CURVE}').dataset)"
    assert opened.run(kinds) == ["linear", "linear"]
    opened.click("#logX")
    assert opened.run(kinds) == ["log", "linear"]
    assert opened.texts(f"{CURVE} .tick-x") == ["10k", "100k"]
    opened.click("#logY")
    # Returns reach below zero.
    assert opened.run(kinds) == ["log", "symmetric log"]
    opened.click("#group-1")
    opened.click("#logX")
    assert opened.run(kinds)[0] == "linear"
    assert not any("NaN" in path or "Infinity" in path for path in drawn(opened) + drawn(opened, "band"))


def test_the_pages_bootstrap_agrees_with_numpy(opened):
    rows = np.random.default_rng(0).normal(size=(6, 4))
    band = opened.run(f"bootstrapBand({rows.tolist()}, 4000)")
    drawn_again = rows[np.random.default_rng(1).integers(6, size=(200_000, 6))].mean(axis=1)
    np.testing.assert_allclose(band["mean"], rows.mean(axis=0))
    spread = drawn_again.std(axis=0)
    for end, percent in (("low", 2.5), ("high", 97.5)):
        assert (np.abs(np.array(band[end]) - np.percentile(drawn_again, percent, axis=0)) < 0.12 * spread).all()


@pytest.mark.parametrize("value", [0, 1e-9, 0.012345, -3.14159, 999, 12345, 1.5e6, 7e12, 1e20])
def test_numbers_are_written_short_and_right(opened, value):
    text = opened.run(f"formatNumber({value!r})")
    assert len(text) <= 7
    units = {"k": "e3", "M": "e6", "G": "e9"}
    read = float("".join(units.get(letter, letter) for letter in text.replace("−", "-")))
    assert read == pytest.approx(value, rel=0.02)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-5, 3), (499.99, 500.01), (1e-9, 2e-9), (0, 4.8e6), (7, 7)])
@pytest.mark.parametrize("log", ["true", "false"])
def test_ticks_lie_within_the_scale_and_differ(opened, low, high, log):
    ticks, texts, pixels = opened.run(
        f"(() => {{ const s = makeScale([{low}, {high}], [0, 100], {{log: {log}}});"
        " return [s.ticks, s.ticks.map((t) => formatNumber(t, s.digits)), s.ticks.map(s.map)]; })()"
    )
    assert 1 <= len(ticks) <= 12
    assert len(set(texts)) == len(texts)
    assert all(-1e-6 <= pixel <= 100 + 1e-6 for pixel in pixels)


@pytest.mark.parametrize(("width", "height", "dark"), [(390, 844, False), (1300, 900, True), (768, 1024, False)])
def test_nothing_is_wider_than_the_screen(tab, page, width, height, dark):
    tab.view(width, height, dark=dark)
    tab.open(page)
    assert tab.run("document.documentElement.scrollWidth") == width
    background = tab.run("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, background.strip("rgb()").split(",")))
    assert (brightness < 150) == dark
    assert tab.errors == []


def test_a_dark_screen_prints_on_white_with_every_chart(tab, page, tmp_path):
    tab.view(1300, 900, dark=True, media="print")
    tab.open(page)
    assert tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.run("getComputedStyle(document.querySelector('#axis')).display") == "none"
    tab.print(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    assert tab.run("printing") is False, "the page is drawn for the screen again"
    tab.view(1300, 900)


def test_markup_in_names_is_shown_and_not_run(tab, tmp_path):
    name = HOSTILE.replace("/", "∕")
    first = write_run(tmp_path / name, tasks=(HOSTILE, "b" + HOSTILE), env__level_cache=HOSTILE, preset=HOSTILE)
    second = write_run(tmp_path / "second", tasks=(HOSTILE, "b" + HOSTILE), run__seed=1)
    (first / "videos").mkdir()
    (first / "videos" / f"{name}.gif").write_bytes(b"GIF89a")
    with open(first / "metrics.jsonl", "a") as file:
        file.write(HOSTILE)
    report.write([first, second], tmp_path / "report.html")
    tab.view(1300, 900)
    tab.open(tmp_path / "report.html")
    tab.hover(f"{CURVE} svg.plot", 0.5)
    assert tab.texts(f"{CURVE} h3")[0] == HOSTILE
    assert HOSTILE in " ".join(tab.texts("#settings td"))
    assert tab.run("typeof window.hacked") == "undefined"
    assert tab.run("document.querySelectorAll('script').length") == 2
    assert tab.run("document.querySelectorAll('img:not([src^=\"data:\"])').length") == 0
    assert tab.requests[0].startswith("file:")
    assert all(request.startswith("data:") for request in tab.requests[1:])


def test_videos_are_shown_from_the_page_itself(tab, tmp_path):
    run = write_run(tmp_path / "a")
    (run / "videos").mkdir()
    (run / "videos" / "play.gif").write_bytes(base64.b64decode(GIF))
    report.write([run], tmp_path / "report.html")
    tab.open(tmp_path / "report.html")
    assert tab.texts("#videos figcaption") == ["a: play.gif"]
    assert tab.run("document.querySelector('#videos img').decode().then(() => 'decoded')") == "decoded"
    assert tab.run("document.querySelector('#videos img').naturalWidth") == 1
    assert tab.errors == []


def test_a_run_without_any_metrics_still_opens(tab, tmp_path):
    path = write_run(tmp_path / "a", rows=0)
    report.write([path], tmp_path / "report.html")
    tab.open(tmp_path / "report.html")
    assert tab.texts("#notes p") == ["a: metrics.jsonl has no line that can be read"]
    assert tab.errors == []


def test_fifty_runs_of_ten_thousand_points_are_thinned_and_all_drawn(tab, tmp_path):
    (tmp_path / "report.html").write_text(render(large_groups(50, 10_000)))
    tab.view(1300, 900)
    tab.open(tmp_path / "report.html")
    assert "at most 1000 points" in " ".join(tab.texts("#curves p"))
    assert paths(tab, "faint") == 50
    assert tab.errors == []


def test_atari_levels_are_drawn_beside_the_paper(tab, tmp_path):
    run = write_run(tmp_path / "a", tasks=("boxing", "pong"), env__suite="atari")
    (tmp_path / "report.html").write_text(render(groups_of(run)))
    tab.open(tmp_path / "report.html")
    assert tab.run("document.querySelectorAll('#levels-atari57 rect').length") == 6
    assert tab.texts("#levels-atari57 th") == ["level", "random", "human", "IMPALA (paper)", "V-MPO (paper)", "a"]
    assert tab.texts("#levels-atari57 tbody td:first-child") == ["boxing", "pong"]


@pytest.fixture
def sweep(tab, tmp_path):
    """Six trials of two varied settings, the third of which is the best, and a seed that differs by itself."""
    folder = tmp_path / "sweep"
    for index, (rate, bound) in enumerate(
        [(1e-4, 0.1), (1e-3, 0.2), (1e-2, 0.3), (2e-4, 0.4), (3e-4, 0.5), (5e-3, 0.6)]
    ):
        write_run(
            folder / f"trial_{index:03d}",
            score=lambda i, _, index=index: -abs(index - 2.0) * i,
            learner__learning_rate=rate,
            loss__epsilon_policy=bound,
            run__seed=index,
        )
    (folder / "sweep.json").write_text("{}")
    report.write([folder], tmp_path / "report.html")
    tab.view(1300, 900)
    tab.open(tmp_path / "report.html")
    yield tab
    assert tab.errors == []


def test_a_sweep_is_drawn_as_a_parallel_plot(sweep):
    assert sweep.texts("#sweep h2") == ["Settings against return"]
    labels = sweep.texts("#sweep svg > text")
    assert [name for name in labels if name[0].isalpha()] == ["epsilon_policy", "learning_rate", "return"]
    assert sweep.run("document.querySelectorAll('#sweep path.trial').length") == 6


def test_a_trial_is_read_by_the_arrow_keys_and_by_the_pointer(sweep):
    sweep.run("document.querySelector('#sweep svg').focus()")
    sweep.key("ArrowRight")
    assert sweep.texts("#sweep p.chosen")[0].startswith(
        "trial_002: loss.epsilon_policy 0.3, learner.learning_rate 0.01, return "
    )
    sweep.key("ArrowLeft")
    assert sweep.texts("#sweep p.chosen")[0].startswith("trial_00")
    assert not sweep.texts("#sweep p.chosen")[0].startswith("trial_002")
    # The best run ends at the top of the last axis, where no other line comes near.
    sweep.hover("#sweep svg", across=0.963, down=35 / 300)
    assert sweep.texts("#sweep p.chosen")[0].startswith("trial_002")


def test_a_hidden_trial_is_not_drawn(sweep):
    sweep.click("#run-2")
    assert sweep.run("document.querySelectorAll('#sweep path.trial').length") == 5


def test_the_settings_of_a_single_run_are_shown_those_that_were_changed_first(tab, tmp_path):
    run = write_run(tmp_path / "a", preset="cartpole", loss__discount=0.5)
    report.write([run], tmp_path / "report.html")
    tab.view(390, 844)
    tab.open(tmp_path / "report.html")
    assert tab.texts("#settings > .scroll th") == ["setting", "preset cartpole", "this run"]
    shown = tab.texts("#settings > .scroll td")
    assert shown[shown.index("loss.discount") + 2] == "0.5"
    assert tab.run("document.querySelector('#settings details').open") is False
    tab.click("#settings summary")
    assert tab.run("document.querySelector('#settings details').open") is True
    assert "run.frames" in tab.texts("#settings details td")
    assert tab.run("document.documentElement.scrollWidth <= window.innerWidth")
    assert tab.errors == []


def test_greedy_evaluations_stand_beside_their_runs(tab, tmp_path):
    runs = [write_run(tmp_path / name, run__seed=seed) for seed, name in enumerate("abc")]
    write_evaluation(runs[0], 20_000, mean_return=432.5, std_return=3.25)
    write_evaluation(runs[1], 10_000, tasks={"x": {"mean_return": 7.5}, "y": {"mean_return": 8}})
    report.write(runs, tmp_path / "report.html")
    tab.view(1300, 900)
    tab.open(tmp_path / "report.html")
    assert tab.texts("#runs > .scroll td:last-child") == ["432.5 ± 3.25", "2 tasks at 10k steps", "–"]
    assert tab.texts("#runs details td") == ["b", "x", "7.5", "b", "y", "8"]
    assert tab.errors == []
