"""Docker sandboxes against a stand-in for the command `docker`."""

import asyncio
import json
import os
import sys

import pytest
from sandbox_processes import leases, wait

import rollway as rw


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """A folder of fake containers, and the options of sandboxes in them."""
    state = tmp_path / "docker"
    state.mkdir()
    monkeypatch.setenv("FAKE_DOCKER", str(state))
    program = tmp_path / "docker-program"
    fake = os.path.join(os.path.dirname(__file__), "fake_docker.py")
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {fake} "$@"\n')
    program.chmod(0o755)
    settings = rw.sandbox.SandboxSettings(folder=str(tmp_path / "leases"), check_interval=0.05)
    return state, {"docker": str(program), "settings": settings}


def containers(state):
    return sorted(path.name for path in state.iterdir() if path.is_dir())


async def test_commands_and_files_of_a_container(docker):
    state, options = docker
    files = {"a.txt": "one"}
    limits = {"memory_bytes": 2**30, "cpus": 1.5, "processes": 100, "user": "1000"}
    async with rw.sandbox.docker("python:3.12", files, **options, **limits) as box:
        assert containers(state) == [f"rollway-{box.id}"]
        (call,) = [json.loads(line) for line in (state / "calls.jsonl").open()]
        assert call["image"] == "python:3.12" and call["label"] == f"rollway.lease={box.id}"
        assert (call["memory"], call["cpus"], call["pids_limit"]) == ("1073741824", "1.5", "100")
        assert (call["network"], call["user"], call["workdir"]) == ("host", "1000", "/work")
        # The container ends by itself with its lease.
        assert 3590 < int(call["command"][-1]) <= 3600
        ended = await box.exec("cat a.txt; cat; echo $KEY", stdin="typed", env={"KEY": "secret"})
        assert ended.stdout == "onetypedsecret\n"
        assert (await box.exec(["sh", "-c", "exit 3"])).exit_code == 3
        await box.write_file("deep/b.txt", "two")
        assert await box.read_text(f"{box.folder}/deep/b.txt") == "two"
        with pytest.raises(FileNotFoundError, match="missing"):
            await box.read_file("missing")
    assert containers(state) == [] and leases(options["settings"].folder) == []


async def test_an_abandoned_command_ends_inside_the_container(docker):
    state, options = docker
    async with rw.sandbox.docker("image", **options) as box:
        command = "echo $$ >new; mv new pid; exec sleep 1000"
        waiting = asyncio.ensure_future(box.exec(command))
        while not (await box.exec("test -e pid")).ok:
            pass
        pid = await box.read_text("pid")
        assert os.path.exists(f"/proc/{pid.strip()}")
        # Both ends are the same code.
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.to_thread(wait, lambda: not os.path.exists(f"/proc/{pid.strip()}"))
        assert (await box.exec("exec sleep 1000", timeout=0.5)).timed_out
        assert (await box.exec("echo usable")).stdout == "usable\n"


async def test_failures_of_the_engine_are_failures_of_the_sandbox(docker):
    state, options = docker
    with pytest.raises(rw.SandboxError, match="Unable to find image"):
        await rw.sandbox.docker("missing", **options).start()
    assert leases(options["settings"].folder) == []
    box = await rw.sandbox.docker("image", **options).start()
    (state / "no-daemon").touch()
    for use in (box.exec("true"), box.read_file("a"), box.write_file("a", "")):
        with pytest.raises(rw.SandboxError, match="Cannot connect"):
            await use
    await box.close()
    # The reaper ends it as soon as the engine is back.
    assert containers(state) and leases(options["settings"].folder)
    (state / "no-daemon").unlink()
    await asyncio.to_thread(wait, lambda: not leases(options["settings"].folder))
    assert containers(state) == []
