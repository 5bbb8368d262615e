"""A real vLLM with a tiny model, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest

#: Seconds until the server must be ready; it imports PyTorch on a machine that may be busy.
START_TIMEOUT = 600


def free_port() -> int:
    """Returns a port that no process listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def vllm_python() -> str:
    """Returns the interpreter that has vLLM."""
    python = os.environ.get("ROLLWAY_VLLM_PYTHON")
    if not python:
        message = "ROLLWAY_VLLM_PYTHON is not set: run `cargo xtask test real`"
        pytest.fail(message, pytrace=False)
    return python


class Vllm:
    """The server; `dev_mode` has the endpoints of weight updates, `arguments` are further ones."""

    def __init__(
        self,
        model: pathlib.Path,
        dev_mode: bool = True,
        port: int | None = None,
        arguments: tuple[str, ...] = (),
    ):
        self._python = vllm_python()
        self._arguments = arguments
        self._model = model
        self._dev_mode = dev_mode
        self._process: subprocess.Popen | None = None
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        """Starts it, again at the same address after a stop."""
        env = os.environ | {
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_SERVER_DEV_MODE": "1" if self._dev_mode else "0",
        }
        # Not `vllm serve`: it looks for a package of another name than that of the CPU build.
        command = [self._python, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(self._model), "--served-model-name", "tiny"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--max-model-len", "20480", "--dtype", "float32", "--enforce-eager"]
        command += ["--max-num-seqs", "64", "--logprobs-mode", "processed_logprobs"]
        command += ["--generation-config", "vllm", "--enable-scale-out"]
        command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", *self._arguments]
        self._lines: list[str] = []
        self._process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        # Unread output must never block the server.
        reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        reader.start()
        deadline = time.monotonic() + START_TIMEOUT
        while not self.is_healthy():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                pytest.fail("vLLM did not start:\n" + "".join(self._lines[-30:]), pytrace=False)
            time.sleep(0.2)

    def _read(self, output) -> None:
        for line in output:
            self._lines.append(line)
            del self._lines[:-400]

    def is_healthy(self) -> bool:
        """Tells whether it answers."""
        try:
            self.get("/health")
        except OSError:
            return False
        return True

    def request(self, method: str, path: str, body: object = None) -> tuple[int, object]:
        """Sends a request straight to the server; returns the status and the JSON, or the text."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"} if data else {}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                status, content = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, content = error.code, error.read()
        try:
            return status, json.loads(content)
        except ValueError:
            return status, content.decode(errors="replace")

    def get(self, path: str) -> object:
        """Returns the answer to a `GET`, which must succeed."""
        status, answer = self.request("GET", path)
        assert status == 200, (path, status, answer)
        return answer

    def post(self, path: str, body: object = None) -> dict:
        """Returns the answer to a `POST`, which must succeed."""
        status, answer = self.request("POST", path, {} if body is None else body)
        assert status == 200, (path, status, answer)
        return answer

    def version(self) -> str:
        """Returns the name of the version that it reports."""
        return self.get("/weight_info")["weight_version"]

    def is_paused(self) -> bool:
        """Tells whether it is paused."""
        return self.get("/is_paused")["is_paused"]

    def metric(self, name: str) -> float:
        """Returns the sum of a metric over its labels."""
        lines = self.get("/metrics").splitlines()
        found = [line for line in lines if line.startswith((f"{name} ", name + "{"))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)

    def change_weights(self, folder: pathlib.Path, version: int | str) -> None:
        """Changes its weights behind the gateway, as a trainer does that sends them itself."""
        self.post("/pause?mode=keep")
        self.post("/reset_prefix_cache?reset_running_requests=true")
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        self.post("/collective_rpc", reload)
        self.post("/update_weight_version", {"new_version": str(version)})
        self.post("/resume")

    def kill(self) -> None:
        """Ends it at once, with its workers."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=60)
        self._process = None
