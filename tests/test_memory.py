"""Freed memory stays with the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from vmpo.memory import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(32 * 2**20)  # 128 MiB, freed at once
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(mode: str) -> int:
    """Of ten equal tensors, one after another."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="about glibc")
def test_a_tensor_takes_the_pages_of_the_ones_before() -> None:
    usual = page_faults("usual")
    if usual < 10_000:
        pytest.skip("this system maps large tensors by few pages, or keeps them anyway")
    # A few times the allocator needs a little more for the alignment.
    assert page_faults("kept") < usual / 2
