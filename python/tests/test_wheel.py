"""The wheel in a fresh virtual environment: metadata, command, and a first job that learns."""

import json
import os
import pathlib
import re
import subprocess
import sys
import venv
import zipfile

import pytest
from elftools.elf.elffile import ELFFile
from marked_blocks import follow, with_programs

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


def test_the_license_is_in_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (license_file,) = [name for name in names if name.endswith("licenses/LICENSE")]
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        text = archive.read(license_file).decode()
        lines = archive.read(metadata).decode().splitlines()
    assert text == (ROOT / "LICENSE").read_text()
    assert "License-Expression: Apache-2.0" in lines and "License-File: LICENSE" in lines


def test_uv_runs_the_command(wheel, tmp_path):
    """Without an index: the requirements of the wheel are those that pip downloads."""
    download = ("-m", "pip", "download", "--quiet", "--only-binary=:all:", "--dest", tmp_path)
    run(sys.executable, *download, wheel)
    options = ("--offline", "--no-index", "--find-links", tmp_path, "--python", sys.executable)
    folders = {"UV_CACHE_DIR": tmp_path / "cache", "UV_TOOL_DIR": tmp_path / "tools"}
    variables = {**os.environ, **{name: str(path) for name, path in folders.items()}}
    command = (sys.executable, "-m", "uv", "tool", "run", *options, "--from", wheel)
    shown = run(*command, "rollway", "--version", env=variables)
    assert shown.split()[0] == "rollway"


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


def test_the_library_is_stripped(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        (library,) = [name for name in archive.namelist() if name.endswith(".so")]
        path = archive.extract(library, tmp_path)
    with open(path, "rb") as file:
        sections = {section.name for section in ELFFile(file).iter_sections()}
    assert ".dynsym" in sections
    assert not [name for name in sections if name == ".symtab" or name.startswith(".debug")]


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """Variables of a fresh virtual environment with the wheel, without those of the tests."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / "bin"
    run(programs / "python", "-m", "pip", "install", "--quiet", wheel)
    variables = with_programs(programs)
    is_ours = ("ROLLWAY", "PYTHON")
    return {name: text for name, text in variables.items() if not name.startswith(is_ours)}


@pytest.mark.timeout(180)
def test_a_first_job_learns_in_a_fresh_environment(environment, tmp_path):
    run("rollway", "init", "arithmetic", cwd=tmp_path, env=environment)
    folder = tmp_path / "arithmetic"
    run("rollway", "run", "job.yaml", cwd=folder, env=environment)
    first, last = scores(folder / "checkpoints/tutorial/arithmetic")
    assert last > first + 0.15


@pytest.mark.timeout(600)
def test_the_guide_works_in_a_fresh_environment(environment, tmp_path):
    """A workflow of one's own, first on the mock server, then trained; then a server's job."""
    folder = follow(ROOT / "docs/first-workflow.md", tmp_path, environment)
    first, last = scores(folder / "checkpoints/tutorial/first")
    assert last > first + 0.15
    served = json.loads((folder / "checkpoints/tutorial/first-server/summary.json").read_text())
    assert (served["state"], served["steps"], served["tasks_failed"]) == ("finished", 3, 0)


def scores(job):
    """Returns the scores of the first and of the last evaluation of a finished job."""
    summary = json.loads((job / "summary.json").read_text())
    assert summary["state"] == "finished", summary
    return summary["first_eval"], summary["last_eval"]
