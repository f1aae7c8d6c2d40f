"""The file that is written: self-contained, safe against names, whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_samples import HOSTILE, groups_of, write_run

from vmpo import report
from vmpo.cli import main
from vmpo.report import videos
from vmpo.report.page import SCRIPTS, embedded_json, render
from vmpo.report.runs import read_runs


class Elements(HTMLParser):
    """The elements that a browser would see, with their attributes, and the text of scripts."""

    def __init__(self, page):
        super().__init__()
        self.found, self.scripts = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.found and self.found[-1][0] == "script":
            self.scripts[-1] += data


def hostile_run(folder):
    """A run whose task, preset and videos have markup for names, in a folder that has one too."""
    name = HOSTILE.replace("/", "∕")
    path = write_run(folder / name, tasks=(HOSTILE, "other" + HOSTILE), preset=HOSTILE, env__level_cache=HOSTILE)
    (path / "videos").mkdir()
    (path / "videos" / f"{name}.gif").write_bytes(b"GIF89a")
    return path


def test_hostile_names_stay_data(tmp_path):
    plain = write_run(tmp_path / "plain")
    page = render(groups_of(hostile_run(tmp_path), plain))
    harmless = render(groups_of(plain, write_run(tmp_path / "other", run__seed=1)))
    elements = Elements(page)
    assert elements.found[1:] == [(tag, {**attributes}) for tag, attributes in Elements(harmless).found[1:]], (
        "names have added elements"
    )
    assert len(elements.scripts) == 2
    data = json.loads(elements.scripts[0])
    assert data["tasks"] == sorted([HOSTILE, "other" + HOSTILE, "CartPole-v1"])
    assert data["videos"][0]["name"].startswith("<∕script>")
    assert HOSTILE in data["settings"]["differences"]["env.level_cache"]


@pytest.mark.parametrize("text", ["</script>", "<!--", "<script", "]]>", "&lt;", "\u2028", "\ud800"])
def test_embedded_json_means_the_same_and_has_no_markup(text):
    embedded = embedded_json({text: [text]})
    assert json.loads(embedded) == {text: [text]}
    assert not set("<>&\u2028") & set(embedded)
    assert embedded.isascii()


def test_only_the_pages_own_script_and_style_may_run_and_nothing_is_fetched(tmp_path):
    page = render(groups_of(write_run(tmp_path / "a")))
    policy = re.search(r'Security-Policy" content="([^"]*)"', page).group(1)
    assert policy.startswith("default-src 'none'; img-src data:; media-src data:;")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    addresses = set(re.findall(r"(?:https?:)?//[\w.]+\.\w+[^\s\"']*", re.sub(r"^\s*//.*$", "", page, flags=re.M)))
    assert addresses <= {"http://www.w3.org/2000/svg"}, "the namespace of SVG is a name and is not fetched"


def test_no_script_of_the_page_makes_markup_of_text():
    folder = Path(report.__file__).parent
    source = "".join((folder / name).read_text() for name in SCRIPTS)
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", source) == []
    assert "textContent" in source


def test_a_failed_write_leaves_the_old_page_and_no_rubbish(tmp_path, monkeypatch):
    run, out = write_run(tmp_path / "a"), tmp_path / "pages" / "report.html"
    out.parent.mkdir()
    out.write_text("old")

    def full(self, content):
        with open(self, "wb") as file:
            file.write(content[:100])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(report.page.UserError, match="No space left"):
            report.write([run], out)
    assert out.read_text() == "old"
    assert os.listdir(out.parent) == ["report.html"]
    written = report.write([run], out)
    assert written.size == out.stat().st_size > 10_000
    assert os.listdir(out.parent) == ["report.html"]


def test_videos_are_embedded_up_to_a_size(tmp_path):
    path = write_run(tmp_path / "a")
    (path / "videos").mkdir()
    for name, size in {"1.mp4": 600, "2.GIF": 600, "3.mp4": 300, "notes.txt": 10}.items():
        (path / "videos" / name).write_bytes(b"x" * size)
    found = videos.embedded(read_runs([path]), most_bytes=1000)
    assert [(video["name"], "data" in video) for video in found] == [("1.mp4", True), ("2.GIF", False), ("3.mp4", True)]
    assert found[0]["data"] == "data:video/mp4;base64," + base64.b64encode(b"x" * 600).decode()
    assert "not embedded" in found[1]["note"]


def test_a_link_out_of_the_run_is_not_embedded(tmp_path):
    path = write_run(tmp_path / "a")
    (path / "videos").mkdir()
    (tmp_path / "secret").write_text("key")
    (path / "videos" / "1.mp4").symlink_to(tmp_path / "secret")
    (path / "videos" / "2.mp4").symlink_to(path / "config.json")
    assert [video["name"] for video in videos.embedded(read_runs([path]))] == ["2.mp4"]


def command(capsys, *arguments):
    code = main(["report", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_writes_the_page_and_tells_of_damage(tmp_path, capsys):
    runs = [write_run(tmp_path / f"a{seed}", run__seed=seed) for seed in range(2)]
    with open(runs[0] / "metrics.jsonl", "a") as file:
        file.write('{"torn')
    out = tmp_path / "page.html"
    code, printed, errors = command(capsys, *runs, "--out", out)
    assert (code, errors) == (0, "note: a0: 1 damaged line of metrics.jsonl skipped\n")
    assert printed.startswith(f"{out}: 2 runs in 1 group on 1 task, ")
    assert "1 damaged line of metrics.jsonl skipped" in out.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "at least one run directory"),
        (["missing"], "missing is no run directory"),
        (["empty"], "empty holds no run (no config.json)"),
        (["run", "empty"], "empty holds no run"),
        (["."], "it contains runs, such as"),
        (["broken"], "config.json cannot be read"),
        (["odd"], "config.json must be an object of settings"),
        (["run", "--out", "empty"], "empty is a directory"),
        (["run", "--out", "nowhere/report.html"], "directory nowhere does not exist"),
        (["run", "--uot", "x.html"], "did you mean '--out'?"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistakes_end_with_one_line_and_write_nothing(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    for name, content in {"broken": "{", "odd": "[]"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(content)
    code, printed, errors = command(capsys, *arguments)
    assert (code, printed, errors.count("\n")) == (2, "", 1)
    assert message in errors
    assert sorted(os.listdir(tmp_path)) == ["broken", "empty", "odd", "run"]
