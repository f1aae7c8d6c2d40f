"""The command line as a user meets it: what works, and one clear line with exit code 2 for what cannot."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vmpo.arguments import first_message, split
from vmpo.cli import _print_evaluation, _report, main
from vmpo.errors import UserError
from vmpo.learning import checkpoint
from vmpo.options import EvaluateOptions, ExportOptions, TrainOptions
from vmpo.result import RunResult
from vmpo.run_directory import RunDirectory
from vmpo.train import Run

SMALL = [
    "--agent.hidden", "8", "--learner.batch-size", "4", "--learner.unroll-length", "8", "--actors.num-envs", "4",
    "--frames", "64", "--run.evaluation-episodes", "0", "--run.tensorboard", "False", "--quiet", "True",
]  # fmt: skip


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


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
    assert first_message(box) == "no number"


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
    code, text, _ = run(capsys, "train", "--help")
    assert code == 0
    assert text.startswith("usage: vmpo train [PRESET] ")
    for option in ("--loss.epsilon-temperature", "--agent.transformer-memory", "--env.noop-max", "--run.frames"):
        assert option in text
    assert "--quiet, --no-quiet" in text
    assert run(capsys, "help", "train")[1] == text
    assert run(capsys, "help")[:2] == run(capsys, "--help")[:2]


def test_presets_are_listed_and_shown(capsys):
    code, out, _ = run(capsys, "presets")
    assert code == 0
    assert "paper-atari" in out
    code, out, _ = run(capsys, "presets", "paper-atari")
    assert json.loads(out)["ranges"] == {"epsilon_policy": [0.005, 0.01]}


def test_every_option_of_evaluate_reaches_the_evaluation(monkeypatch, capsys):
    received = {}

    def evaluate_run(*_, tell, **options):
        received.update(options)
        tell("evaluating: 3 of 100 episodes")
        raise UserError("enough")

    monkeypatch.setattr(sys.modules["vmpo.evaluation"], "evaluate_run", evaluate_run)
    _, out, err = run(capsys, "evaluate", "d", "--best", "--trust", "--held-out", "--sampled", "--seed", "7")
    assert (out, err.splitlines()[0]) == ("", "evaluating: 3 of 100 episodes")
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


@pytest.mark.parametrize(
    "words", ["train --seed 1 cartpole", "train --quiet cartpole", "train --agent.hidden 8 8 cartpole"]
)
def test_the_preset_may_come_after_the_options(words):
    alone, options = split(TrainOptions, words.split()[1:])
    assert alone == ["cartpole"]
    assert "cartpole" not in options


def test_a_value_is_not_taken_for_the_preset():
    assert split(TrainOptions, ["--directory", "cartpole", "--env.id=cartpole", "--run.wandb", "cartpole"])[0] == []


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("--frames 1e5", "--run.frames 100000"),
        ("--frames=100_000 --seed 2.0", "--run.frames 100000 --run.seed 2"),
        ("--agent.hidden 1e2 8 --seed -1", "--agent.hidden 100 8 --run.seed -1"),
        ("--run.log-steps None", "--run.log-steps None"),
        ("--env atari:pong", "--env.suite atari --env.id pong"),
        ("--quiet", "--quiet"),
        ("--quiet True --run.tensorboard False", "--quiet --run.no-tensorboard"),
        ("--loss.exact_temperature=False", "--loss.no-exact-temperature"),
        ("--no-quiet --loss.discount 1e-1", "--no-quiet --loss.discount 1e-1"),
    ],
)
def test_options_are_taken_as_people_write_them(given, taken):
    alone, options = split(TrainOptions, given.split())
    assert (alone, options) == ([], taken.split())
    assert split(TrainOptions, options) == (alone, options)


def test_numbers_and_flags_reach_the_configuration(tmp_path, capsys):
    small = " ".join(SMALL).replace("--frames 64", "--frames 6.4e1").replace("--quiet True", "--quiet").split()
    assert run(capsys, "train", *small, "--seed", "1e1", "cartpole", "--directory", tmp_path / "run")[0] == 0
    config = RunDirectory(tmp_path / "run").read_config()
    assert (config.run.frames, config.run.seed, config.run.tensorboard) == (64, 10, False)


def test_a_directory_may_be_named_where_it_has_a_place():
    assert split(EvaluateOptions, ["--directory", "d", "--episodes", "3"]) == (["d"], ["--episodes", "3"])
    assert split(ExportOptions, ["--out", "agent.pt2", "--directory", "d"]) == (["d", "agent.pt2"], [])


@pytest.mark.parametrize("command", [["train", "--help"], ["presets"]])
def test_a_reader_that_leaves_ends_a_command_quietly(command):
    process = subprocess.Popen(
        [sys.executable, "-m", "vmpo", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == ("", 0)


def test_a_finished_run_says_so_and_is_not_evaluated_again(tmp_path, capsys, monkeypatch):
    small = ["3" if word == "0" else word for word in SMALL]
    first = run(capsys, "train", "cartpole", *small, "--directory", tmp_path / "run", "--json")[1].splitlines()
    before = contents(tmp_path)

    def play(*_, **__):
        raise AssertionError("it was evaluated again")

    monkeypatch.setattr("vmpo.evaluation.evaluate_weights", play)
    for frames in ([], ["--frames", "64"]):
        code, out, _ = run(capsys, "resume", tmp_path / "run", *frames, "--quiet", "--json")
        assert code == 0
        again = out.splitlines()
        assert again[0] == "already finished at 64 frames; --frames M trains on, to M in all"
        assert again[1:3] == first[1:3]
        assert again[1].startswith("greedy evaluation: ")
        assert json.loads(again[-1]) == json.loads(first[-1])
    assert contents(tmp_path) == before


def test_an_evaluation_that_is_missing_or_of_other_weights_is_made(tmp_path, capsys):
    small = ["3" if word == "0" else word for word in SMALL]
    assert run(capsys, "train", "cartpole", *small, "--directory", tmp_path / "run")[0] == 0
    file = tmp_path / "run" / "evaluation.json"
    good = file.read_text()
    for damaged in ("", "[]", '{"summary": {"learner_step": 1}}', good.replace('"learner_step"', '"step"')):
        file.write_text(damaged)
        assert "greedy evaluation" in run(capsys, "resume", tmp_path / "run", "--quiet")[1]
        assert file.read_text() == good


@pytest.mark.parametrize("frames", [32, 63])
def test_fewer_frames_than_there_are_change_nothing(finished_run, capsys, frames):
    before = contents(finished_run)
    code, out, err = run(capsys, "resume", finished_run, "--frames", frames)
    assert (code, out) == (2, "")
    assert err == f"vmpo: {finished_run} has 64 frames already; --frames {frames} must be more\n"
    assert contents(finished_run) == before


def test_an_evaluation_names_its_checkpoint(finished_run, capsys):
    out = run(capsys, "evaluate", finished_run, "--episodes", "1")[1].splitlines()
    assert out[0] == "checkpoint: learner step 16, 64 agent steps"
    _, out, err = run(capsys, "evaluate", finished_run, "--episodes", "1", "--json")
    assert err == "checkpoint: learner step 16, 64 agent steps\n"
    assert (json.loads(out)["learner_step"], json.loads(out)["agent_steps"]) == (16, 64)


def test_an_untrained_checkpoint_is_called_so(tmp_path, capsys, monkeypatch):
    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "loop", killed)
    assert run(capsys, "train", "cartpole", *SMALL, "--directory", tmp_path / "run")[0] == 130
    out = run(capsys, "evaluate", tmp_path / "run", "--episodes", "1")[1]
    assert out.startswith("checkpoint: learner step 0, 0 agent steps; it is untrained: no later one was saved\n")


def test_a_directory_that_holds_a_run_on_a_users_module_names_the_whole_command(tmp_path, capsys):
    train = ["train", "--env", "probes:Counting-v0", *SMALL, "--directory", tmp_path / "a run"]
    assert run(capsys, *train)[0] == 0
    code, _, err = run(capsys, *train)
    assert code == 2
    assert err.endswith(f"choose another directory, or go on with it: vmpo resume '{tmp_path}/a run' --trust\n")


def test_what_a_killed_start_left_is_no_obstacle(tmp_path, capsys):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for rubbish in (".lock", ".config.json.1.tmp"):
        (tmp_path / "run" / rubbish).touch()
    assert run(capsys, "train", "cartpole", *SMALL, "--directory", tmp_path / "run")[0] == 0


def test_small_returns_have_digits(capsys):
    result = RunResult(
        directory=Path("d"), learner_steps=1, agent_steps=1, frames=1, seconds=1.0, return_mean=0.9612, evaluation=None,
        finished=True,
    )  # fmt: skip
    _report(result, False)
    assert capsys.readouterr().out.splitlines()[0].endswith("mean return of the last episodes 0.9612")
    _print_evaluation({"mean_return": 0.00312, "std_return": 0.1, "episodes": 3}, False, "greedy")
    assert capsys.readouterr().out == "greedy evaluation: 0.00312 +- 0.1 over 3 episodes\n"


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
    script = "import signal; own = signal.getsignal(2); import vmpo; print(signal.getsignal(2) is own)"
    (tmp_path / "own.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    for command in (["own.py", "vmpo"], ["-m", "own", "-m", "vmpo"]):
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout == "True\n"
