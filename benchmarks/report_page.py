"""How long a report of 50 runs with 10,000 log lines each takes to open in Chromium, as the page itself counts.

usage: PYTHONPATH=tests python benchmarks/report_page.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from browser import chromium
from report_samples import large_groups

from vmpo.report.page import render


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, chromium(Path(folder) / "profile") as tab:
        page = Path(folder) / "report.html"
        page.write_text(render(large_groups(50, 10_000)))
        tab.view(1300, 900)
        for _ in range(3):
            tab.open(page)
            print(f"{page.stat().st_size / 1e6:.1f} MB, {tab.run('document.documentElement.dataset.ready')} ms")


if __name__ == "__main__":
    main()
