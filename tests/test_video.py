"""Videos: the frames that are in the file, what stands in their strip, and what is left after a mistake: nothing."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

from vmpo import suites
from vmpo.cli import main
from vmpo.config import AgentConfig, Config, EnvConfig, RunConfig
from vmpo.errors import UserError
from vmpo.learning import checkpoint
from vmpo.learning.learner import Learner
from vmpo.movie import Movie
from vmpo.overlay import WIDTH, Canvas, Caption, shown
from vmpo.policy import Policy
from vmpo.popart import PopArtStatistics, initial_statistics
from vmpo.problems import problems
from vmpo.run_directory import RunDirectory
from vmpo.signals import Stopped
from vmpo.video import Player, Trained, VideoOptions, record, watch

SMALL = [
    "--agent.hidden", "8", "--learner.batch-size", "4", "--learner.unroll-length", "8", "--actors.num-envs", "4",
    "--frames", "64", "--run.evaluation-episodes", "0", "--run.tensorboard", "False", "--quiet",
]  # fmt: skip


def trained_run(folder, env="probes:Counting-v0", *options):
    assert main(["train", "--env", env, *SMALL, *options, "--directory", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def counting(tmp_path_factory):
    """An episode of three steps, whose pictures are 4 x 5 pixels as gray as its steps."""
    return trained_run(tmp_path_factory.mktemp("counting") / "run")


def decode(path):
    """Frames per second and frames of a file, read by other means than it was written."""
    if path.suffix == ".gif":
        with Image.open(path) as image:
            frames = [np.array(frame.convert("RGB")) for frame in ImageSequence.Iterator(image)]
            return 1000.0 / image.info["duration"], np.stack(frames)
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    reader = imageio_ffmpeg.read_frames(str(path))
    about = next(reader)
    width, height = about["size"]
    return about["fps"], np.stack([np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader])


def left_behind(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_every_step_is_a_frame_with_the_picture_enlarged_over_its_strip(counting, tmp_path, suffix):
    out, random_state = tmp_path / f"video{suffix}", torch.get_rng_state()
    recorded = watch(counting, out, VideoOptions(episodes=2, sampled=True), trust=True)
    assert torch.equal(torch.get_rng_state(), random_state), "the caller's random numbers stay as they are"
    assert [(take.episode_return, take.steps, take.ended) for take in recorded.takes] == [(6.0, 3, True)] * 2
    rate, frames = decode(out)
    canvas = Canvas(4, 5)
    assert frames.shape == (8, canvas.height, canvas.width, 3)
    assert rate == pytest.approx(recorded.frames_per_second, rel=0.15)
    for index, frame in enumerate(frames):
        picture, strip = frame[: -canvas.strip], frame[-canvas.strip :]
        assert picture.shape[0] == 4 * canvas.factor
        assert np.abs(picture.astype(int) - index % 4).max() <= 4, "the picture of that step"
        assert strip.max() > 200, "letters"
        assert np.median(strip) < 40, "on black"
    assert left_behind(tmp_path) == [out.name]


def test_the_strip_changes_with_the_step_and_the_picture_with_the_environment(tmp_path):
    run = trained_run(tmp_path / "run", "CartPole-v1")
    watch(run, tmp_path / "video.mp4", VideoOptions(max_steps=10))
    _, frames = decode(tmp_path / "video.mp4")
    strip = Canvas(400, 600).strip
    assert len(frames) >= 9
    assert np.abs(frames[8, :-strip].astype(int) - frames[0, :-strip]).max() > 100
    assert np.abs(frames[8, -strip:].astype(int) - frames[0, -strip:]).max() > 100


@pytest.mark.parametrize(("height", "width"), [(84, 84), (210, 160), (4, 5), (400, 601), (700, 10), (9, 2000)])
def test_a_strip_is_legible_under_a_picture_of_any_size(height, width):
    canvas = Canvas(height, width)
    caption = Caption(title="a task", numbers={"return": "-1,234.50", "step": "27,000", "value": "1.23e+07"})
    frame = canvas.frame(np.full((height, width, 3), 50, np.uint8), caption)
    assert frame.shape[0] % 2 == frame.shape[1] % 2 == 0
    assert frame.shape[1] >= WIDTH
    assert (frame[: height * canvas.factor] == 50).all(axis=-1).sum() == height * width * canvas.factor**2
    strip = frame[height * canvas.factor :]
    margin = round(6 * canvas.width / WIDTH)
    width = (canvas.width - margin) // 3
    for left in (margin, margin + width, margin + 2 * width):
        column = strip[:, left : left + width]
        assert 0.005 < (column > 150).mean() < 0.3
        # The columns do not run into each other.
        assert column[len(column) // 3 :, -3:].max() < 60


def test_a_picture_of_another_size_is_fitted_into_the_same_frame():
    canvas = Canvas(40, 320)
    caption = Caption(title="", numbers={"step": "1"})
    frame = canvas.frame(np.full((80, 80, 3), 200, np.uint8), caption)
    assert frame.shape == (canvas.height, canvas.width, 3)
    assert (frame[:40] > 190).all(axis=-1).sum() == 40 * 40


def test_numbers_are_short():
    assert [shown(x) for x in (0.5, -21.0, 1234.5, 27_000.4, 12_345_678.0)] == [
        "0.50",
        "-21.00",
        "1,234.50",
        "27,000",
        "1.23e+07",
    ]


def test_a_fast_environment_is_shown_in_real_time_by_fewer_frames(tmp_path, monkeypatch):
    monkeypatch.setattr("probes.Counting.metadata", {"render_modes": ["rgb_array"], "render_fps": 125})
    run = trained_run(tmp_path / "run", "probes:Limited-v0")
    recorded = watch(run, tmp_path / "video.mp4", trust=True)
    assert recorded.frames_per_second == pytest.approx(125 / 3)
    assert recorded.takes[0].steps == 5
    _, frames = decode(tmp_path / "video.mp4")
    # Steps 0 and 3, and the last one.
    np.testing.assert_allclose([frame[:100].mean() for frame in frames], [0, 3, 5], atol=1.1)


def test_a_long_episode_is_cut(counting, tmp_path, capsys):
    out = tmp_path / "video.mp4"
    assert main(["watch", str(counting), "--out", str(out), "--trust", "--max-steps", "2"]) == 0
    printed = capsys.readouterr().out
    assert "return 3.00 in 2 steps (cut)" in printed
    assert f"video: {out} (3 frames at 30 per second)" in printed
    assert len(decode(out)[1]) == 3


def test_by_default_it_is_named_after_the_checkpoint_and_lies_in_the_run(tmp_path):
    run = trained_run(tmp_path / "run", "CartPole-v1")
    recorded = watch(run, options=VideoOptions(max_steps=2))
    assert recorded.path == run / "videos" / "step_0000000016.mp4"
    assert recorded.path.exists()


def tensors_of(run):
    saved = checkpoint.latest(run / "checkpoints")
    return saved, checkpoint.online_weights(saved)


def test_it_is_the_checkpoints_agent_that_plays_and_its_critic_that_is_shown(counting, monkeypatch):
    """Policy and value are those of the saved tensors, the value being scale x output + mean."""
    saved, weights = tensors_of(counting)
    config = checkpoint_config(counting)
    env = suites.make(config.env, 1, 0, render=True)
    statistics = PopArtStatistics(mean=torch.tensor([7.0]).double(), second_moment=torch.tensor([49.0 + 9.0]).double())
    plain = Policy(env.spec, config, weights)
    scaled = Policy(env.spec, config, weights, statistics)
    players = [
        Player(env=env, policy=p, task=0, options=VideoOptions(), safe_moment=lambda: None) for p in (plain, scaled)
    ]
    normalised, shown_values = ([scene.value for scene in player.scenes(0, 1)] for player in players)
    assert normalised[-1] is shown_values[-1] is None
    np.testing.assert_allclose(shown_values[:-1], 3.0 * np.array(normalised[:-1]) + 7.0, rtol=1e-5)
    env.close()

    used = []
    decide = Policy.decide
    monkeypatch.setattr(Policy, "decide", lambda self, *a, **k: used.append(self) or decide(self, *a, **k))
    watch(counting, counting / "video.gif", trust=True)
    for name, tensor in used[0].network.state_dict().items():
        assert torch.equal(tensor, weights.tensors[name])
    assert torch.equal(used[0]._statistics.mean, saved.tensors["popart.mean"].double())


def checkpoint_config(run):
    return RunDirectory(run).read_config(trust=True)


def test_several_tasks_are_recorded_one_after_the_other_each_with_its_own_value(tmp_path, monkeypatch):
    run = trained_run(tmp_path / "run", "probes:Counting-v0,probes:Limited-v0")
    saved, weights = tensors_of(run)
    weights.tensors["value_readout.weight"].zero_()
    weights.tensors["value_readout.bias"].copy_(torch.tensor([1.0, 2.0]))
    trained = Trained(
        config=checkpoint_config(run),
        weights=weights,
        statistics=checkpoint.popart_statistics(saved, initial_statistics(2)),
        learner_step=0,
    )
    captions = []
    draw = Canvas.frame
    monkeypatch.setattr(Canvas, "frame", lambda self, p, c: captions.append(c) or draw(self, p, c))
    recorded = record(trained, tmp_path / "video.mp4", VideoOptions())
    assert [(take.task, take.steps) for take in recorded.takes] == [
        ("probes:Counting-v0", 3),
        ("probes:Limited-v0", 5),
    ]
    scale = (saved.tensors["popart.second_moment"] - saved.tensors["popart.mean"] ** 2).sqrt().clamp(min=1e-2)
    expected = [shown(float(v)) for v in saved.tensors["popart.mean"] + scale * torch.tensor([1.0, 2.0])]
    values = [c.numbers["value"] for c in captions]
    assert values == [expected[0]] * 3 + ["(end)"] + [expected[1]] * 5 + ["(end)"]

    captions.clear()
    recorded = record(trained, tmp_path / "video.mp4", VideoOptions(task="probes:Limited-v0", max_steps=2))
    assert [(take.task, take.steps) for take in recorded.takes] == [("probes:Limited-v0", 2)]
    assert [c.numbers["value"] for c in captions] == [expected[1]] * 3


def test_while_training_each_video_shows_the_next_task(tmp_path, monkeypatch):
    shown_tasks = []
    keep = lambda trained, path, options, safe_moment: shown_tasks.append(options.task)  # noqa: E731
    monkeypatch.setattr(sys.modules["vmpo.video"], "record", keep)
    ids = ["probes:Counting-v0", "probes:Limited-v0"]
    trained_run(tmp_path / "run", ",".join(ids), "--run.video-seconds", "1e-9", "--frames", "96")
    assert shown_tasks == [ids[0], ids[1], ids[0]]


@pytest.mark.parametrize(("command", "function"), [("watch", "vmpo.video.watch"), ("export", "vmpo.export.export")])
def test_every_option_reaches_its_function(command, function, monkeypatch, capsys):
    received = []

    def enough(*given, **options):
        received.append((given, options))
        raise UserError("enough")

    module, _, name = function.rpartition(".")
    monkeypatch.setattr(importlib.import_module(module), name, enough)
    where = ["d", "--out", "f.gif"] if command == "watch" else ["d", "f.onnx"]
    choice = ["--episodes", "3", "--seed", "7", "--sampled", "--max-steps", "9", "--task", "t"]
    assert main([command, *where, "--best", "--trust", *(choice if command == "watch" else [])]) == 2
    [(given, options)] = received
    assert options == {"best": True, "trust": True}
    assert given[:2] == ("d", where[-1])
    if command == "watch":
        chosen = {f.name: getattr(given[2], f.name) for f in dataclasses.fields(VideoOptions)}
        assert chosen == {"episodes": 3, "seed": 7, "sampled": True, "max_steps": 9, "task": "t"}


def test_the_best_checkpoint_is_recorded_where_asked_and_the_newest_otherwise(tmp_path):
    run = trained_run(tmp_path / "run", "CartPole-v1")
    older, newer = sorted((run / "checkpoints").glob("step_*"))[-2:]
    for path, score in ((older, 2.0), (newer, 1.0)):
        progress = json.loads((path / "progress.json").read_text())
        (path / "progress.json").write_text(json.dumps({**progress, "score": score}))
    for best, expected in ((True, older), (False, newer)):
        assert watch(run, options=VideoOptions(max_steps=1), best=best).path.stem == expected.name


def test_each_level_of_a_silenced_lab_is_played_silenced():
    config = EnvConfig(suite="miniworld", id="choose_colour:blank,explore_rooms", stagger=True)
    assert [(c.id, c.stagger) for c in suites.each_task(config)] == [
        ("choose_colour:blank", False),
        ("explore_rooms", False),
    ]


@pytest.mark.parametrize(
    ("package", "env", "size"),
    [
        ("ale_py", EnvConfig(suite="atari", id="pong"), (420, 320)),
        ("envpool", EnvConfig(suite="mujoco", id="HalfCheetah-v4"), (240, 320)),
        ("dm_control", EnvConfig(suite="control", id="cheetah-run", simulator_threads=1), (240, 320)),
        ("miniworld", EnvConfig(suite="miniworld", id="choose_colour", simulator_threads=1), (288, 384)),
    ],
    ids=["atari", "mujoco", "control", "miniworld"],
)
def test_every_suite_can_be_recorded_without_a_display(package, env, size, tmp_path):
    """In a process of its own, since EnvPool may have been imported here without anything to draw with."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    untrained_run(tmp_path / "run", env)
    out = tmp_path / "video.mp4"
    command = [sys.executable, "-m", "vmpo", "watch", str(tmp_path / "run"), "--out", str(out)]
    headless = {name: value for name, value in os.environ.items() if "DISPLAY" not in name}
    done = subprocess.run([*command, "--max-steps", "12", "--sampled"], capture_output=True, text=True, env=headless)
    if done.returncode == 2 and "EGL" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    rate, frames = decode(out)
    assert 10 < rate <= 60
    assert frames.shape[1:3] == (Canvas(*size).height, size[1])
    picture = frames[:, : size[0]]
    assert picture[0].std() > 5, "something is drawn"
    assert np.abs(picture[-1].astype(int) - picture[0]).max() > 30, "and it moves"
    if env.suite == "atari":
        assert np.ptp(picture[0].astype(int).mean(axis=(0, 1))) > 20, "in colour"


