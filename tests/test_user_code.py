"""Code of the user's: how it is named, and the line that is to blame where it fails."""

from __future__ import annotations

import importlib
import pickle
import sys

import pytest

from vmpo.errors import UserCodeError, UserError, defined, place_of, told
from vmpo.user_code import import_module, respelt

ENVIRONMENT = "class Helper: ...\ndef make(): ...\nclass Point(gymnasium.Env): ...\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in [name for name, module in sys.modules.items() if str(tmp_path) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("point.py:Point", "point:Point"),
        ("./point.py:Point", "point:Point"),
        ("point.py", "point:Point"),
        ("point", "point:Point"),
        ("point.Point", "point:Point"),
        ("inner/point.py:Point", "inner.point:Point"),
        ("inner.point.Point", "inner.point:Point"),
        ("inner.point", "inner.point:Point"),
        ("factory", "factory:make"),
        ("point:Point", None),
        ("inner.point:Point", None),
        ("empty", None),
        ("typo", None),
        ("CartPole-v1", None),
        ("no_such_module:Env", None),
        (":Env", None),
    ],
)
def test_a_file_that_is_there_is_named_as_it_must_be(folder, given, meant):
    (folder / "inner").mkdir()
    for name in ("point.py", "inner/point.py"):
        (folder / name).write_text(ENVIRONMENT)
    (folder / "factory.py").write_text("def make(): ...")
    (folder / "empty.py").touch()
    (folder / "typo.py").write_text("class Typo(:")
    assert respelt(given) == meant


def caught(function):
    try:
        function()
    except Exception as error:
        return error


def test_the_place_is_the_innermost_line_of_the_users_own(folder):
    package = folder / "own" / "envs"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("def outer(inner):\n    inner()\n")
    (package / "grid.py").write_text("import json\n\ndef read():\n    json.loads('{')\n")
    own, grid = importlib.import_module("own"), importlib.import_module("own.envs.grid")
    error = caught(lambda: own.outer(grid.read))
    assert place_of(error) == "own/envs/grid.py:4 in read"
    assert told(error).endswith("(own/envs/grid.py:4 in read)")
    assert place_of(caught(lambda: own.outer(None))) == "own/__init__.py:2 in outer"
    assert defined(grid.read) == "own/envs/grid.py:3 in read"


def test_an_installed_package_is_to_blame_where_nothing_of_the_users_is(folder, monkeypatch):
    package = folder / "site-packages" / "simulator"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def run(inner):\n    inner()\n")
    monkeypatch.syspath_prepend(str(folder / "site-packages"))
    simulator = importlib.import_module("simulator")
    error = caught(lambda: simulator.run(None))
    # This test is the user's as well; without its frame the package is left.
    assert place_of(error.with_traceback(error.__traceback__.tb_next.tb_next)) == "simulator/__init__.py:2 in run"


def test_what_is_no_ones_own_has_no_place():
    error = caught(lambda: import_module("no_such_module"))
    assert place_of(error.with_traceback(error.__traceback__.tb_next.tb_next)) == ""
    assert defined(importlib.import_module) == ""
    assert defined(len) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:", r"^broken.py:1: SyntaxError: "),
        ("\nimport nothing_like_this", r"^broken.py:2: ModuleNotFoundError: No module named 'nothing_like_this'$"),
        ("def f():\n    raise OSError('no\\nfile')\nf()", r"^broken.py:2 in f: OSError: no file$"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line_with_its_place(folder, text, message):
    (folder / "broken.py").write_text(text)
    with pytest.raises(UserCodeError, match=message) as raised:
        import_module("broken")
    assert raised.value.__cause__ is not None


@pytest.mark.parametrize("name", ["nothing", "nothing.inner", "json.nothing"])
def test_a_module_that_is_not_there_is_looked_for_elsewhere(name):
    with pytest.raises(UserError, match="run in the directory of that module, or install it"):
        import_module(name)


def test_the_error_survives_the_way_between_processes():
    error = pickle.loads(pickle.dumps(UserCodeError("KeyError: 'missing'", "broken.py:14 in step")))
    assert str(error) == "broken.py:14 in step: KeyError: 'missing'"
    assert told(error) == "KeyError: 'missing' (broken.py:14 in step)"
