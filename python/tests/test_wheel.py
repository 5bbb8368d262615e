"""The wheel in a fresh virtual environment: metadata, command, and a first job that learns."""

import json
import os
import pathlib
import re
import subprocess
import sys
import venv

import pytest

ROOT = pathlib.Path(__file__).parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


@pytest.fixture(scope="module")
def wheel():
    (path,) = (TARGET / "wheels").glob("rollway-*.whl")
    return path


def run(*command, **more):
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, **more
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_metadata_are_complete(wheel):
    assert "-cp310-abi3-manylinux_" in wheel.name
    assert "PASSED" in run(sys.executable, "-m", "twine", "check", "--strict", wheel)


def glibc(text):
    """Returns the version of the C library in a platform tag."""
    (version,) = re.findall(r"manylinux_(\d+)_(\d+)_", text)
    return tuple(map(int, version))


def test_the_library_fits_the_tags_of_the_wheel(wheel):
    """The platform tag allows the symbols of the C library, and the ABI tag those of Python."""
    shown = run(sys.executable, "-m", "auditwheel", "show", wheel)
    needed = re.search(r'platform\s+tag:\s+"(\S+)"', shown).group(1)
    assert glibc(needed) <= glibc(wheel.name), shown
    report = run(sys.executable, "-m", "abi3audit", "--strict", "--report", wheel)
    (spec,) = json.loads(report)["specs"].values()
    results = [library["result"] for library in spec["wheel"]]
    assert results, report
    for result in results:
        assert result["is_abi3"] and result["is_abi3_baseline_compatible"], report
        assert result["baseline"] == "3.10", report


def test_a_first_job_learns_in_a_fresh_environment(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    run(programs / "python", "-m", "pip", "install", "--quiet", wheel)
    variables = {name: text for name, text in os.environ.items() if not name.startswith("ROLLWAY")}
    run(programs / "rollway", "init", "arithmetic", cwd=tmp_path)
    folder = tmp_path / "arithmetic"
    steps = "buffer.total_steps=10"
    run(programs / "rollway", "run", "job.yaml", steps, cwd=folder, env=variables)
    summary = json.loads((folder / "checkpoints/tutorial/arithmetic/summary.json").read_text())
    assert summary["last_eval"] > summary["first_eval"] + 0.05, summary
