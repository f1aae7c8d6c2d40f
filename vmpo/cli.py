"""The command line. A user's mistake ends with one line on standard error and exit code 2."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os
import re
import select
import sys
import traceback
import typing
from collections.abc import Callable, Sequence
from datetime import datetime
from types import ModuleType
from typing import Any

from vmpo import presets
from vmpo.arguments import Options, parse, split
from vmpo.config import Config
from vmpo.display import return_text
from vmpo.errors import RunFailed, UserError, missing_extra, unknown
from vmpo.metrics import plain_numbers
from vmpo.options import (
    BenchOptions,
    DoctorOptions,
    EvaluateOptions,
    ExportOptions,
    ReportOptions,
    ResumeOptions,
    SweepOptions,
    TrainOptions,
    WatchOptions,
)
from vmpo.run_directory import RunDirectory
from vmpo.signals import raise_interrupts
from vmpo.suites import is_environment

USAGE = """usage: vmpo COMMAND ...

  vmpo train [PRESET] [--env ID] [--directory D] [--frames N] [--seed S] [--section.field value ...]
  vmpo sweep [PRESET] [--trials N]    several runs, each with its own draw from the preset's ranges, on Ray Tune
  vmpo resume D [--frames N]          continue a run from its newest checkpoint
  vmpo evaluate D [--episodes N]      play whole episodes with a trained agent
  vmpo report D... [--out FILE]       one page with the curves, scores and health of one or more runs
  vmpo watch D [--out FILE.mp4|.gif]  record episodes of a trained agent as a video
  vmpo export D FILE.onnx|.pt2        write a trained agent for other programs, and check it
  vmpo doctor                         what is installed, what starts, what can draw
  vmpo presets [NAME]                 list the presets, or show one
  vmpo bench [WORKLOAD]               measure throughput on this machine

'vmpo COMMAND --help' explains every option of a command."""

FIRST_PROCESS = os.environ.get("RANK", "0") == "0"
"""False in all but one of the learner processes that torchrun starts."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command; its exit code."""
    try:
        raise_interrupts()
        code = _carry_out(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
        return code
    except (UserError, OSError, RunFailed) as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            return 0
        # Learner processes that were started together all end by a user's mistake, and one of them says so.
        if FIRST_PROCESS or not isinstance(error, UserError):
            if os.environ.get("VMPO_TRACEBACK", "0") != "0":
                traceback.print_exc()
            print(f"vmpo: {' '.join(str(error).split())}", file=sys.stderr)
        return 1 if isinstance(error, RunFailed) else 2
    except KeyboardInterrupt:
        print("vmpo: interrupted", file=sys.stderr)
        return 130


def _carry_out(arguments: list[str]) -> int:
    commands = {
        "train": _train,
        "sweep": _sweep,
        "resume": _resume,
        "evaluate": _evaluate,
        "report": _report_page,
        "watch": _watch,
        "export": _export,
        "doctor": _doctor,
        "presets": _presets,
        "bench": _bench,
    }
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:2], "--help"]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    command, *rest = arguments
    if command == "--version":
        from vmpo import __version__

        print(f"vmpo {__version__}")
        return 0
    if command.startswith("-"):
        later = next((word for word in rest if word in commands), "COMMAND")
        raise UserError(f"options come after the command: vmpo {later} {command} ...")
    if command not in commands:
        raise unknown("command", command, commands)
    try:
        return commands[command](rest)
    except SystemExit as stop:
        # After the help of a command.
        return int(stop.code or 0)


def _nobody_reads() -> bool:
    """Whether standard output is a pipe whose reader, such as head, has left; what remains then goes nowhere."""
    try:
        output = sys.stdout.fileno()
    except OSError:
        return False
    pipe = select.poll()
    pipe.register(output, 0)
    left = any(event & select.POLLERR for _, event in pipe.poll(0))
    if left:
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    return left


