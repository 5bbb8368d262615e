"""Client of pyright's language server: what an editor offers at a place of a file."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any


class LanguageServer:
    """A running language server with a folder as its workspace."""

    def __init__(self, folder: pathlib.Path) -> None:
        (folder / "pyrightconfig.json").write_text("{}")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pyright.langserver", "--stdio"],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._last = 0
        root = folder.as_uri()
        folders = [{"uri": root, "name": "tests"}]
        capabilities = {"workspace": {"configuration": True, "workspaceFolders": True}}
        self.request(
            "initialize",
            {
                "processId": None,
                "rootUri": root,
                "capabilities": capabilities,
                "workspaceFolders": folders,
            },
        )
        self._send({"method": "initialized", "params": {}})

    def completions(self, path: pathlib.Path, after: str) -> set[str]:
        """Returns the names that are offered behind the first occurrence of a text in a file."""
        text = path.read_text()
        before = text[: text.index(after) + len(after)]
        document = {"uri": path.as_uri(), "languageId": "python", "version": 1, "text": text}
        self._send({"method": "textDocument/didOpen", "params": {"textDocument": document}})
        place = {"line": before.count("\n"), "character": len(before.rpartition("\n")[2])}
        where = {"textDocument": {"uri": path.as_uri()}, "position": place}
        found = self.request("textDocument/completion", where)
        return {item["label"] for item in found["items"]}

    def request(self, method: str, params: dict[str, Any]) -> Any:
        """Sends a request and returns its result; answers the server's requests meanwhile."""
        self._last += 1
        self._send({"id": self._last, "method": method, "params": params})
        while True:
            message = self._receive()
            if "method" not in message and message.get("id") == self._last:
                assert "error" not in message, message
                return message["result"]
            if "method" in message and "id" in message:
                self._send({"id": message["id"], "result": self._answer(message)})

    def _answer(self, message: dict[str, Any]) -> Any:
        if message["method"] != "workspace/configuration":
            return None
        settings = {"pythonPath": sys.executable}
        items = message["params"]["items"]
        return [settings if item.get("section") == "python" else {} for item in items]

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        length = 0
        while line := self._process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        assert length, "the language server has ended"
        received: dict[str, Any] = json.loads(self._process.stdout.read(length))
        return received

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