def untrained_run(folder, env):
    """A run directory with the checkpoint of a learner that has not learned."""
    config = Config(env=env, agent=AgentConfig(pixels="nature", hidden=(8,)))
    made = suites.make(env, 1, 0)
    torch.manual_seed(0)
    learner = Learner(made.spec, config)
    made.close()
    RunDirectory(folder).create(config)
    checkpoint.save(folder / "checkpoints", learner, {"agent_steps": 0, "frames": 0, "seconds": 0.0}, {}, keep=1)


def test_the_simulated_seconds_of_every_body_are_those_of_dm_control():
    if importlib.util.find_spec("envpool") is None:
        pytest.skip("envpool is not installed")
    suite = pytest.importorskip("dm_control.suite")
    from vmpo.suites.mujoco import STEP_SECONDS, steps_per_second, task_id

    for domain, task in {domain: task for domain, task in suite.ALL_TASKS if domain != "lqr"}.items():
        own = suite.load(domain, task).control_timestep()
        assert steps_per_second(task_id(f"{domain}-{task}")) == pytest.approx(1.0 / own), domain
    assert steps_per_second("HalfCheetah-v4") == pytest.approx(20.0)
    assert steps_per_second("HumanoidStandup-v4") == pytest.approx(1 / 0.015)
    assert len(STEP_SECONDS["gym"]) == 11


