"""What must not happen, collected."""

from __future__ import annotations

import logging
from collections import Counter

_MOST_KEPT = 50


class Findings(logging.Handler):
    """Failures, by kind, and what fronts log: warnings count, and every error is a failure.

    What engines log of their own deaths is not a front's.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.failures: list[str] = []
        self.kinds: Counter[str] = Counter()
        self.warnings: Counter[str] = Counter()

    def fail(self, kind: str, what: object) -> None:
        self.kinds[kind] += 1
        if len(self.failures) < _MOST_KEPT:
            self.failures.append(f"{kind}: {what}")

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("aiohttp"):
            return
        if record.levelno >= logging.ERROR or record.exc_info:
            text = logging.Formatter().format(record)
            self.fail("logged", f"{record.name}: {text}")
        else:
            self.warnings[f"{record.name}: {record.msg}"] += 1

    def listen(self) -> None:
        """To be called once the fronts have set up their logging."""
        for name in (None, "uvicorn"):
            logging.getLogger(name).addHandler(self)

    def close(self) -> None:
        for name in (None, "uvicorn"):
            logging.getLogger(name).removeHandler(self)
        super().close()
