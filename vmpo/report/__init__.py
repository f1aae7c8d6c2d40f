"""``vmpo report``: runs as one self-contained page. ``vmpo.report.write([directory, ...], "report.html")``."""

from vmpo.report.page import Report, write

__all__ = ["Report", "write"]
