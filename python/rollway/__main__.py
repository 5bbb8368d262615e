"""The `rollway` command: the same as the program, for the interpreter that it was installed in."""

from __future__ import annotations

import os
import signal
import sys

from rollway import _rollway


def main() -> int:
    # Workflows of a job run in the interpreter that the command belongs to.
    os.environ.setdefault("ROLLWAY_PYTHON", sys.executable)
    # The command handles Ctrl-C itself; Python's handler would only run after its end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _rollway.run_command(["rollway", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
