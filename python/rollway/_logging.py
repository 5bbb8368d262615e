"""Logging of the package: Python's `logging`, logger `rollway`."""

from __future__ import annotations

import logging
import sys


class LastResort(logging.Handler):
    """Writes to standard error until the program configures logging."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:
            return
        try:
            sys.stderr.write(f"{record.levelname.lower()}: {record.name}: {record.getMessage()}\n")
        except Exception:
            self.handleError(record)


def install() -> None:
    """Adds the handler of last resort and sets the default level."""
    logger = logging.getLogger("rollway")
    if not any(isinstance(handler, LastResort) for handler in logger.handlers):
        logger.addHandler(LastResort())
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
