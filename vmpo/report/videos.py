"""Videos of a run as data addresses, within a limit of size."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from vmpo.report.runs import Run

KINDS = {".mp4": "video/mp4", ".gif": "image/gif"}

MOST_BYTES = 30_000_000
"""Bytes of video in one page; more would make it slow to open and too large to send."""


def embedded(runs: Sequence[Run], most_bytes: int = MOST_BYTES) -> list[dict[str, Any]]:
    """The videos in the runs' ``videos`` folders, oldest name first; one that is too large has a note in its place."""
    found = []
    left = most_bytes
    for index, run in enumerate(runs):
        folder = run.path / "videos"
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            kind = KINDS.get(path.suffix.lower())
            # A link could bring any file of the reader's disk into a page that is passed on.
            if kind is None or not path.is_file() or not path.resolve().is_relative_to(run.path.resolve()):
                continue
            video = {"run": index, "name": path.name, "kind": kind}
            size = path.stat().st_size
            if size <= left:
                left -= size
                video["data"] = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
            else:
                limit = f"{most_bytes / 1e6:.0f} MB of video fit in a page"
                video["note"] = f"not embedded: {size / 1e6:.1f} MB, and {limit}"
            found.append(video)
    return found
