#!/usr/bin/env python3
"""Stand-in for the command `docker`: containers are folders and local processes.

Refuses arguments that the command does not have. The state is in the folder `FAKE_DOCKER`.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

STATE = pathlib.Path(os.environ["FAKE_DOCKER"])

#: Mark of the processes of a container.
MARK = "FAKE_DOCKER_CONTAINER"


def fail(code, text):
    print(text, file=sys.stderr)
    sys.exit(code)


def daemon_error(text):
    fail(1, f"Error response from daemon: {text}")


def container(name):
    path = STATE / name
    if not path.is_dir():
        daemon_error(f"No such container: {name}")
    return path, json.loads((path / "container.json").read_text())


def processes(name):
    wanted = f"{MARK}={name}".encode()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if wanted in pathlib.Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                yield int(entry)
        except OSError:
            pass


def run(arguments):
    parser = argparse.ArgumentParser()
    for flag in ("--detach", "--rm"):
        parser.add_argument(flag, action="store_true", required=True)
    for option in ("--name", "--label", "--network", "--workdir", "--entrypoint"):
        parser.add_argument(option, required=True)
    for option in ("--memory", "--cpus", "--pids-limit", "--user"):
        parser.add_argument(option)
    parser.add_argument("image")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    (STATE / "calls.jsonl").open("a").write(json.dumps(vars(given)) + "\n")
    if given.image == "missing":
        fail(125, f"Unable to find image '{given.image}:latest' locally")
    path = STATE / given.name
    path.mkdir()
    (path / "work").mkdir()
    first = subprocess.Popen(
        [given.entrypoint, *given.command],
        env={"PATH": os.environ["PATH"], MARK: given.name},
        cwd=path / "work",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    (path / "container.json").write_text(json.dumps({"first": first.pid, "folder": given.workdir}))
    print("0123456789abcdef")


def execute(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("--interactive", action="store_true")
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--workdir")
    parser.add_argument("name")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    path, known = container(given.name)
    if not os.path.exists(f"/proc/{known['first']}"):
        daemon_error(f"container {given.name} is not running")
    # A variable without a value has that of the client.
    assert not any("=" in one for one in given.env), "values in arguments are visible to others"
    variables = {name: os.environ[name] for name in given.env}
    inside = lambda word: word.replace(known["folder"], str(path / "work"))  # noqa: E731
    command = [inside(word) for word in given.command]
    if command[-1] == "kill -9 -1":
        # As the kernel does within the container: all processes but the first.
        for pid in processes(given.name):
            if pid not in (known["first"], os.getpid()):
                os.kill(pid, signal.SIGKILL)
        sys.exit(137)
    ended = subprocess.run(
        command,
        env={"PATH": os.environ["PATH"], MARK: given.name, **variables},
        cwd=inside(given.workdir or known["folder"]),
        stdin=None if given.interactive else subprocess.DEVNULL,
        start_new_session=True,
    )
    sys.exit(ended.returncode if ended.returncode >= 0 else 128 - ended.returncode)


def remove(arguments):
    parser = argparse.ArgumentParser()
    for flag in ("--force", "--volumes"):
        parser.add_argument(flag, action="store_true", required=True)
    parser.add_argument("name")
    name = parser.parse_args(arguments).name
    path, _ = container(name)
    for pid in processes(name):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(path)
    print(name)


COMMANDS = {"run": run, "exec": execute, "rm": remove}

if (STATE / "no-daemon").exists():
    fail(1, "Cannot connect to the Docker daemon at unix:///var/run/docker.sock.")
COMMANDS[sys.argv[1]](sys.argv[2:])
