"""The worker against the conformance kit of the protocol."""

import subprocess
import sys

from programs import program


def test_the_worker_keeps_to_the_protocol(tmp_path):
    kit = program("ROLLWAY_CONFORMANCE_BIN")
    command = [kit, sys.executable, "-m", "rollway.worker.conformance"]
    report = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert report.returncode == 0, f"{report.stdout}\n{report.stderr[-4000:]}"
    assert ", 0 failed" in report.stdout and "skipped" not in report.stdout, report.stdout
