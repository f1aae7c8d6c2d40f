"""The command line as a user meets it: what works, and one clear line with exit code 2 for what cannot."""

from __future__ import annotations

import json
import sys

import pytest

from vmpo.cli import main
from vmpo.errors import UserError
from vmpo.learning import checkpoint

SMALL = [
    "--agent.hidden", "8", "--learner.batch-size", "4", "--learner.unroll-length", "8", "--actors.num-envs", "4",
    "--frames", "64", "--run.evaluation-episodes", "0", "--run.tensorboard", "False", "--quiet", "True",
]  # fmt: skip


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def finished_run(tmp_path, capsys):
    assert run(capsys, "train", "cartpole", *SMALL, "--directory", tmp_path / "run")[0] == 0
    return tmp_path / "run"


BAD_INPUT = {
    "command": (["trian"], "did you mean 'train'"),
    "preset": (["train", "cartpol"], "did you mean 'cartpole'"),
    "preset to show": (["presets", "pongg"], "did you mean 'pong'"),
    "option": (["train", "--run.fram", "3"], "did you mean '--run.frames'"),
    "section": (["train", "--lerner.batch-size", "3"], "did you mean '--learner.batch-size'"),
    "option of resume": (["resume", "d", "--framez", "3"], "did you mean '--frames'"),
    "number": (["train", "--frames", "many"], "--run.frames"),
    "choice": (["train", "--agent.core", "gru"], "transformer"),
    "extra argument": (["train", "cartpole", "acrobot"], "acrobot"),
    "missing argument": (["evaluate"], "directory"),
    "environment": (["train", "--env", "CartPol-v1"], "did you mean 'CartPole-v1'"),
    "module": (["train", "--env", "no_such_module:Env-v0"], "cannot import 'no_such_module'"),
    "suite": (["train", "--env.suite", "atarii"], "did you mean 'atari'"),
    "game": (["train", "--env", "atari:pongg"], "did you mean 'pong'"),
    "body": (["train", "--env", "mujoco:HalfCheeta-v4"], "did you mean 'HalfCheetah-v4'"),
    "observation space": (["train", "--env", "samples:GraphEnv"], "not supported; supported: Box"),
    "action space": (["train", "--env", "samples:SequenceEnv"], "not supported; supported: Discrete"),
    "replicas": (["train", "--learner.virtual-replicas", "3"], "does not divide over 3 replicas; try 3"),
    "batch": (
        ["train", "--learner.batch-size", "24"],
        "one must be a multiple of the other; try --learner.batch-size 16",
    ),
    "unroll": (["train", "--learner.unroll-length", "0"], "learner.unroll_length=0 must be at least 1"),
    "frames": (["train", "--frames", "-5"], "run.frames=-5 must be at least 1"),
    "top half of nothing": (
        ["train", "--learner.batch-size", "1", "--learner.unroll-length", "1", "--actors.num-envs", "1"],
        "no top half",
    ),
    "bound": (["train", "--loss.epsilon-policy", "0"], "loss.epsilon_policy=0"),
    "bound without range": (["train", "--loss.epsilon-policy", "None"], "no range to sample from"),
    "discount": (["train", "--loss.discount", "1.5"], "must be in [0, 1]"),
    "fraction": (["train", "--loss.top-fraction", "0"], "must be in (0, 1]"),
    "std": (["train", "pendulum", "--agent.initial-std", "0"], "must exceed agent.minimum_std"),
    "device": (["train", "--learner.device", "warp:0"], "learner.device='warp:0'"),
    "seed": (["train", "--seed", "-1"], "run.seed=-1 must not be negative"),
    "alpha": (["train", "--loss.initial-alpha-policy", "-1"], "loss.initial_alpha_policy=-1"),
    "cuda": (["train", "--learner.device", "cuda:0"], "no CUDA device"),
    "environment without name": (["train", "--env"], "--env needs a value"),
    "version that is gone": (["train", "--env", "Ant-v3"], "Ant-v3 cannot be made"),
    "episodes": (["evaluate", "d", "--episodes", "0"], "at least 1"),
    "run": (["resume", "no_such_run"], "holds no run"),
    "run to evaluate": (["evaluate", "no_such_run"], "holds no run"),
    "workload": (["bench", "cartpol"], "did you mean 'cartpole'"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_a_users_mistake_is_one_line_and_exit_code_2(case, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, message = BAD_INPUT[case]
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in err
    assert err.startswith("vmpo: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == [], "nothing is written before the mistake is found"


def test_a_directory_with_a_run_is_refused(finished_run, capsys):
    before = sorted((p.name, p.stat().st_mtime_ns) for p in finished_run.iterdir())
    code, _, err = run(capsys, "train", "cartpole", *SMALL, "--directory", finished_run)
    assert code == 2
    assert "already holds a run" in err
    assert sorted((p.name, p.stat().st_mtime_ns) for p in finished_run.iterdir()) == before


def test_a_checkpoint_that_does_not_fit_the_configuration_is_refused(finished_run, capsys):
    path = finished_run / "config.json"
    config = json.loads(path.read_text())
    config["agent"]["hidden"] = [9]
    path.write_text(json.dumps(config))
    for command in (["resume", finished_run, "--frames", "128"], ["evaluate", finished_run]):
        code, _, err = run(capsys, *command)
        assert code == 2
        assert "does not fit the configuration" in err


@pytest.mark.parametrize("damage", [b"", b"not json", b"[1, 2]"])
def test_a_damaged_configuration_is_named(finished_run, capsys, damage):
    (finished_run / "config.json").write_bytes(damage)
    code, _, err = run(capsys, "resume", finished_run)
    assert code == 2
    assert "config" in err


def test_training_resuming_and_evaluating_print_json_last(finished_run, capsys):
    code, out, _ = run(capsys, "resume", finished_run, "--frames", "128", "--json", "True", "--quiet", "True")
    assert code == 0
    result = json.loads(out.splitlines()[-1])
    assert (result["frames"], result["finished"]) == (128, True)
    code, out, _ = run(capsys, "evaluate", finished_run, "--episodes", "3", "--json", "True")
    assert code == 0
    assert {"mean_return", "std_return", "episodes"} <= set(json.loads(out.splitlines()[-1]))


def test_flags_may_stand_alone(finished_run, capsys):
    code, out, _ = run(capsys, "evaluate", finished_run, "--episodes", "3", "--json")
    assert code == 0
    assert json.loads(out.splitlines()[-1])["episodes"] == 3


def test_a_users_own_environment_needs_no_edit_of_the_package(tmp_path, capsys):
    code, _, err = run(capsys, "train", "--env", "probes:Counting-v0", *SMALL, "--directory", tmp_path / "own")
    assert code == 0, err
    assert json.loads((tmp_path / "own" / "config.json").read_text())["env"]["id"] == "probes:Counting-v0"


def test_a_sampled_range_is_recorded_in_the_runs_configuration(tmp_path, capsys):
    options = ["--learner.virtual-replicas", "1", "--directory", tmp_path / "run"]
    code, _, err = run(capsys, "train", "paper-gym-walker2d", *SMALL, *options)
    assert code == 0, err
    loss = json.loads((tmp_path / "run" / "config.json").read_text())["loss"]
    assert 0.005 <= loss["epsilon_mean"] <= 0.01
    assert 5e-6 <= loss["epsilon_covariance"] <= 5e-5


def test_help_explains_every_option(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for option in ("--loss.epsilon-temperature", "--agent.transformer-memory", "--env.noop-max", "--run.frames"):
        assert option in text


def test_presets_are_listed_and_shown(capsys):
    code, out, _ = run(capsys, "presets")
    assert code == 0
    assert "paper-atari" in out
    code, out, _ = run(capsys, "presets", "paper-atari")
    assert json.loads(out)["ranges"] == {"epsilon_policy": [0.005, 0.01]}


def test_every_option_of_evaluate_reaches_the_evaluation(monkeypatch, capsys):
    received = {}

    def evaluate_run(*_, **options):
        received.update(options)
        raise UserError("enough")

    monkeypatch.setattr(sys.modules["vmpo.train"], "evaluate_run", evaluate_run)
    run(capsys, "evaluate", "d", "--best", "--trust", "--held-out", "--sampled", "--seed", "7")
    assert received == {"best": True, "trust": True, "held_out": True, "greedy": False, "seed": 7}


@pytest.mark.parametrize("best", [False, True])
def test_the_best_checkpoint_is_evaluated_where_asked_and_the_newest_otherwise(capsys, finished_run, monkeypatch, best):
    assert run(capsys, "resume", finished_run, "--frames", "128", "--quiet")[0] == 0
    older, newer = sorted((finished_run / "checkpoints").glob("step_*"))[-2:]
    for path, score in ((older, 2.0), (newer, 1.0)):
        progress = json.loads((path / "progress.json").read_text())
        (path / "progress.json").write_text(json.dumps({**progress, "score": score}))
    loaded, read = [], checkpoint.online_weights
    monkeypatch.setattr(checkpoint, "online_weights", lambda saved: loaded.append(saved.path) or read(saved))
    assert run(capsys, "evaluate", finished_run, "--episodes", "1", *["--best"] * best)[0] == 0
    assert loaded == [older if best else newer]


def test_levels_that_have_no_test_version_are_refused(capsys, finished_run):
    code, _, err = run(capsys, "evaluate", finished_run, "--held-out")
    assert code == 2
    assert "no held-out levels" in err


def test_a_run_on_a_users_module_says_how_it_is_used_again(capsys, tmp_path):
    directory = tmp_path / "a run"
    code, out, _ = run(capsys, "train", "--env", "probes:Counting-v0", *SMALL, "--directory", directory)
    assert code == 0
    assert f"evaluate: vmpo evaluate '{directory}' --trust" in out
