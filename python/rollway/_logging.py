"""Where the package's words go: to Python's `logging`, under `rollway`."""

from __future__ import annotations

import logging
import sys


class LastResort(logging.Handler):
    """Writes to standard error as long as the program has not set up logging itself."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:
            return
        try:
            sys.stderr.write(f"{record.levelname.lower()}: {record.name}: {record.getMessage()}\n")
        except Exception:
            self.handleError(record)


def install() -> None:
    """Makes the package heard."""
    logger = logging.getLogger("rollway")
    if not any(isinstance(handler, LastResort) for handler in logger.handlers):
        logger.addHandler(LastResort())
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
