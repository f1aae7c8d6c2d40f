"""The doctor tells what is there, what is not and what does not work, and survives simulators that crash or hang."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from pathlib import Path

import pytest

from vmpo import __version__, doctor
from vmpo.cli import main
from vmpo.doctor import Extra, Finding, Findings, examine


@pytest.fixture
def only(monkeypatch):
    """Let the doctor know these extras alone, found where the tests are."""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)

    def set_extras(**extras):
        monkeypatch.setattr(doctor, "EXTRAS", extras)

    return set_extras


def by_name(findings):
    return {finding.name: finding for finding in findings.findings}


def test_versions_devices_disk_and_threads_are_told(only, monkeypatch):
    only()
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    findings = by_name(examine())
    assert findings["vmpo"].detail == __version__
    for name in ("python", "torch", "numpy", "gymnasium", "devices", "disk", "threads"):
        assert findings[name].status == "ok"
    assert "cpu" in findings["devices"].detail
    assert "GB free" in findings["disk"].detail
    assert "OMP_WAIT_POLICY=active" in findings["threads"].detail
    assert f"{len(os.sched_getaffinity(0))} cores" in findings["threads"].detail
    assert findings["simulator gymnasium"] == Finding(name="simulator gymnasium", status="ok", detail="CartPole-v1")


def test_a_package_that_is_not_there_is_missing_with_the_command_that_installs_it(only, monkeypatch):
    only(atari=doctor.EXTRAS["atari"], video=doctor.EXTRAS["video"])
    find = importlib.util.find_spec
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None if name == "ale_py" else find(name))
    examined = examine()
    findings = by_name(examined)
    assert findings["extra atari"].status == "missing"
    assert findings["extra atari"].detail == "no ale_py; pip install -e '.[atari]'"
    assert findings["extra video"].status == "ok"
    assert "simulator atari" not in findings, "what is not installed is not started"
    assert examined.sound


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ("faulty:Crashes", "ended by SIGKILL"),
        ("faulty:CannotStart", "RuntimeError: the motor broke"),
        ("faulty:Stuck", "no answer within 8 s"),
        ("faulty:NoSuchThing", "unknown environment 'NoSuchThing'"),
    ],
)
def test_a_simulator_that_crashes_raises_or_hangs_is_reported_and_the_others_go_on(only, env, why, capsys):
    only(broken=Extra(modules=("numpy",), suite="gymnasium", env=env))
    started = time.monotonic()
    code = main(["doctor", "--json", "--seconds", "8" if "Stuck" in env else "100"])
    assert time.monotonic() - started < 100
    assert code == 1
    told = json.loads(capsys.readouterr().out)
    assert told["sound"] is False
    findings = {finding["name"]: finding for finding in told["findings"]}
    assert findings["extra broken"]["status"] == "ok"
    assert findings["simulator broken"]["status"] == "failed"
    assert why in findings["simulator broken"]["detail"]
    assert "rendering broken" not in findings
    if "Stuck" not in env:
        assert findings["simulator gymnasium"]["status"] == "ok"


@pytest.mark.parametrize(
    ("env", "status", "why"),
    [
        ("probes:Counting-v0", "ok", "5 x 4 pixels"),
        ("probes:Undrawable-v0", "missing", "gives no picture"),
        ("faulty:CrashesWhenDrawn", "failed", "ended by SIGKILL"),
    ],
)
def test_drawing_is_told_apart_from_starting(only, env, status, why):
    only(own=Extra(modules=("numpy",), suite="gymnasium", env=env))
    examined = examine()
    findings = by_name(examined)
    assert findings["simulator own"].status == "ok"
    assert findings["rendering own"].status == status
    assert why in findings["rendering own"].detail
    assert examined.sound == (status != "failed")


def test_the_table_is_aligned_one_line_each():
    findings = Findings(
        findings=(
            Finding(name="vmpo", status="ok", detail="1"),
            Finding(name="extra atari", status="missing", detail="2"),
            Finding(name="disk", status="failed", detail="3"),
        )
    )
    assert findings.lines() == [
        "vmpo         ok       1",
        "extra atari  missing  2",
        "disk         failed   3",
    ]
    assert not findings.sound


def test_every_extra_of_the_package_is_looked_for():
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    section = text.split("[project.optional-dependencies]")[1].split("\n\n")[0]
    named = {line.split("=")[0].strip() for line in section.strip().splitlines()} - {"all", "dev", "docs"}
    assert named - set(doctor.EXTRAS) == set()


def test_a_wait_of_no_time_is_refused(capsys):
    assert main(["doctor", "--seconds", "0"]) == 2
    assert capsys.readouterr().err == "vmpo: --seconds 0.0 must be a positive number\n"
