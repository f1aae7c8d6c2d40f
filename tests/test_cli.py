"""The command line as a user meets it: what works, and one clear line with exit code 2 for what cannot."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vmpo.cli import _first_message, main
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


def test_training_resuming_and_evaluating_print_json_last(finished_run, capsys):
    code, out, _ = run(capsys, "resume", finished_run, "--frames", "128", "--json", "True", "--quiet", "True")
    assert code == 0
    result = json.loads(out.splitlines()[-1])
    assert (result["frames"], result["finished"]) == (128, True)
    code, out, _ = run(capsys, "evaluate", finished_run, "--episodes", "3", "--json", "True")
    assert code == 0
    assert {"mean_return", "std_return", "episodes"} <= set(json.loads(out.splitlines()[-1]))


@pytest.mark.parametrize(
    "box",
    [
        "\x1b[31m╭─\x1b[0m Error \x1b[31m──╮\x1b[0m\n│ \x1b[1mno\x1b[0m number │\n│ ────── │\n│ help │\n╰───╯\n",
        "╭─ Error ──╮\n│ no       │\n│ number   │\n│ ──────── │\n│ help     │\n╰──────────╯\n",
        "Error\n-----\nno\nnumber\n-----\nhelp\n",
    ],
    ids=["colours", "lines", "plain"],
)
def test_the_message_is_taken_out_of_the_parsers_box(box):
    assert _first_message(box) == "no number"


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

    monkeypatch.setattr(sys.modules["vmpo.evaluation"], "evaluate_run", evaluate_run)
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


def test_the_traceback_is_printed_where_it_is_asked_for(capsys, monkeypatch):
    quiet = run(capsys, "train", "--env", "faulty:CannotStart")[2]
    assert quiet.count("\n") == 1
    monkeypatch.setenv("VMPO_TRACEBACK", "1")
    code, _, err = run(capsys, "train", "--env", "faulty:CannotStart")
    assert code == 2
    assert err.endswith(quiet)
    assert err.startswith("Traceback")
    assert 'raise RuntimeError("the motor broke")' in err


@pytest.mark.parametrize("slow", ["torch", "tyro"])
@pytest.mark.parametrize("script", [False, True], ids=["module", "script"])
def test_an_interrupt_while_it_imports_is_one_line(tmp_path, slow, script):
    """A library that never ends to be imported stands in for the seconds that it takes."""
    (tmp_path / f"{slow}.py").write_text("import time; print('importing', flush=True); time.sleep(60)")
    (tmp_path / "vmpo").write_text("import sys; from vmpo.cli import main; sys.exit(main())")
    command = [str(tmp_path / "vmpo")] if script else ["-m", "vmpo"]
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[1])])
    process = subprocess.Popen(
        [sys.executable, *command, "train"],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "vmpo: interrupted\n")


def test_an_interrupt_of_a_script_that_imports_the_package_is_the_scripts(tmp_path):
    script = "import signal, vmpo; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    (tmp_path / "own.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    for command in (["own.py", "vmpo"], ["-m", "own", "-m", "vmpo"]):
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout == "True\n"
