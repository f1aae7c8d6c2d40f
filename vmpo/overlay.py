"""Frames of a video: a picture of any size, made large enough to see, over a strip that tells how the episode goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import UInt8

from vmpo.errors import missing_extra

WIDTH = 320
"""Pixels that a frame is at least wide; smaller pictures are enlarged by a whole factor, so that pixels stay sharp."""

TALLEST = 1080
"""Pixels that a picture is not enlarged beyond."""

TITLE, LABEL, NUMBER = 10, 9, 16
"""Heights of the letters in a strip 320 pixels wide; they grow with it."""

LINES = (3, 18, 29, 52)
"""Where the title, the labels and the numbers stand below the strip's top, and its end."""

BLACK, GRAY, WHITE = (0, 0, 0), (160, 160, 160), (255, 255, 255)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caption:
    title: str
    numbers: dict[str, str]
    """What the strip shows side by side, by label."""


class Canvas:
    """Draws frames of one size, which the first picture decides; a picture of another size is fitted in."""

    def __init__(self, height: int, width: int) -> None:
        self.factor = max(1, min(-(-WIDTH // width), TALLEST // height))
        self._picture = (height * self.factor, width * self.factor)
        # Even numbers: the usual format of colours halves both axes.
        self.width = _even(max(WIDTH, self._picture[1]))
        self._unit = self.width / WIDTH
        self.strip = _even(self._picture[0] + round(LINES[-1] * self._unit)) - self._picture[0]
        """Height of the strip, below the picture."""
        self.height = self._picture[0] + self.strip
        self._fonts = {size: _font(round(size * self._unit)) for size in (TITLE, LABEL, NUMBER)}

    def frame(self, picture: UInt8[np.ndarray, "h w 3"], caption: Caption) -> UInt8[np.ndarray, "H W 3"]:
        frame = np.zeros((self.height, self.width, 3), np.uint8)
        enlarged = self._fitted(picture)
        left = (self.width - enlarged.shape[1]) // 2
        frame[: enlarged.shape[0], left : left + enlarged.shape[1]] = enlarged
        frame[self._picture[0] :] = self._strip(caption)
        return frame

    def _fitted(self, picture: np.ndarray) -> np.ndarray:
        if picture.shape[0] * self.factor == self._picture[0] and picture.shape[1] * self.factor == self._picture[1]:
            return picture.repeat(self.factor, axis=0).repeat(self.factor, axis=1)
        from PIL import Image, ImageOps

        return np.asarray(ImageOps.pad(Image.fromarray(picture), self._picture[::-1]))

    def _strip(self, caption: Caption) -> np.ndarray:
        from PIL import Image, ImageDraw

        image = Image.new("RGB", (self.width, self.strip), BLACK)
        draw = ImageDraw.Draw(image)
        title, labels, numbers, _ = (round(line * self._unit) for line in LINES)
        margin = round(6 * self._unit)
        draw.text((margin, title), caption.title, GRAY, self._fonts[TITLE])
        column = (self.width - margin) // len(caption.numbers)
        for index, (label, number) in enumerate(caption.numbers.items()):
            left = margin + index * column
            draw.text((left, labels), label, GRAY, self._fonts[LABEL])
            draw.text((left, numbers), number, WHITE, self._fonts[NUMBER])
        return np.asarray(image)


def shown(number: float) -> str:
    """A number in at most eight characters or so."""
    if abs(number) >= 1e6:
        return f"{number:.3g}"
    return f"{number:,.0f}" if abs(number) >= 10_000 else f"{number:,.2f}"


def _even(number: int) -> int:
    return number + number % 2


def _font(size: int) -> Any:
    """Pillow's own letters, which need no font of the system."""
    try:
        from PIL import ImageFont
    except ImportError as error:
        raise missing_extra("pillow", "video") from error
    return ImageFont.load_default(size)
