"""The lab's level cache: any key, any number of processes, and never half a level."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from vmpo.suites.lab import LevelCache


@pytest.mark.parametrize("key", ["../outside", "/tmp/absolute", "a/b/c", "x" * 5000, "naïve\n key?"])
def test_any_key_of_the_cache_is_a_harmless_file_of_its_own(key: str, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    cache, source, target = LevelCache(str(folder)), tmp_path / "level.pk3", tmp_path / "fetched.pk3"
    source.write_bytes(b"level")
    assert not cache.fetch(key, str(target))
    assert not target.exists()
    cache.write("another key", str(source))
    assert not cache.fetch(key, str(target))
    cache.write(key, str(source))
    assert cache.fetch(key, str(target))
    assert target.read_bytes() == b"level"
    assert len(list(folder.iterdir())) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "level.pk3", "fetched.pk3"}


def test_a_copy_that_breaks_off_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, source = tmp_path / "cache", tmp_path / "level.pk3"
    folder.mkdir()
    source.write_bytes(b"level")

    def break_off(_: str, target: Path) -> None:
        Path(target).write_bytes(b"le")
        raise OSError("no space left on device")

    monkeypatch.setattr(shutil, "copyfile", break_off)
    cache = LevelCache(str(folder))
    with pytest.raises(OSError, match="no space"):
        cache.write("key", str(source))
    assert not list(folder.iterdir())
    assert not cache.fetch("key", str(tmp_path / "fetched.pk3"))


def test_readers_never_see_half_a_level_while_others_write_it(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    cache, contents = LevelCache(str(folder)), [bytes([number]) * 500_000 for number in (1, 2)]
    stop = threading.Event()

    def write(number: int) -> None:
        source = tmp_path / f"level{number}.pk3"
        source.write_bytes(contents[number])
        while not stop.is_set():
            cache.write("key", str(source))

    first = tmp_path / "first.pk3"
    first.write_bytes(contents[0])
    cache.write("key", str(first))
    writers = [threading.Thread(target=write, args=(number,)) for number in (0, 1)]
    for writer in writers:
        writer.start()
    try:
        target = tmp_path / "fetched.pk3"
        fetched = [target.read_bytes() for _ in range(100) if cache.fetch("key", str(target))]
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert len(fetched) == 100
    assert set(fetched) <= set(contents)
    assert len(list(folder.iterdir())) == 1
