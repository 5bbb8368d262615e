"""Helpers of the sandbox tests: what is left of sandboxes on this machine."""

import os
import pathlib
import time

MARK = b"ROLLWAY_SANDBOX="


def marked(ids):
    """Returns the processes of sandboxes with these ids."""
    wanted = [MARK + one.encode() + b"." for one in ids]
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            variables = pathlib.Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(variable.startswith(tuple(wanted)) for variable in variables):
            found.append(int(entry))
    return found


def leases(folder):
    """Returns the ids of the leases in a folder of leases."""
    return sorted(path.stem for path in pathlib.Path(folder).glob("*/*.lease"))


def wait(condition, seconds=60):
    """Waits for what no event announces: another process."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)
    return found
