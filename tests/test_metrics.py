"""Stopwatch, episode window, and the files of a run: strict JSON, one transfer, exact truncation on resume."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vmpo.metrics import EpisodeWindow, RunLog, Stopwatch, plain_numbers
from vmpo.records import EpisodeResult


class Clock:
    """A perf_counter that only moves when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def episode(score: float, task: str = "a", length: int = 10) -> EpisodeResult:
    return EpisodeResult(task=task, episode_return=score, length=length)


def lines_of(path: Path) -> list[dict[str, Any]]:
    def reject(constant: str) -> None:
        raise AssertionError(f"{constant} is not strict JSON")

    return [json.loads(line, parse_constant=reject) for line in path.read_text().splitlines()]


def test_shares_of_laps_and_phases_sum_to_one_and_rest_is_the_remainder(clock: Clock) -> None:
    watch = Stopwatch()
    clock.now += 1  # nobody's
    watch.start()
    clock.now += 2
    watch.lap("infer")
    clock.now += 3
    watch.lap("simulate")
    with watch.phase("learn"):
        clock.now += 4
    shares = watch.shares()
    assert shares == pytest.approx({"simulate": 0.3, "infer": 0.2, "wait": 0.0, "learn": 0.4, "rest": 0.1})
    assert sum(shares.values()) == pytest.approx(1.0)


def test_time_inside_two_phases_counts_once_for_the_inner_one(clock: Clock) -> None:
    watch = Stopwatch()
    with watch.phase("simulate"):
        clock.now += 1
        with watch.phase("infer"):
            clock.now += 2
        clock.now += 1
        watch.start()
        clock.now += 4
        watch.lap("learn")
    assert watch.shares() == pytest.approx({"simulate": 0.25, "infer": 0.25, "wait": 0.0, "learn": 0.5, "rest": 0.0})


def test_a_phase_that_raises_is_closed_and_counted(clock: Clock) -> None:
    watch = Stopwatch()

    def fail() -> None:
        with watch.phase("learn"):
            clock.now += 1
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    clock.now += 1
    watch.start()
    assert watch.shares()["learn"] == pytest.approx(0.5)


def test_reset_inside_a_phase_forgets_what_came_before(clock: Clock) -> None:
    watch = Stopwatch()
    with watch.phase("learn"):
        clock.now += 5
        watch.reset()
        assert watch.shares()["learn"] == 0.0
        clock.now += 1
    clock.now += 3
    assert watch.shares()["learn"] == pytest.approx(0.25)


def test_an_unknown_phase_is_refused() -> None:
    with pytest.raises(KeyError):
        Stopwatch().lap("simulating")


def test_window_keeps_the_last_episodes_of_each_task_apart() -> None:
    window = EpisodeWindow(size=2)
    window.add([episode(1000), episode(1, length=10), episode(3, length=20), episode(8, "b", length=60)])
    summary = window.summary()
    assert summary["return/a"] == 2
    assert summary["return/b"] == 8
    assert summary["return_mean"] == 4
    assert summary["return_min"] == 1
    assert summary["return_max"] == 8
    assert summary["return_std"] == pytest.approx(np.std([1, 3, 8]))
    assert summary["length_mean"] == 30
    assert summary["episodes"] == 4
    assert summary["window_episodes"] == 3


def test_games_of_a_benchmark_have_its_scores_as_far_as_they_were_played() -> None:
    window = EpisodeWindow()
    window.add([episode(14.6, "pong"), episode(0.1, "boxing")])
    summary = window.summary()
    assert summary["human_normalised/pong"] == pytest.approx(100.0)
    assert summary["human_normalised/boxing"] == pytest.approx(0.0)
    assert summary["score/median"] == summary["score/mean"] == pytest.approx(50.0)
    assert summary["score/levels"] == 2
    window.add([episode(1.0, "no game of it")])
    assert "score/median" not in window.summary()


def test_a_single_task_has_no_row_of_its_own_and_an_empty_window_is_nan() -> None:
    window = EpisodeWindow()
    assert math.isnan(window.summary()["return_mean"])
    assert window.summary()["episodes"] == 0
    window.add([episode(5)])
    assert "return/a" not in window.summary()


def test_values_become_plain_numbers_in_order() -> None:
    values = {
        "seconds": 1.5,
        "temperature": torch.tensor(0.5, requires_grad=True),
        "kl": torch.tensor(2.0),
        "version": torch.tensor(2**40 + 1),
        "numpy": np.float32(0.25),
        "vector": torch.tensor([1.0, math.nan]),
        "task": "pong",
    }
    plain = plain_numbers(values)
    assert list(plain) == list(values)
    assert list(plain.values()) == [1.5, 0.5, 2.0, 2**40 + 1, 0.25, [1.0, None], "pong"]
    assert type(plain["numpy"]) is float
    assert type(plain["version"]) is int


