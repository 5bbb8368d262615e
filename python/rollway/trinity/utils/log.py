"""Loggers."""

from __future__ import annotations

import logging


def get_logger(
    name: str | None = None,
    level: int | None = None,
    in_ray_actor: bool = False,
    to_file: bool = True,
) -> logging.Logger:
    """Returns the logger of a name.

    Workers relay its records to the job's log, with batch, task and run. `in_ray_actor` and
    `to_file` select log files in Trinity-RFT; here the log of the job has all records.
    """
    logger = logging.getLogger(name or "trinity")
    if level is not None:
        logger.setLevel(level)
    return logger