def _configured(kind: Callable[..., Options], command: str, arguments: list[str]) -> tuple[Options, Config, str]:
    """Options and configuration of a command that takes a preset and any field, and the default for its directory."""
    custom = any(word.split("=")[0] == "--env" for word in arguments)
    words, arguments = split(typing.cast(type, kind), arguments)
    if len(words) > 1:
        raise UserError(f"vmpo {command} takes one preset, not {' and '.join(words)}")
    name = words[0] if words else presets.DEFAULT
    if name not in presets.PRESETS and is_environment(name):
        raise UserError(f"{name} is an environment, not a preset; use --env {name}")
    preset, sections = presets.get(name), [f.name for f in dataclasses.fields(Config) if f.name != "preset"]
    default = kind(**{section: getattr(preset.config, section) for section in sections})
    options = parse(type(default), arguments, f"vmpo {command} [PRESET]", default)
    config = Config(preset=name, **{section: getattr(options, section) for section in sections})
    label = re.sub(r"[^A-Za-z0-9.-]+", "-", config.env.id) if custom else name
    return options, config, f"{label}-{datetime.now():%Y%m%d-%H%M%S}"


def _train(arguments: list[str]) -> int:
    options, config, name = _configured(TrainOptions, "train", arguments)
    directory = options.directory or f"runs/{name}"
    if options.cluster.address is not None:
        return _report(
            _with_ray("cluster").train(config, directory, options.cluster, quiet=options.quiet), options.json
        )
    from vmpo.train import train

    return _report(train(config, directory, quiet=options.quiet), options.json)


def _resume(arguments: list[str]) -> int:
    options = parse(ResumeOptions, arguments, "vmpo resume")
    choices: dict[str, Any] = {"frames": options.frames, "quiet": options.quiet, "trust": options.trust}
    if options.cluster.address is not None:
        return _report(_with_ray("cluster").resume(options.directory, options.cluster, **choices), options.json)
    from vmpo.train import resume

    return _report(resume(options.directory, **choices), options.json)


def _sweep(arguments: list[str]) -> int:
    options, config, name = _configured(SweepOptions, "sweep", arguments)
    directory = options.directory or f"runs/sweep-{name}"
    module = _with_ray("sweep")
    rows = module.sweep(config, directory, options.trials, options.address, options.quiet)
    print("\n".join(module.table(rows)))
    if rows[0]["score"] is not None:
        print(f"evaluate the best: {RunDirectory(f'{directory}/best').command('evaluate')}")
    if options.json:
        print(json.dumps({"directory": directory, "trials": rows}))
    return 0


def _with_ray(name: str) -> ModuleType:
    """A module that needs Ray, which not everyone has."""
    try:
        return importlib.import_module(f"vmpo.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "ray":
            raise missing_extra("ray", "ray") from None
        raise


def _evaluate(arguments: list[str]) -> int:
    options = parse(EvaluateOptions, arguments, "vmpo evaluate")
    from vmpo.evaluation import evaluate_run

    result = evaluate_run(
        options.directory,
        options.episodes,
        greedy=not options.sampled,
        seed=options.seed,
        held_out=options.held_out,
        best=options.best,
        trust=options.trust,
        tell=lambda text: print(text, file=sys.stderr, flush=True),
    )
    steps = f"learner step {result.learner_step:,}, {result.agent_steps:,} agent steps"
    untrained = "" if result.learner_step else "; it is untrained: no later one was saved"
    print(f"checkpoint: {steps}{untrained}", file=sys.stderr if options.json else sys.stdout)
    _print_evaluation(result.summary(), options.json, "sampled" if options.sampled else "greedy")
    return 0


def _report_page(arguments: list[str]) -> int:
    options = parse(ReportOptions, arguments, "vmpo report")
    from vmpo import report

    page = report.write(options.directories, options.out)
    for note in page.notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"{page.path}: {page.summary}, {page.size / 1e6:.1f} MB")
    return 0


def _watch(arguments: list[str]) -> int:
    options = parse(WatchOptions, arguments, "vmpo watch")
    from vmpo.video import watch

    print("\n".join(watch(options.directory, options.out, options, best=options.best, trust=options.trust).lines()))
    return 0


def _export(arguments: list[str]) -> int:
    options = parse(ExportOptions, arguments, "vmpo export")
    from vmpo.export import export

    print("\n".join(export(options.directory, options.out, best=options.best, trust=options.trust).lines()))
    return 0


def _doctor(arguments: list[str]) -> int:
    options = parse(DoctorOptions, arguments, "vmpo doctor")
    from vmpo.doctor import examine

    findings = examine(options.seconds)
    print(json.dumps(findings.summary()) if options.json else "\n".join(findings.lines()))
    return 0 if findings.sound else 1


