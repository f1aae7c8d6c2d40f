"""The rooms of the package and the one direction in which they import each other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "vmpo"

MAY_IMPORT = {
    "errors": set(),
    "records": {"errors"},
    "config": {"errors"},
    "values": {"records"},
    "popart": {"records"},
    "distributions": {"records"},
    "scores": set(),
    "signals": set(),
    "metrics": {"records", "errors", "scores"},
    "health": set(),
    "memory": set(),
    "shared_memory": {"records"},
    "display": {"metrics", "health"},
    "user_code": {"config", "errors"},
    "networks": {"records", "config", "errors", "user_code", "distributions", "networks"},
    "losses": {"records", "values", "popart", "distributions", "networks", "errors", "losses"},
    "learning": {
        *("records", "config", "errors", "user_code", "values", "popart"),
        *("distributions", "networks", "losses", "learning"),
    },
    "suites": {"records", "config", "errors", "user_code", "scores", "signals", "shared_memory", "suites"},
    "acting": {
        *("records", "config", "errors", "scores", "signals", "memory", "shared_memory"),
        *("distributions", "networks", "metrics", "acting"),
    },
    "presets": {"config", "errors", "presets"},
    "run_directory": {"config", "errors", "user_code"},
    "report": {"__version__", "config", "errors", "presets", "scores", "run_directory", "report"},
}
"""Rooms that are not named here (train, bench, cli, the package itself) stand at the top and may import all."""

SIMULATORS = {"gymnasium", "ale_py", "envpool", "dm_control", "mujoco", "miniworld", "deepmind_lab"}

NEED_RAY = {"vmpo.cluster", "vmpo.learner_process", "vmpo.acting.remote", "vmpo.sweep"}
"""Modules that import Ray; nobody else imports one of them before it is needed."""


def imports(path):
    """(module, at the top of the file?) of every import."""
    tree = ast.parse(path.read_text())
    at_top = set(tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node in at_top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "vmpo":
            yield from ((f"vmpo.{alias.name}", node in at_top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module, node in at_top


def room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_imports_run_one_way():
    checked = 0
    for path in PACKAGE.rglob("*.py"):
        allowed = MAY_IMPORT.get(room(path))
        if allowed is None:
            continue
        for module, _ in imports(path):
            if module.startswith("vmpo."):
                checked += 1
                assert module.split(".")[1] in allowed, f"{path.relative_to(PACKAGE)} imports {module}"
    assert checked > 30


def test_simulators_are_imported_by_their_adapters_alone_and_only_when_needed():
    for path in PACKAGE.rglob("*.py"):
        for module, at_top in imports(path):
            if module.split(".")[0] in SIMULATORS:
                # The benchmarks' ceiling is of the simulators themselves, without an adapter.
                assert room(path) in ("suites", "workloads"), f"{path.relative_to(PACKAGE)} imports {module}"
                # Gymnasium is a core dependency; the others must not be asked for before they are needed.
                assert not at_top or module.startswith("gymnasium"), f"{path.relative_to(PACKAGE)} imports {module}"


def test_ray_is_needed_by_few_modules_and_asked_for_by_none_before_its_time():
    for path in PACKAGE.rglob("*.py"):
        name = "vmpo." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for module, at_top in imports(path):
            if module.split(".")[0] == "ray":
                assert name in NEED_RAY, f"{name} imports {module}"
            if module in NEED_RAY and at_top:
                assert name in NEED_RAY, f"{name} imports {module}"


def test_no_file_outgrows_a_reader():
    lengths = {path.relative_to(PACKAGE): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {str(path): n for path, n in lengths.items() if n > 400} == {}


def test_every_test_that_the_documentation_names_exists():
    named = set(re.findall(r"`(test_\w+)`", (PACKAGE.parent / "docs" / "algorithm.md").read_text()))
    defined = {
        node.name
        for path in Path(__file__).parent.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    assert len(named) > 20
    assert named - defined == set()