def test_a_recording_that_is_given_up_leaves_no_file(counting, tmp_path):
    saved, weights = tensors_of(counting)
    trained = Trained(
        config=checkpoint_config(counting),
        weights=weights,
        statistics=checkpoint.popart_statistics(saved, initial_statistics(1)),
        learner_step=0,
    )
    calls = []

    def give_up():
        calls.append(1)
        if len(calls) == 3:
            assert len(left_behind(tmp_path)) == 1, "the encoder is at work"
            raise Stopped

    with pytest.raises(Stopped):
        record(trained, tmp_path / "video.mp4", VideoOptions(), give_up)
    assert left_behind(tmp_path) == []


def test_an_encoder_that_dies_is_one_line_and_leaves_no_file(tmp_path):
    frame = np.zeros((64, 64, 3), np.uint8)

    def film():
        with Movie(tmp_path / "video.mp4", 30.0) as movie:
            movie.add(frame)
            movie._encoder.send_signal(signal.SIGKILL)
            movie._encoder.wait()
            for _ in range(100):
                movie.add(frame)

    with pytest.raises(UserError, match=r"video.mp4 could not be written: ffmpeg failed"):
        film()
    assert left_behind(tmp_path) == []


def test_an_encoder_that_refuses_says_why(tmp_path):
    def film():
        with Movie(tmp_path / "video.mp4", 30.0) as movie:
            movie.add(np.zeros((63, 63, 3), np.uint8))

    with pytest.raises(UserError, match="could not be written") as caught:
        film()
    assert "\n" not in str(caught.value)
    assert left_behind(tmp_path) == []