def test_scalars_of_the_learner_are_transferred_once(monkeypatch: pytest.MonkeyPatch) -> None:
    transfers = []
    original = torch.Tensor.tolist

    def counting(tensor: torch.Tensor) -> Any:
        transfers.append(tensor.shape)
        return original(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", counting)
    monkeypatch.setattr(torch.Tensor, "item", None)
    plain = plain_numbers({f"loss_{i}": torch.tensor(float(i)) for i in range(20)})
    assert plain["loss_7"] == 7.0
    assert transfers == [(20,)]


def test_metrics_lines_are_strict_json_with_null_for_nan_and_infinity(tmp_path: Path) -> None:
    log = RunLog(tmp_path, tensorboard=False, append=False)
    written = log.write_metrics(
        {"frames": 4, "return_mean": math.nan, "kl/policy": torch.tensor(math.inf), "x": np.float64(-np.inf), "y": 1.0}
    )
    assert lines_of(tmp_path / "metrics.jsonl") == [written]
    assert written == {"frames": 4, "return_mean": None, "kl/policy": None, "x": None, "y": 1.0}


def test_episode_lines_hold_the_moment_and_can_be_read_back(tmp_path: Path) -> None:
    log = RunLog(tmp_path, tensorboard=False, append=False)
    log.write_episodes([], agent_steps=0, frames=0, seconds=0.0)
    log.write_episodes([episode(1.5, "a", 7), episode(math.nan, "b", 9)], agent_steps=10, frames=40, seconds=2.5)
    first, second = lines_of(tmp_path / "episodes.jsonl")
    assert first == {"task": "a", "return": 1.5, "length": 7, "agent_steps": 10, "frames": 40, "seconds": 2.5}
    assert second["return"] is None
    read = list(log.read_episodes())
    assert read[0] == episode(1.5, "a", 7)
    assert math.isnan(read[1].episode_return)


@pytest.mark.parametrize(("append", "expected"), [(True, 2), (False, 1)])
def test_a_log_starts_anew_unless_it_appends(tmp_path: Path, append: bool, expected: int) -> None:
    RunLog(tmp_path, tensorboard=False, append=False).write_metrics({"frames": 1})
    RunLog(tmp_path, tensorboard=False, append=append).write_metrics({"frames": 2})
    assert len(lines_of(tmp_path / "metrics.jsonl")) == expected


@pytest.mark.parametrize("torn", [b'{"learner_step": 2, "ret', b"{\xff\x80", b"\x00" * 5, b"17"])
def test_resume_drops_lines_after_the_checkpoint_and_a_torn_one(tmp_path: Path, torn: bytes) -> None:
    log = RunLog(tmp_path, tensorboard=False, append=False)
    for step in (1, 2, 3):
        log.write_metrics({"learner_step": step, "agent_steps": step * 10, "frames": step * 40})
        log.write_episodes([episode(step)], agent_steps=step * 10, frames=step * 40, seconds=step)
    for name in ("metrics.jsonl", "episodes.jsonl"):
        with open(tmp_path / name, "ab") as file:
            file.write(torn)

    resumed = RunLog(tmp_path, tensorboard=False, append=True)
    resumed.truncate_to(learner_step=2, agent_steps=20)
    resumed.write_metrics({"learner_step": 3, "agent_steps": 31, "frames": 124})
    resumed.write_episodes([episode(9)], agent_steps=31, frames=124, seconds=4.0)

    assert [line["agent_steps"] for line in lines_of(tmp_path / "metrics.jsonl")] == [10, 20, 31]
    assert [line["return"] for line in lines_of(tmp_path / "episodes.jsonl")] == [1, 2, 9]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["episodes.jsonl", "metrics.jsonl"]


def test_a_truncation_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RunLog(tmp_path, tensorboard=False, append=False)
    for step in (1, 2):
        log.write_metrics({"learner_step": step, "frames": step})

    def full_disk(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        log.truncate_to(learner_step=1, agent_steps=1)
    assert len(lines_of(tmp_path / "metrics.jsonl")) == 2


def test_tensorboard_shows_scalars_over_frames_and_forgets_what_a_resume_dropped(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with RunLog(tmp_path, tensorboard=True, append=False) as log:
        for step in (1, 2):
            log.write_metrics({"learner_step": step, "frames": step * 100, "kl/policy": 0.5 * step, "gap": math.nan})
    with RunLog(tmp_path, tensorboard=True, append=True) as log:
        log.truncate_to(learner_step=1, agent_steps=100)
        log.write_metrics({"learner_step": 2, "frames": 150, "kl/policy": 3.0})
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert set(events.Tags()["scalars"]) == {"learner_step", "kl/policy"}
    assert [(e.step, e.value) for e in events.Scalars("kl/policy")] == [(100, 0.5), (150, 3.0)]


def test_tensorboard_is_left_alone_until_the_first_line_and_when_off(tmp_path: Path) -> None:
    RunLog(tmp_path / "on", tensorboard=True, append=False).close()
    RunLog(tmp_path / "off", tensorboard=False, append=False).write_metrics({"frames": 1, "x": 1.0})
    assert not (tmp_path / "on" / "tensorboard").exists()
    assert not (tmp_path / "off" / "tensorboard").exists()