def _presets(arguments: list[str]) -> int:
    if arguments and arguments[0] in ("-h", "--help"):
        print("usage: vmpo presets [NAME]\n\nList the presets, or print one as JSON with its sampled ranges.")
        return 0
    if len(arguments) > 1:
        raise UserError(f"vmpo presets takes one name, not {len(arguments)}")
    if not arguments:
        width = max(map(len, presets.PRESETS))
        for name, preset in presets.PRESETS.items():
            print(f"{name:{width}}  {preset.summary}")
        return 0
    preset = presets.get(arguments[0])
    print(json.dumps({"config": dataclasses.asdict(preset.config), "ranges": preset.ranges}, indent=2))
    return 0


def _bench(arguments: list[str]) -> int:
    options = parse(BenchOptions, arguments, "vmpo bench")
    from vmpo.bench import bench

    results = bench(options.workload, options.seconds)
    if options.json:
        print(json.dumps(results[0] if len(results) == 1 else {"workloads": results}))
    return 0


def _report(result: Any, as_json: bool) -> int:
    if not FIRST_PROCESS:
        return 0
    if result.trained:
        state = "finished" if result.finished else "stopped"
        returns = f"mean return of the last episodes {return_text(result.return_mean)}"
        print(
            f"{state} at {result.frames:,} frames ({result.agent_steps:,} agent steps, {result.seconds:.1f} s); "
            f"{'no episode has ended yet' if math.isnan(result.return_mean) else returns}"
        )
    else:
        print(f"already finished at {result.frames:,} frames; --frames M trains on, to M in all")
    evaluation = None if result.evaluation is None else result.evaluation.summary()
    if evaluation is not None:
        _print_evaluation(evaluation, False, "greedy")
    command = "evaluate" if result.finished else "resume"
    print(f"{command}: {RunDirectory(result.directory).command(command)}")
    if as_json:
        fields = {f.name: getattr(result, f.name) for f in dataclasses.fields(result) if f.name != "trained"}
        print(json.dumps(plain_numbers({**fields, "directory": str(result.directory), "evaluation": evaluation})))
    return 0


def _print_evaluation(summary: dict[str, Any], as_json: bool, how: str) -> None:
    if as_json:
        print(json.dumps(summary))
        return
    if "tasks" in summary:
        print(f"{how} evaluation, return over {summary['episodes'] // len(summary['tasks'])} episodes of each task:")
        print("\n".join(task_table(summary["tasks"])))
    else:
        mean, deviation = summary["mean_return"], summary["std_return"]
        digits = ".4g" if abs(mean) < 10 else ".2f"
        print(f"{how} evaluation: {mean:{digits}} +- {deviation:{digits}} over {summary['episodes']} episodes")
    if "unfinished" in summary:
        from vmpo.acting.evaluate import LONGEST_EPISODE

        print(
            f"{summary['unfinished']} of the episodes did not end within {LONGEST_EPISODE:,} steps and count as far as "
            "they got; --env.max-episode-steps sets a limit"
        )
    for name, value in summary.get("score", {}).items():
        print(f"human-normalised {name.replace('_', ' ')}: {value:.2f}")


def task_table(tasks: dict[str, dict[str, Any]]) -> list[str]:
    """A line per task; where the suite has reference scores, human-normalised and beside the paper's columns."""
    columns = {"mean_return": "return", "std_return": "+-", "human_normalised": "human %"}
    published = sorted({agent for values in tasks.values() for agent in values.get("published", {})})
    shown = [key for key in columns if any(key in values for values in tasks.values())]
    width = max(map(len, [*tasks, "task"]))
    lines = [f"{'task':{width}}" + "".join(f"{t:>12}" for t in [*(columns[k] for k in shown), *published])]
    for task, values in tasks.items():
        numbers = [values[key] for key in shown] + [values.get("published", {}).get(agent) for agent in published]
        lines.append(f"{task:{width}}" + "".join(f"{_short(number):>12}" for number in numbers))
    return lines


def _short(number: float | None) -> str:
    """Two decimals, or two digits of a small number."""
    if number is None:
        return "-"
    return f"{number:.2f}" if abs(number) >= 0.1 or number == 0 else f"{number:.2g}"


if __name__ == "__main__":
    sys.exit(main())
