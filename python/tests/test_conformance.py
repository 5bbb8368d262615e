"""The worker against the conformance kit of the protocol."""

import os
import subprocess
import sys

import pytest


def test_the_worker_keeps_to_the_protocol(tmp_path):
    kit = os.environ.get("ROLLWAY_CONFORMANCE_BIN")
    if kit is None:
        pytest.fail(
            "ROLLWAY_CONFORMANCE_BIN is not set: build the binary with "
            "`cargo build --release -p rollway-conformance --example conformance` and name it",
            pytrace=False,
        )
    command = [kit, sys.executable, "-m", "rollway.conformance"]
    report = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert report.returncode == 0, f"{report.stdout}\n{report.stderr[-4000:]}"
    assert ", 0 failed" in report.stdout and "skipped" not in report.stdout, report.stdout
