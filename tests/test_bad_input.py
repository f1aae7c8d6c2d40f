"""Every mistake that a user can make, as the table of docs/reliability.md tells it: one line, its exit code, no loss.

``python tests/test_bad_input.py`` prints that table as it is now.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from mistakes import CASES, FILES, SMALL, Case

from vmpo.cli import main

TABLE = Path(__file__).parent.parent / "docs" / "reliability.md"


def perform(case: Case, finished_run: Path, folder: Path) -> tuple[int, str]:
    """Try a case in a folder, as the working directory: the exit code and standard error."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    if case.prepare is not None:
        shutil.copytree(finished_run, folder / "run")
        case.prepare(folder / "run")
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        code = main(case.command.split())
    return code, err.getvalue()


def make_run(folder: Path) -> Path:
    assert main(["train", "cartpole", *SMALL.split(), "--directory", str(folder / "finished")]) == 0
    return folder / "finished"


def row(case: Case, message: str) -> str:
    command = case.command.replace(SMALL, "...")
    return f"| {case.what} | `vmpo {command}` | {message} | {case.code} |"


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("bad-input"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{group}: {case.what}") for group, cases in CASES.items() for case in cases]
)
def test_a_mistake_is_one_line_with_its_exit_code_and_nothing_is_lost(case, finished_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vmpo.acting.faults.LONGEST_PAUSE", 0.0)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    if case.prepare is not None:
        shutil.copytree(finished_run, tmp_path / "expected" / "run")
        case.prepare(tmp_path / "expected" / "run")
    before = contents(tmp_path / "expected")
    shutil.rmtree(tmp_path / "expected", ignore_errors=True)
    code, err = perform(case, finished_run, tmp_path)
    assert (code, err.count("\n")) == (case.code, 1), err
    assert err.startswith("vmpo: ")
    assert case.message in err
    if case.code == 2:
        after = contents(tmp_path)
        assert {name: after.pop(name).decode() for name in FILES} == FILES
        assert after == before, "nothing is written or lost by a mistake"


def test_the_table_of_the_documentation_names_every_case():
    text = TABLE.read_text()
    missing = [c.what for cases in CASES.values() for c in cases if not _documented(c, text)]
    assert missing == []
    assert sum(map(len, CASES.values())) >= 40


def _documented(case: Case, text: str) -> bool:
    start, end = row(case, "\0").split("\0")
    lines = [line for line in text.splitlines() if line.startswith(start) and line.endswith(end)]
    return len(lines) == 1 and case.message in lines[0].replace("\\", "")


def print_table() -> None:
    from vmpo.acting import faults

    faults.LONGEST_PAUSE = 0.0
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder))
        for group, cases in CASES.items():
            print(f"\n### {group}\n| what | command | message | exit code |\n|---|---|---|---|")
            for case in cases:
                with tempfile.TemporaryDirectory() as place:
                    os.chdir(place)
                    _, err = perform(case, run, Path(place))
                    message = err.strip().removeprefix("vmpo: ").replace("|", "\\|")
                    print(row(case, message), flush=True)


if __name__ == "__main__":
    print_table()
