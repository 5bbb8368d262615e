"""Starts what the tests of the gateway talk to: a gateway, and a real inference server."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import urllib.error
import urllib.request
from collections import deque

import programs
import pytest


def post(url: str, body: object, key: str | None = None) -> dict:
    """Asks a server directly."""
    headers = {"content-type": "application/json"}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


class Gateway:
    """A gateway in a process of its own, in front of servers such as `vllm=simulated`."""

    def __init__(self, *arguments: str):
        program = programs.program("ROLLWAY_GATEWAY_BIN")
        self._process = subprocess.Popen(
            [program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        first = self._process.stdout.readline()
        assert first, f"the gateway did not start: {arguments}"
        started = json.loads(first)
        self.url = started["url"]
        self.base_url = started["url"] + "/v1"
        self.admin_key = started["admin_key"]
        self.servers = started["servers"]
        self._keys = deque(started["keys"])

    def key(self) -> str:
        """Returns an unused run key."""
        if not self._keys:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            self._keys.extend(json.loads(self._process.stdout.readline())["keys"])
        return self._keys.popleft()

    def experiences(self, key: str) -> list:
        """Returns what was recorded of a run."""
        import rollway as rw

        url = f"{self.url}/rollway/v1/run/experiences"
        request = urllib.request.Request(url, headers={"authorization": f"Bearer {key}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return rw.Experience.deserialize_many(answer.read())

    def admin(self, method: str, path: str, body: object = None) -> dict:
        """Sends a request with the admin key."""
        headers = {"authorization": f"Bearer {self.admin_key}", "content-type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        url = f"{self.url}/rollway/v1{path}"
        request = urllib.request.Request(url, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)

    def server(self, model: str = "policy") -> dict:
        """Returns the state of the first server of a model."""
        models = self.admin("GET", "/models")["models"]
        return next(it for it in models if it["name"] == model)["servers"][0]

    def refusal(self, key: str) -> tuple[int, str]:
        """Returns why nothing of a run can be had: the status and the message."""
        with pytest.raises(urllib.error.HTTPError) as caught:
            self.experiences(key)
        with caught.value as error:
            return error.code, json.load(error)["error"]["message"]

    def close(self) -> None:
        """Ends the gateway and expects that it ended well."""
        self._process.stdin.close()
        assert self._process.wait(timeout=30) == 0
        self._process.stdout.close()


class Llama:
    """The real `llama-server` of llama.cpp, with a tiny model."""

    def __init__(self, *arguments: str):
        program = programs.program("ROLLWAY_LLAMA_SERVER")
        model = programs.program("ROLLWAY_LLAMA_MODEL")
        self._process = subprocess.Popen(
            [program, "--model", model, "--alias", "tiny", "--port", "0", "--offline"]
            + ["--parallel", "8", "--ctx-size", "32768", "--threads", "1", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        log_lines = []
        for line in self._process.stdout:
            log_lines.append(line)
            if match := re.search(r"listening on (http://\S+)", line):
                self.url = match[1]
                break
        else:
            pytest.fail("llama-server did not start:\n" + "".join(log_lines[-20:]), pytrace=False)
        # Unread output must never block the server.
        threading.Thread(target=self._process.stdout.read, daemon=True).start()

    def ask(self, path: str, body: object) -> dict:
        """Asks it directly."""
        return post(self.url + path, body)

    def build(self) -> str:
        """Returns its version."""
        with urllib.request.urlopen(f"{self.url}/props", timeout=60) as answer:
            return json.load(answer)["build_info"]

    def tokenize(self, text: str) -> list[int]:
        """Returns the tokens of a text with marks."""
        return self.ask("/tokenize", {"content": text, "parse_special": True})["tokens"]

    def close(self) -> None:
        """Ends the server."""
        self._process.terminate()
        self._process.wait(timeout=30)
