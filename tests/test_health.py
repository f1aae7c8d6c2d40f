"""What is bad for long is said in words, and what is bad for a moment is not."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest

from vmpo.config import LearnerConfig, LossConfig
from vmpo.display import PlainDisplay
from vmpo.health import LONG, Health

BAD = {
    "e_step_kl_over_bound": (3.5, "temperature has not met its bound for 500 updates: the E-step's KL is 3.5 times"),
    "kl_over_bound/mean": (9.0, "the mean KL has not met its bound for 500 updates: it is 9.0 times as large"),
    "effective_sample_size": (1.2, "the E-step has rested on 1.2 samples for 500 updates"),
    "value_explained_variance": (-0.5, "the values have been worse than a constant for 500 updates"),
}
GOOD = {
    "e_step_kl_over_bound": 1.0,
    "kl_over_bound/mean": 0.5,
    "effective_sample_size": 300.0,
    "value_explained_variance": 0.4,
}


def observed(steps: list[int], **changed: Any) -> dict[str, str]:
    health, said = Health(), {}
    for step in steps:
        said = health.observe({**GOOD, **changed, "learner_step": step})
    return said


@pytest.mark.parametrize("name", BAD)
def test_what_is_bad_for_long_is_said_with_how_long_and_what_helps(name: str) -> None:
    value, sentence = BAD[name]
    said = observed([100, 350, 100 + LONG], **{name: value})
    assert list(said) == [name]
    assert said[name].startswith(sentence)


@pytest.mark.parametrize("name", BAD)
def test_options_that_are_advised_exist(name: str) -> None:
    known = {f"--learner.{field}" for field in LearnerConfig.__dataclass_fields__}
    known |= {f"--loss.{field}" for field in LossConfig.__dataclass_fields__}
    words = observed([0, LONG], **{name: BAD[name][0]})[name].replace("-", "_").split()
    advised = {"--" + word.strip(",;.").removeprefix("__") for word in words if word.startswith("__")}
    assert advised <= known
    assert advised


def test_nothing_is_said_of_a_healthy_run_or_before_it_has_lasted() -> None:
    assert observed([0, LONG, 10 * LONG]) == {}
    assert observed([100, 99 + LONG], **{"kl_over_bound/mean": 9.0}) == {}


@pytest.mark.parametrize("error", [0.09, 0.11])
def test_values_close_to_returns_that_hardly_vary_are_no_complaint(error: float) -> None:
    """A solved CartPole returns 500 each time: no value explains its last digits, and none needs to."""
    said = observed([0, LONG], value_explained_variance=-2.0, loss_value=0.5 * error**2)
    assert list(said) == (["value_explained_variance"] if error > 0.1 else [])


def test_a_recovery_starts_the_count_anew() -> None:
    health = Health()
    for step, ratio in ((0, 9.0), (400, 1.0), (600, 9.0), (1000, 9.0)):
        said = health.observe({"learner_step": step, "kl_over_bound/mean": ratio})
    assert said == {}


@pytest.mark.parametrize("value", [None, math.nan, "3"])
def test_what_is_no_number_is_no_complaint(value: Any) -> None:
    assert observed([0, LONG], **{"kl_over_bound/mean": value}) == {}
    assert Health().observe({"kl_over_bound/mean": 9.0}) == {}


def test_plain_lines_have_a_warning_once_when_it_begins() -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream, 100, "a run")
    for step in (0, LONG, 2 * LONG):
        display.update({"learner_step": step, "kl_over_bound/mean": 9.0})
    assert stream.getvalue().count("warning: the mean KL has not met its bound for 500 updates") == 1
    assert stream.getvalue().count("warning") == 1
