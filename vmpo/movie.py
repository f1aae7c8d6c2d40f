"""A video file, mp4 or gif by its suffix, that appears whole or not at all. The encoder is ffmpeg, in a process."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from typing_extensions import Self

from vmpo.errors import UserError, missing_extra

FASTEST = {".mp4": 60.0, ".gif": 50.0}
"""Frames per second that players of a format keep up with; its keys are the formats. A gif counts in 1/100 s."""

ENCODING = {
    ".mp4": ["-c:v", "libx264", "-preset", "veryfast", "-crf", "20", "-pix_fmt", "yuv420p", "-movflags", "+faststart"],
    # A palette for each frame: one for all would need all frames in memory.
    ".gif": ["-filter_complex", "split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1:dither=none"],
}


def check_format(path: Path) -> None:
    """Refuse what could not be written, before any frame is made: another suffix, or no encoder."""
    if path.suffix.lower() not in FASTEST:
        raise UserError(f"unknown video format {path.suffix or path.name!r}; known: {', '.join(sorted(FASTEST))}")
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        raise missing_extra("imageio-ffmpeg", "video")


class Movie:
    """Takes frames of one even size within its context; the file stands in its place when the context ends well."""

    def __init__(self, path: Path, frames_per_second: float) -> None:
        check_format(path)
        self.path, self.frames_per_second = path, frames_per_second
        self.frames = 0
        self._temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix.lower()}")
        self._encoder: subprocess.Popen[bytes] | None = None
        self._complaints: Any = None

    def add(self, frame: UInt8[np.ndarray, "H W 3"]) -> None:
        encoder = self._encoder or self._start(*frame.shape[:2])
        assert encoder.stdin is not None
        try:
            encoder.stdin.write(np.ascontiguousarray(frame).data)
        except BrokenPipeError as error:
            raise self._failure() from error
        self.frames += 1

    def _start(self, height: int, width: int) -> subprocess.Popen[bytes]:
        import imageio_ffmpeg

        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._temporary.touch()
        except OSError as error:
            raise UserError(f"cannot write to {self.path.parent}: {error.strerror}") from error
        command = [imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24"]
        command += ["-s", f"{width}x{height}", "-r", f"{self.frames_per_second:.4f}", "-i", "-"]
        command += [*ENCODING[self.path.suffix.lower()], str(self._temporary.absolute())]
        # A file and not a pipe, which nobody would empty.
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115
        # In a session of its own: Ctrl-C is for the run to decide on, not for its encoder.
        self._encoder = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._complaints,
            start_new_session=True,
        )
        return self._encoder

    def _failure(self) -> UserError:
        """What the encoder said last."""
        assert self._encoder is not None
        self._encoder.wait()
        self._complaints.seek(0)
        said = self._complaints.read().decode(errors="replace").strip().splitlines()
        return UserError(f"{self.path} could not be written: {said[-1] if said else 'ffmpeg failed'}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and self._encoder is not None:
                self._finish(self._encoder)
        finally:
            self._discard()

    def _finish(self, encoder: subprocess.Popen[bytes]) -> None:
        assert encoder.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            encoder.stdin.close()
        if encoder.wait() != 0:
            raise self._failure()
        os.replace(self._temporary, self.path)

    def _discard(self) -> None:
        """End the encoder and remove what it wrote; after a good end there is nothing of either."""
        if self._encoder is None:
            return
        if self._encoder.poll() is None:
            self._encoder.kill()
            self._encoder.wait()
        with contextlib.suppress(OSError):
            if self._encoder.stdin is not None:
                self._encoder.stdin.close()
        self._complaints.close()
        self._temporary.unlink(missing_ok=True)