def test_without_the_encoder_the_extra_is_named_before_anything_is_done(counting, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("vmpo.movie.importlib.util.find_spec", lambda name: None)
    assert main(["watch", str(counting), "--trust", "--out", str(tmp_path / "video.gif")]) == 2
    expected = "vmpo: imageio-ffmpeg is not installed; install it with: pip install -e '.[video]'\n"
    assert capsys.readouterr().err == expected
    assert main(["train", *SMALL, "--run.video-seconds", "1", "--directory", str(tmp_path / "new")]) == 2
    assert capsys.readouterr().err == expected
    assert left_behind(tmp_path) == []


def test_a_run_records_itself_and_learns_the_same_as_without(tmp_path):
    options = ["--run.log-steps", "1", "--learner.target-period", "1"]
    plain = trained_run(tmp_path / "plain", "CartPole-v1", *options)
    filmed = trained_run(tmp_path / "filmed", "CartPole-v1", *options, "--run.video-seconds", "1e-9")
    videos = sorted(path.name for path in (filmed / "videos").iterdir())
    assert videos == ["step_0000000008.mp4", "step_0000000016.mp4"]
    assert len(decode(filmed / "videos" / videos[0])[1]) > 5
    (_, one), (_, other) = tensors_of(plain), tensors_of(filmed)
    for name, tensor in one.tensors.items():
        assert torch.equal(tensor, other.tensors[name]), name


def test_a_video_that_fails_is_noted_and_the_run_goes_on(tmp_path, capsys):
    run = tmp_path / "run"
    options = [option for option in SMALL if option != "--quiet"]
    arguments = ["train", "--env", "probes:Undrawable-v0", *options, "--run.video-seconds", "1e-9"]
    assert main([*arguments, "--directory", str(run), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out.splitlines()[-1])["finished"]
    assert "no video of learner step 8: probes:Undrawable-v0 gives no picture" in printed.err
    assert not (run / "videos").exists()


def test_the_time_between_videos_is_positive():
    assert problems(Config(run=RunConfig(video_seconds=0.0))) == ["run.video_seconds=0.0 must be a positive number"]


def test_no_encoder_is_left_running(counting, tmp_path):
    watch(counting, tmp_path / "video.mp4", trust=True)
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=False).stdout
    assert str(tmp_path) not in listed
