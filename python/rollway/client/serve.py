"""Client of mode `serve`: agents call the model, send feedback and commit steps.

client = rw.ServeClient.of_job("checkpoints/project/job")
client.wait()
answer = client.openai().chat.completions.create(model=client.model(), messages=messages)
client.feedback(reward=1.0, msg_ids=[answer.id])
client.commit()
"""

from __future__ import annotations

import http.client
import json
import logging
import pathlib
import secrets
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from rollway.errors import Error
from rollway.models.base import openai

logger = logging.getLogger("rollway.serve")

#: Header that identifies a conversation, for prefix caches and retries.
SESSION = "x-rollway-session"


class ServeError(Error):
    """The server refused a request or did not respond. Has `status`; `None`: no response."""

    code = "serve_error"


class ServeClient:
    """Client of a job in mode `serve`; needs only the standard library, except for `openai()`.

    `task_id` is the default task of feedback; default: six random hexadecimal digits, different for
    every client. Idempotent requests are repeated up to `retries` times if the server does not
    respond; feedback and commits count once. `api_key` is the agent key; `metrics()` needs the
    admin key. `certificate` is the path of the server's certificate (PEM), for an `https://` URL
    whose certificate the roots of this machine do not confirm.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        task_id: str | int | None = None,
        timeout: float = 60.0,
        retries: int = 3,
        admin_key: str | None = None,
        certificate: str | pathlib.Path | None = None,
    ) -> None:
        self._tls = ssl.create_default_context()
        if certificate is not None:
            self._tls.load_verify_locations(cafile=certificate)
        self._has_certificate = certificate is not None
        self.base_url = base_url.strip().rstrip("/").removesuffix("/v1")
        self.api_key = api_key.strip() if api_key else None
        self.admin_key = admin_key.strip() if admin_key else None
        self.task_id = secrets.token_hex(3) if task_id is None else task_id
        self.timeout = timeout
        self.retries = retries
        #: Headers of every model call.
        self.session = secrets.token_hex(8)

    @classmethod
    def of_job(
        cls, folder: str | pathlib.Path, explorer: str = "explorer", **arguments: Any
    ) -> ServeClient:
        """Creates a client from the folder of a job on this machine."""
        folder = pathlib.Path(folder)
        url = (folder / f"{explorer}_server_url.txt").read_text()
        key = folder / f"{explorer}_server_key.txt"
        admin = folder / f"{explorer}_server_admin_key.txt"
        if admin.exists():
            arguments.setdefault("admin_key", admin.read_text())
        certificate = folder / "tls" / "certificate.pem"
        if url.startswith("https://") and certificate.exists():
            arguments.setdefault("certificate", certificate)
        return cls(url, key.read_text() if key.exists() else None, **arguments)

    def __repr__(self) -> str:
        return f"ServeClient({self.base_url!r}, task_id={self.task_id!r})"

    def is_healthy(self, timeout: float = 5.0) -> bool:
        """Returns whether the server responds."""
        try:
            self._send_once("GET", "/health", None, timeout)
        except ServeError:
            return False
        return True

    def wait(self, timeout: float = 60.0, interval: float = 0.2) -> None:
        """Waits until the server responds; raises `TimeoutError` after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not self.is_healthy(min(5.0, max(timeout, 0.1))):
            if time.monotonic() + interval > deadline:
                raise TimeoutError(f"no response from {self.base_url} within {timeout} s")
            time.sleep(interval)

    def model(self) -> str:
        """Returns the name of the trained model."""
        return self._json("GET", "/v1/models")["data"][0]["id"]

    def openai(self, **arguments: Any) -> Any:
        """Returns an `openai.OpenAI` for this server."""
        if self._has_certificate and "http_client" not in arguments:
            arguments["http_client"] = openai().DefaultHttpxClient(verify=self._tls)
        return openai().OpenAI(**self._openai_arguments(arguments))

    def async_openai(self, **arguments: Any) -> Any:
        """Returns an `openai.AsyncOpenAI` for this server."""
        if self._has_certificate and "http_client" not in arguments:
            arguments["http_client"] = openai().DefaultAsyncHttpxClient(verify=self._tls)
        return openai().AsyncOpenAI(**self._openai_arguments(arguments))

    def feedback(
        self,
        reward: float,
        msg_ids: Sequence[str],
        task_id: str | int | None = None,
        run_id: int = 0,
    ) -> dict[str, Any]:
        """Assigns a reward to completions by their ids.

        An id stands for all choices of a response; `ID/0`, `ID/1`, ... for one of them. Existing
        rewards stay. Returns the numbers of choices that were `accepted` and that had feedback
        `already`, and `unknown_ids`. Raises `ServeError` if all ids are unknown.
        """
        body = {
            "reward": reward,
            "msg_ids": [msg_ids] if isinstance(msg_ids, str) else list(msg_ids),
            "task_id": self.task_id if task_id is None else task_id,
            "run_id": run_id,
        }
        answer = self._json("POST", "/feedback", body)
        if answer["unknown_ids"]:
            logger.warning("feedback for unknown messages: %s", ", ".join(answer["unknown_ids"]))
        return answer

    def commit(self, timeout: float | None = None) -> dict[str, Any]:
        """Commits all feedback so far as one step for the trainer.

        Returns `step`, the number of `experiences` and the pipeline's `metrics`. Without feedback
        there is no new step. Undelivered experiences go with the next commit.
        """
        return self._json("POST", "/commit", {}, timeout)

    def metrics(self) -> dict[str, float]:
        """Returns the metrics of the server, such as `explore_step_num`; names include labels.

        Needs `admin_key`, which `of_job` reads from the job's folder.
        """
        numbers = {}
        key = self.admin_key or self.api_key
        for line in self._send("GET", "/metrics", None, None, key).decode().splitlines():
            name, _, value = line.rpartition(" ")
            if name and not line.startswith("#"):
                numbers[name.removeprefix("rollway_gateway_")] = float(value)
        return numbers

    def _openai_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        headers = {SESSION: self.session, **arguments.pop("default_headers", {})}
        ours = {
            "base_url": f"{self.base_url}/v1",
            "api_key": self.api_key or "none",
            "default_headers": headers,
        }
        return {**ours, **arguments}

    def _json(
        self, method: str, path: str, body: Any = None, timeout: float | None = None
    ) -> dict[str, Any]:
        return json.loads(self._send(method, path, body, timeout))

    def _send(
        self, method: str, path: str, body: Any, timeout: float | None, key: str | None = None
    ) -> bytes:
        """Sends an idempotent request, with retries."""
        timeout = self.timeout if timeout is None else timeout
        for attempt in range(self.retries + 1):
            try:
                return self._send_once(method, path, body, timeout, key)
            except ServeError as error:
                if attempt == self.retries or error.status not in (None, 429, 503):
                    raise
                time.sleep(min(0.25 * 2**attempt, 5.0))
        raise AssertionError("unreachable")

    def _send_once(
        self, method: str, path: str, body: Any, timeout: float, key: str | None = None
    ) -> bytes:
        headers = {"Content-Type": "application/json"}
        key = key or self.api_key
        if key:
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        url = f"{self.base_url}{path}"
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            tls = self._tls if url.startswith("https://") else None
            with urllib.request.urlopen(request, timeout=timeout, context=tls) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            with error:
                message = _message(error.read())
            what = f"{method} {url} responded with status {error.code}: {message}"
            raise ServeError(what, status=error.code) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise ServeError(f"no response from {url}: {reason}", status=None) from error


def _message(body: bytes) -> str:
    try:
        return json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:500]
