"""Execution of marked code blocks of a page, in order, as a user who follows the page.

A code block has one of these lines before it:

- `<!-- file: NAME -->`: it is written to this file.
- `<!-- runnable -->`: it is executed, Python with the interpreter of the environment, shell with
  `sh`. Blocks begin in one folder, and `cd` applies to the following ones.
- `<!-- second terminal -->`: it is started and stays until the end of the page, or until the next
  one of them. Port 8000 of a mock server becomes a free one, also in the following blocks and in
  configurations.
"""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess

MARKED_BLOCK = re.compile(
    r"^<!-- (?P<mark>runnable|second terminal|file: (?P<file>\S+)) -->\n"
    r"```(?P<language>\w+)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)

#: Port that pages name, and the line of a mock server that listens.
PORT, READY = "8000", "(Ctrl-C stops it)"

#: Maximum time of one block, in seconds.
TIMEOUT = 240


class SecondTerminal:
    """A command that runs beside the blocks of a page."""

    def __init__(
        self, code: str, port: str, folder: pathlib.Path, environment: dict[str, str]
    ) -> None:
        for path in folder.glob("*.yaml"):
            path.write_text(path.read_text().replace(f":{PORT}/", f":{port}/"))
        self.process = subprocess.Popen(
            ["sh", "-euc", f"exec {code.strip()} --port {port}"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        output = ""
        while READY not in output:
            line = self.process.stdout.readline()
            assert line, f"{code}\n{output}"
            output += line

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=60)


def follow(page: pathlib.Path, folder: pathlib.Path, environment: dict[str, str]) -> pathlib.Path:
    """Executes the marked blocks of a page in a folder; returns the folder of the last one."""
    current, second = folder / "current_folder", None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    try:
        for number, block in enumerate(MARKED_BLOCK.finditer(page.read_text()), start=1):
            code = block["code"]
            if block["file"]:
                (folder / block["file"]).write_text(code)
                continue
            if block["mark"] == "second terminal":
                if second:
                    second.close()
                second = SecondTerminal(code, port, folder, environment)
                continue
            if second:
                code = code.replace(f":{PORT}/", f":{port}/")
            if block["language"] == "python":
                script = folder / f"block_{number}.py"
                script.write_text(code)
                command = ["python", str(script)]
            else:
                command = ["sh", "-eu", "-c", f"{code}pwd > {shlex.quote(str(current))}"]
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT,
            )
            assert done.returncode == 0, f"{code}\n{done.stdout[-4000:]}"
            if current.exists():
                folder = pathlib.Path(current.read_text().strip())
    finally:
        if second:
            second.close()
    return folder


def with_programs(*folders: pathlib.Path | str, **more: str) -> dict[str, str]:
    """Returns the environment with folders of programs first."""
    path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
    return {**os.environ, "PATH": path, **more}
