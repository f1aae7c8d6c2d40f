"""Words as numbers, for observations that are text."""

from __future__ import annotations

import zlib

import numpy as np
from jaxtyping import Int64

VOCABULARY = 1000
"""Hash buckets, in which different words may meet."""


def hash_words(text: str, length: int = 16) -> Int64[np.ndarray, " length"]:
    """Codes 1 to 1000 of the first ``length`` words, padded by 0.

    CRC-32 of the lower-cased word: the same in every process and on every machine, unlike Python's salted hash.
    """
    codes = np.zeros(length, np.int64)
    words = text.lower().split()[:length]
    codes[: len(words)] = [zlib.crc32(word.encode()) % VOCABULARY + 1 for word in words]
    return codes
