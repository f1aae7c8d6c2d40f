"""The panel on a terminal, plain lines without one, silence when asked for; nothing breaks on odd lines or widths."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
from rich.console import Console

from vmpo import display as display_module
from vmpo.display import Display, LiveDisplay, PlainDisplay, make_display, sparkline, summary_line, time_left

LINE: dict[str, Any] = {
    "learner_step": 20,
    "agent_steps": 51_200,
    "frames": 51_200,
    "seconds": 5.2,
    "steps_per_second": 9812.4,
    "return_mean": 213.4,
    "return_std": 20.5,
    "return_min": 9.0,
    "return_max": 500.0,
    "length_mean": 213.2,
    "episodes": 3417,
    "window_episodes": 100,
    "phase/simulate": 0.41,
    "phase/learn": 0.36,
    "phase/rest": 0.23,
    "temperature": 0.42,
    "e_step_kl_over_bound": 0.81,
    "kl_over_bound/mean": 0.93,
    "kl_over_bound/covariance": 0.2,
    "effective_sample_size": 412.3,
    "value_explained_variance": 0.57,
    "target_age": 3,
    "policy_lag": 1,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def live(width: int, title: str = "cartpole", **options: Any) -> tuple[LiveDisplay, io.StringIO]:
    stream = Terminal()
    console = Console(file=stream, force_terminal=True, width=width, height=60, color_system=None, **options)
    return LiveDisplay(console, 100_000, title), stream


def shown(line: dict[str, Any], width: int = 120, title: str = "cartpole") -> str:
    """All that a terminal receives for one update."""
    display, stream = live(width, title)
    with display:
        display.update(line)
    return stream.getvalue()


def panel(line: dict[str, Any], width: int) -> list[str]:
    """The lines of the panel alone."""
    display, stream = live(width)
    display._line = line
    display._console.print(display.render())
    return stream.getvalue().splitlines()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return Terminal()


def test_a_terminal_gets_the_panel(terminal: Terminal) -> None:
    assert isinstance(make_display(100, "title", stream=terminal), LiveDisplay)


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_dumb_terminal_gets_plain_lines(term: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", term)
    assert isinstance(make_display(100, "title", stream=terminal), PlainDisplay)


def test_a_pipe_gets_plain_lines_even_where_colour_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = io.StringIO()
    with make_display(100_000, "title", stream=stream) as display:
        display.update(LINE)
        display.note("checkpoint [red]written")
        display.update({"frames": 52_000})
    assert stream.getvalue().splitlines() == [
        "title",
        (
            "frames 51,200/100,000  steps/s 9,812  return 213.4 (100 episodes)  length 213  eta 0.42  kl/bound 0.93"
            "  left 0:00:05"
        ),
        "checkpoint [red]written",
        "frames 52,000/100,000",
    ]


def test_the_default_stream_is_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with make_display(100, "title") as display:
        display.update({"frames": 1})
    captured = capsys.readouterr()
    assert captured.err == "title\nframes 1/100\n"
    assert captured.out == ""


def test_quiet_prints_nothing(terminal: Terminal, capsys: pytest.CaptureFixture[str]) -> None:
    with make_display(100, "title", quiet=True, stream=terminal) as display:
        display.update(LINE)
        display.note("checkpoint written")
    assert type(display) is Display
    assert terminal.getvalue() == ""
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("width", [40, 120])
def test_the_panel_fits_the_width_and_shows_progress_and_dual_health(width: int) -> None:
    lines = panel(LINE, width)
    assert {len(line) for line in lines} == {width}
    text = " ".join(" ".join(lines).replace("│", " ").split())
    for part in ("51%", "51,200 / 100,000 frames, 0:00:05 left", "9,812", "simulate 41%", "213.4", "213.2", "3,417"):
        assert part in text
    for part in ("temperature 0.42", "E-step KL / bound 0.81", "KL / bound, mean 0.93", "KL / bound, covariance 0.2"):
        assert part in text
    for part in ("effective samples 412.3", "explained variance 0.57", "target age 3", "policy lag 1"):
        assert part in text


def test_a_wide_terminal_shows_two_columns() -> None:
    assert len(panel(LINE, 120)) < len(panel(LINE, 40)) - 5


@pytest.mark.parametrize("width", [1, 12, 40, 120])
@pytest.mark.parametrize("line", [{}, dict.fromkeys(LINE), dict.fromkeys(LINE, math.nan), dict.fromkeys(LINE, 0)])
def test_missing_empty_and_zero_values_never_break_a_display(line: dict[str, Any], width: int) -> None:
    assert shown(line, width)
    assert summary_line(line, 100_000).startswith("frames 0/100,000")
    assert "nan" not in shown(line, width).lower() + summary_line(line, 100_000)


def test_markup_in_names_is_shown_as_it_is() -> None:
    text = shown({"return/[red]pong[/nope]": 7.5, "kl_over_bound/[x]": 0.5}, title="my [bold]run[/]")
    assert "[red]pong[/nope]" in text
    assert "KL / bound, [x]" in text
    assert "my [bold]run[/]" in text


def test_markup_in_a_note_is_shown_as_it_is_above_the_panel() -> None:
    display, stream = live(80)
    with display:
        display.note("checkpoint [/red] written")
        display.update(LINE)
    before, _, after = stream.getvalue().partition("checkpoint [/red] written")
    assert "51%" not in before
    assert "51%" in after


def test_a_long_task_name_leaves_room_for_its_return() -> None:
    assert any("77.25" in line and "…" in line for line in panel({"return/" + "long_" * 20: 77.25}, 40))


def test_many_tasks_are_cut_short() -> None:
    text = "\n".join(panel({f"return/task_{i}": float(i) for i in range(57)}, 120))
    assert "task_5" in text
    assert "task_6" not in text
    assert "and 51 more tasks" in text


def test_a_kl_far_over_its_bound_is_marked() -> None:
    def coloured(ratio: float) -> str:
        stream = Terminal()
        console = Console(file=stream, force_terminal=True, width=120, color_system="standard", no_color=False)
        with LiveDisplay(console, 100, "title") as display:
            display.update({"kl_over_bound/policy": ratio})
        return stream.getvalue()

    yellow = "\x1b[33m"
    assert yellow in coloured(2.5)
    assert yellow not in coloured(1.5)


def test_the_panel_is_drawn_at_most_four_times_a_second_and_ends_on_the_last_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [50.0]
    monkeypatch.setattr(display_module.time, "monotonic", lambda: now[0])
    display, stream = live(80)
    with display:
        for step in range(1, 101):
            now[0] += 0.01
            display.update({"frames": 1000 + step})
        drawn = stream.getvalue().count("100,000 frames")
        assert "1,100 /" not in stream.getvalue()
    assert 3 <= drawn <= 5
    assert "1,100 / 100,000 frames" in stream.getvalue()


def test_output_to_a_pipe_still_arrives_while_the_panel_lives(capsys: pytest.CaptureFixture[str]) -> None:
    display, stream = live(80)
    with display:
        print('{"mean_return": 1.0}')
    assert capsys.readouterr().out == '{"mean_return": 1.0}\n'
    assert "mean_return" not in stream.getvalue()


def test_history_is_drawn_with_what_the_stream_can_encode() -> None:
    assert sparkline([0.0, 7.0, 3.0], 16) == "▁█▄"
    assert sparkline([2.0, 2.0], 16) == "▁▁"
    assert sparkline([], 16) == ""
    assert sparkline([0.0] * 500 + [7.0] * 500, 8) == "▁▁▁▁████"
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, "ascii"), force_terminal=True, width=80, color_system=None)
    with LiveDisplay(console, 100, "title") as display:
        for score in (0.0, 1.0, math.nan):
            display.update({**LINE, "return_mean": score})
    console.file.flush()
    assert b"_#" in raw.getvalue()


def test_time_left_counts_frames_not_agent_steps() -> None:
    line = {"frames": 4000, "agent_steps": 1000, "steps_per_second": 10.0}
    assert str(time_left(line, 8000)) == "0:01:40"
    assert str(time_left(line, 3000)) == "0:00:00"
    assert time_left({**line, "steps_per_second": 0.0}, 8000) is None
    assert time_left({**line, "frames": 0, "agent_steps": 0}, 8000) is None
    assert time_left({"steps_per_second": 10.0}, 8000) is None
    assert time_left({**line, "steps_per_second": 1e-300}, 8000) is None


def test_the_panel_says_what_has_been_wrong_for_long_and_which_faults_were_survived() -> None:
    display, stream = live(120)
    with display:
        for step in (0, 600):
            display._drawn = -math.inf
            display.update({**LINE, "learner_step": step, "e_step_kl_over_bound": 3.0, "faults/environment": 2})
    assert "temperature has not met its bound for 600 updates" in stream.getvalue()
    assert "2 survived" in stream.getvalue()
    assert "survived" not in shown({**LINE, "faults/environment": 0, "skipped_updates": 0})


@pytest.mark.parametrize(
    ("score", "text"), [(0.9612, "0.9612"), (-9.87654, "-9.877"), (21.04, "21.0"), (-1234.56, "-1,234.6"), (0.0, "0")]
)
def test_a_small_return_has_four_digits(score: float, text: str) -> None:
    assert f"return {text} (100 episodes)" in summary_line({"return_mean": score, "window_episodes": 100}, 10)
