"""The documentation: links lead somewhere, options exist, and the code of the guides runs."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples import small_config

import vmpo
from vmpo.config import Config
from vmpo.export import export_policy

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
OPTION = re.compile(r"--(env|agent|loss|learner|actors|run)\.([a-z-]+)")


def anchors(page: Path) -> set[str]:
    """The ids that GitHub and MkDocs give to a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language, or in none."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}"


# The page on reliability shows mistakes, which test_bad_input performs.
@pytest.mark.parametrize("page", [page for page in PAGES if page.stem != "reliability"], ids=lambda page: page.name)
def test_options_that_are_named_exist(page: Path) -> None:
    fields = {
        section.name: {field.name for field in dataclasses.fields(getattr(Config(), section.name))}
        for section in dataclasses.fields(Config)
        if dataclasses.is_dataclass(getattr(Config(), section.name))
    }
    for section, option in OPTION.findall(page.read_text()):
        assert option.replace("-", "_") in fields[section], f"{page.name} names --{section}.{option}"


def test_every_page_is_in_the_site_and_the_other_way_round() -> None:
    named = set(re.findall(r"([\w-]+\.md)", (ROOT / "mkdocs.yml").read_text()))
    assert named == {page.name for page in PAGES} - {"README.md"}


def test_the_environment_of_the_guide_trains_from_the_command_line_and_in_python(tmp_path: Path) -> None:
    environment, script = blocks("own-environment.md", "python")
    (tmp_path / "corridor.py").write_text(environment)
    (tmp_path / "script.py").write_text(script.replace("50_000", "2_000"))
    command = blocks("own-environment.md", "")[0].strip().replace("50000", "2000").split()
    for arguments in ([sys.executable, "-m", *command, "--quiet"], [sys.executable, "script.py"]):
        done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "corridor" / "metrics.jsonl").exists()


@pytest.fixture
def guide(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python in a folder that holds the modules of the guide to Python."""
    _, _, encoder, loss = blocks("python.md", "python")
    (tmp_path / "fourier.py").write_text(encoder)
    (tmp_path / "regression.py").write_text(loss)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True)

    return run


def test_the_scripts_of_the_guide_to_python_run(guide: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    script, callback, _, _ = blocks("python.md", "python")
    done = guide("-c", script.replace("20_000", "4_000"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] in ("0", "1")
    done = guide("-c", callback.replace("100.0", "30.0"))
    assert done.returncode == 0, done.stderr
    steps, finished, best = done.stdout.split()
    assert finished == "False"
    assert 0 < int(steps) < 100_000
    assert float(best) > 30.0


def test_exported_agents_are_called_as_the_guide_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    vmpo.train(small_config(env={"id": "CartPole-v1"}), "run", quiet=True)
    policy = vmpo.load("run")
    onnx, program = blocks("watch.md", "python")
    for file, script in (("agent.onnx", onnx), ("agent.pt2", program)):
        export_policy(policy, Path(file))
        names: dict[str, Any] = {}
        exec(script, names)
        assert names["action"].tolist() == policy.act(np.zeros((1, 4)))[0].tolist()


def test_the_script_of_the_first_page_runs_without_a_guard(tmp_path: Path) -> None:
    (script,) = blocks("../README.md", "python")
    (tmp_path / "script.py").write_text(
        script.replace('"cartpole"', "config").replace(
            "import vmpo\n",
            "import vmpo\nfrom dataclasses import replace\n"
            'config = vmpo.presets.get("cartpole").config\n'
            "config = replace(config, run=replace(config.run, frames=2_000, evaluation_episodes=0))\n",
        )
        + "\nprint(action)\n"
    )
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] in ("0", "1")


@pytest.mark.parametrize("index", [0, 1], ids=["encoder", "loss"])
def test_code_of_ones_own_trains_and_is_trusted_only_on_request(
    index: int, guide: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    command = blocks("python.md", "")[index].strip().replace("20000", "4000").split()
    done = guide("-m", *command, "--quiet", "--directory", "run")
    assert done.returncode == 0, done.stderr
    refused = guide("-m", "vmpo", "evaluate", "run", "--episodes", "2")
    assert refused.returncode == 2
    assert "--trust" in refused.stderr
    allowed = guide("-m", "vmpo", "evaluate", "run", "--episodes", "2", "--trust")
    assert allowed.returncode == 0, allowed.stderr


def test_own_code_of_the_guide_is_short() -> None:
    for block in [*blocks("own-environment.md", "python")[:1], *blocks("python.md", "python")[2:]]:
        assert len(block.splitlines()) < 30
