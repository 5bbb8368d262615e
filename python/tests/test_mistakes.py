"""Planted mistakes in a first job: the message that explains each, and the exit code.

`UPDATE_EXPECT=1` rewrites the table of `docs/mistakes.md`.
"""

import http.server
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import venv

import pytest
from mistakes import INTERRUPTED, MISTAKES, SMALL

ROLLWAY = (sys.executable, "-m", "rollway")
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "mistakes.md"

#: Maximum wait for a message or the end of a command, in seconds.
TIMEOUT = 120.0

ALL = [mistake for group in MISTAKES.values() for mistake in group]


class Command:
    """A running `rollway` command, with the output of both streams."""

    def __init__(self, *words, cwd, env=None):
        variables = {name: text for name, text in os.environ.items() if name != "ROLLWAY_PYTHON"}
        self.began = time.monotonic()
        self.text = ""
        self._process = subprocess.Popen(
            [*ROLLWAY, *map(str, words)],
            cwd=cwd,
            env={**variables, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def wait_for(self, *parts, timeout=TIMEOUT):
        """Reads until all parts have appeared, in order, or the output ends."""
        deadline = time.monotonic() + timeout
        while not appeared(self.text, parts):
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            if line is None:
                self._lines.put(None)
                break
            self.text += line
        return time.monotonic() - self.began

    def end(self):
        """Waits for the end; returns the exit code."""
        while (line := self._lines.get(timeout=TIMEOUT)) is not None:
            self.text += line
        return self._process.wait(timeout=TIMEOUT)

    def interrupt(self):
        self._process.send_signal(signal.SIGINT)

    def kill(self):
        self._process.kill()
        self._process.wait()


def appeared(text, parts):
    start = 0
    for part in parts:
        start = text.find(part, start)
        if start < 0:
            return False
        start += len(part)
    return True


class World:
    """Folder of a job with a mistake, and the processes around it."""

    def __init__(self, folder, mistake):
        self.mistake = mistake
        self.job = folder / "job"
        self.keys = [*SMALL, "name=job"]
        self.values = {}
        self.commands = []
        subprocess.run([*ROLLWAY, "init", "job"], cwd=folder, check=True, capture_output=True)
        if mistake.config == "server.yaml":
            words = ("mock-server", "--port", 0, *mistake.server)
            self.server = Command(*words, cwd=folder, env=mistake.env)
            self.commands.append(self.server)
            self.server.wait_for("(Ctrl-C stops it)")
            url = next(word for word in self.server.text.split() if word.startswith("http://"))
            self.keys.append(f"explorer.rollout_model.base_url={url}/v1")

    def make_mistake(self):
        for name, content in self.mistake.files.items():
            (self.job / name).write_text(content)
        for old, new in self.mistake.edits.items():
            path = self.job / self.mistake.config
            text = path.read_text()
            assert old in text
            path.write_text(text.replace(old, new))

    def run(self, *more):
        folder = self.job / self.mistake.cwd
        config = os.path.relpath(self.job / self.mistake.config, folder)
        keys = [*self.keys, *self.mistake.keys, *more]
        for name, value in self.values.items():
            keys = [key.replace(f"{{{name}}}", str(value)) for key in keys]
        variables = {"ROLLWAY_PYTHON": sys.executable, **self.mistake.env}
        self.commands.append(Command("run", config, *keys, cwd=folder, env=variables))
        return self.commands[-1]

    def close(self):
        for command in self.commands:
            command.kill()


def changed_tasks(world):
    first = world.run("buffer.total_steps=1")
    assert first.end() == 0, first.text
    path = world.job / "train.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:50]))


def bare_python(world):
    folder = world.job.parent / "bare"
    venv.create(folder)
    # The tests may find the package through PYTHONPATH.
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {folder / "bin" / "python"} "$@"\n')
    script.chmod(0o755)
    world.values["python"] = script


def used_port(world):
    world.listener = socket.create_server(("127.0.0.1", 0))
    world.values["port"] = world.listener.getsockname()[1]


def web_server(world):
    """Starts a server without any page, which is no inference server."""

    class Nothing(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(404)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Nothing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    world.values["port"] = server.server_address[1]
    world.commands.append(server)
    server.kill = server.shutdown


def second_process(world):
    first = world.run("buffer.total_steps=100000")
    first.wait_for("step 1 of")


def owned_buffer(world):
    first = world.run("buffer.total_steps=1", "name=first")
    assert first.end() == 0, first.text


def dying_server(world):
    """Kills the server in the middle of the job."""

    def kill(command):
        command.wait_for("mode both, 2 steps")
        world.server.kill()
        command.began = time.monotonic()

    world.after_start = kill


@pytest.mark.parametrize("mistake", ALL, ids=[mistake.what for mistake in ALL])
def test_the_message_explains_the_mistake(mistake, tmp_path):
    world = World(tmp_path, mistake)
    try:
        if mistake.prepare:
            globals()[mistake.prepare](world)
        world.make_mistake()
        command = world.run()
        getattr(world, "after_start", lambda _: None)(command)
        took = command.wait_for(*mistake.sees)
        if mistake.code == INTERRUPTED:
            command.interrupt()
        code = command.end()
        print(f"after {took:.1f} s, exit code {code}:\n{command.text}")
        assert appeared(command.text, mistake.sees), mistake.sees
        assert code == mistake.code
    finally:
        world.close()


BEGIN, END = "<!-- begin: generated by python/tests/test_mistakes.py -->", "<!-- end -->"


def table():
    text = ""
    for group, planted in MISTAKES.items():
        text += f"\n## {group}\n\n| mistake | message | exit code |\n|---|---|---|\n"
        for mistake in planted:
            shown = " … ".join(mistake.sees).replace("|", "\\|")
            text += f"| {mistake.what} | {code_span(shown)} | {mistake.code} |\n"
    return text


def code_span(text):
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def test_the_page_has_the_table():
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    text = f"{before}{BEGIN}\n{table()}\n{END}{after}"
    if os.environ.get("UPDATE_EXPECT"):
        PAGE.write_text(text)
    assert PAGE.read_text() == text, f"{PAGE} is out of date; UPDATE_EXPECT=1 rewrites it"
    assert len(ALL) >= 30
