"""Workers by hand: `python -m rollway.worker --connect HOST:PORT`, for a job on another machine.

The command `rollway worker` does the same; this is for machines that have only the package.
"""

from __future__ import annotations

import argparse
import os
import sys

from rollway import _rollway

#: The exit status if what was given is at fault: a wrong secret, another version.
REFUSED = 2


def main(arguments: list[str]) -> None:
    """Keeps worker processes until the job needs no more, and ends this process."""
    parser = argparse.ArgumentParser(
        prog="python -m rollway.worker",
        description="Run workers on this machine for a job on another one.",
    )
    parser.add_argument(
        "--connect",
        required=True,
        metavar="HOST:PORT|FILE",
        help="where the job is: HOST:PORT, or the `cluster.json` in its folder",
    )
    parser.add_argument(
        "--secret-file",
        metavar="FILE",
        help="file with the secret of the job, or its `cluster.json`; else the environment has it",
    )
    parser.add_argument("--runners", type=_count, default=4, help="runners of each process")
    parser.add_argument("--processes", type=_count, default=1, help="how many processes there are")
    parser.add_argument(
        "--connect-timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="seconds to wait for the job to become reachable",
    )
    said = parser.parse_args(arguments)
    # As `python -m rollway.worker` without arguments, with the package that this process has.
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    code = f"import sys; sys.path[0] = {root!r}; from rollway.worker import main; main()"
    status, words = _rollway.keep_workers(
        said.connect,
        said.secret_file,
        sys.executable,
        ["-c", code],
        said.processes,
        said.runners,
        said.connect_timeout,
    )
    if words is not None:
        print(f"error: {words}", file=sys.stderr)
    sys.exit(status)


def _count(text: str) -> int:
    count = int(text)
    if not 1 <= count <= 1024:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and 1024")
    return count
