"""Supervisor of manual workers: `python -m rollway.worker --connect HOST:PORT`.

Equivalent to the command `rollway worker`, for machines that have only the Python package.
"""

from __future__ import annotations

import argparse
import sys

from rollway import _rollway
from rollway.worker.setup import start_arguments

#: Exit status for invalid input: wrong secret, other version.
REFUSED = 2


def main(arguments: list[str]) -> None:
    """Keeps worker processes running until the job ends; exits the process."""
    parser = argparse.ArgumentParser(
        prog="python -m rollway.worker",
        description="Run workers on this machine for a job on another one.",
    )
    parser.add_argument(
        "--connect",
        required=True,
        metavar="HOST:PORT|FILE",
        help="address of the job: tls:HOST:PORT#FINGERPRINT, HOST:PORT, or `cluster.json` in its "
        "folder",
    )
    parser.add_argument(
        "--secret-file",
        metavar="FILE",
        help="file with the secret of the job, or its `cluster.json`; default: the environment",
    )
    parser.add_argument("--runners", type=_count, default=4, help="runners per process")
    parser.add_argument("--processes", type=_count, default=1, help="number of processes")
    parser.add_argument(
        "--connect-timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="seconds to wait for the job to become reachable",
    )
    options = parser.parse_args(arguments)
    status, message = _rollway.supervise_workers(
        options.connect,
        options.secret_file,
        sys.executable,
        start_arguments(),
        options.processes,
        options.runners,
        options.connect_timeout,
    )
    if message is not None:
        print(f"error: {message}", file=sys.stderr)
    sys.exit(status)


def _count(text: str) -> int:
    count = int(text)
    if not 1 <= count <= 1024:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and 1024")
    return count
