"""Trainer side of the synchronizer: publishes weights and reports the trainer's state.

A custom trainer needs one line after each step, which begins at `rw.latest_version(job)`:

    rw.publish_weights("checkpoints/Rollway/job", model.state_dict(), version=step)

A trainer that reports its state keeps explorers from waiting without need:

    with rw.Synchronizer("checkpoints/Rollway/job") as sync:
        while step < total:
            seen = sync.last_wait()
            try:
                batch = reader.read(timeout=1)
            except TimeoutError:
                sync.set_idle(seen)
                continue
            sync.set_training()
            step += 1
            loss = train(batch)
            sync.report(step, {"loss": loss})
            sync.publish(model.state_dict(), version=step)
"""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rollway import _rollway
from rollway.client import safetensors, transfer
from rollway.client._pending import PendingResult, identity
from rollway.errors import SynchronizerError

_MODEL = "model.safetensors"
_LATEST = "latest_state_dict_iteration.txt"
_ADDRESS_FILE = "synchronizer.json"
_ANY = 2**64 - 1
#: Methods that send tensors to the servers without files.
_TRANSFERS = ("nccl", "gloo")
_METHODS = ("checkpoint", "memory", *_TRANSFERS)
_LOG = logging.getLogger("rollway")

#: Arrays or tensors by name, the path of a safetensors file or folder, or an object with a
#: `state_dict()`, such as a torch module.
Weights = Mapping[str, Any] | str | os.PathLike[str] | Any


def publish_weights(
    url_or_dir: str | os.PathLike[str],
    state_dict_or_path: Weights,
    version: int,
    *,
    method: str | None = None,
    secret: str | None = None,
    timeout: float = 30.0,
    transfer_timeout: float = 120.0,
) -> str:
    """Publishes weights; a version older than the last one is rejected. Returns the used method.

    `url_or_dir` is the folder of a job or the address of its synchronizer, `state_dict_or_path` a
    state dict, an object that has one, or a path of safetensors. An address needs
    `secret` or the variable `ROLLWAY_SYNCHRONIZER_SECRET`. `method` is that of the job, or:

    - `checkpoint`: written to the folder. The job deletes old versions:
      `trainer.max_checkpoints_to_keep` are kept, and every `trainer.save_interval` versions one for
      good.
    - `memory`: sent to the synchronizer, which stores them in memory.
    - `nccl`, `gloo`: sent from this process to the servers, without files. Returns when the servers
      have read back the version. If that fails or takes more than `transfer_timeout` seconds, the
      reason is logged as a warning and the weights are published as with `checkpoint` or `memory`.
    """
    target = os.fspath(url_or_dir)
    _check_method(method)
    is_address = "://" in target
    chosen = method or (None if is_address else _method(target))
    weights = _state_of(state_dict_or_path)
    if is_address:
        inner = _open(target, secret, timeout)
        chosen = chosen or _known(str(inner.method))
        if chosen in _TRANSFERS:
            if _transfer(lambda: inner, weights, version, chosen, transfer_timeout):
                return chosen
            chosen = "memory"
        _send(inner, weights, version)
        return chosen
    if chosen == "memory":
        _send(_open(target, secret, timeout), weights, version)
        return chosen
    if chosen in _TRANSFERS:
        connections: list[Any] = []

        def opened() -> Any:
            connections.append(_open(target, secret, timeout))
            return connections[0]

        if _transfer(opened, weights, version, chosen, transfer_timeout):
            return chosen
        folder = _write(target, weights, version)
        for inner in connections:
            _announce(inner, version, folder)
        return "checkpoint"
    # Weights in a folder are found even if no synchronizer runs.
    _write(target, weights, version)
    return "checkpoint"


def latest_version(job: str | os.PathLike[str]) -> int:
    """Returns the last version in the folder of a job; 0 for none. A resumed trainer begins there.

    Its weights are in `global_step_<version>` of the folder.
    """
    try:
        return int((Path(job) / _LATEST).read_text())
    except FileNotFoundError:
        return 0


class Synchronizer:
    """Connection of a trainer to the synchronizer of a job.

    `job` is the job's folder or the synchronizer's address. As a context manager it registers the
    trainer as a member and ends the membership as done, or as failed if an exception passes. Calls
    block until the response; Ctrl-C interrupts them.
    """

    def __init__(
        self,
        job: str | os.PathLike[str],
        *,
        name: str = "trainer",
        secret: str | None = None,
        timeout: float = 30.0,
    ) -> None:
        self._job = os.fspath(job)
        self._name = name
        self._inner = _open(self._job, secret, timeout)

    @property
    def url(self) -> str:
        """Address of the synchronizer."""
        return str(self._inner.url)

    @property
    def method(self) -> str:
        """Method of the job: `checkpoint`, `memory` or `nccl`."""
        return str(self._inner.method)

    def __enter__(self) -> Synchronizer:
        _wait("join", lambda: self._inner.join(self._name))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.done()
        else:
            self.fail(f"{kind.__name__}: {error}")

    def publish(
        self,
        state_dict_or_path: Weights,
        version: int,
        *,
        method: str | None = None,
        transfer_timeout: float = 120.0,
    ) -> str:
        """Publishes weights; explorers are notified before it returns.

        `method` and the result are those of `rw.publish_weights`.
        """
        _check_method(method)
        weights = _state_of(state_dict_or_path)
        chosen = method or _known(self.method)
        has_folder = "://" not in self._job
        if chosen in _TRANSFERS:
            if _transfer(lambda: self._inner, weights, version, chosen, transfer_timeout):
                return chosen
            chosen = "checkpoint" if has_folder else "memory"
        if chosen == "checkpoint" and has_folder:
            folder = _write(self._job, weights, version)
            _wait("publish", lambda: self._inner.publish_folder(version, folder))
        else:
            _send(self._inner, weights, version)
        return chosen

    def last_wait(self) -> int:
        """Returns the number of the explorers' last wait. Call it before reading experiences."""
        return int(_wait("last_wait", self._inner.last_wait))

    def wait_for_demand(self, timeout: float = 0.0, step: int | None = None) -> bool:
        """Waits until an explorer demands weights; of at most version `step`, if given."""
        wanted = _ANY if step is None else step
        return bool(_wait("wait_for_demand", lambda: self._inner.wait_for_demand(wanted, timeout)))

    def set_training(self) -> None:
        """Reports that the trainer makes a step."""
        _wait("set_training", self._inner.set_state)

    def set_idle(self, seen: int) -> None:
        """Reports that there were too few experiences.

        `seen` is the result of `last_wait` before the read. Waits up to that number end: there are
        no newer weights.
        """
        _wait("set_idle", lambda: self._inner.set_state(seen))

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        """Reports the metrics of a train step, such as its loss.

        Explorers pass them to the dashboard and the monitors of the job as `trainer/NAME`. Values
        that are not finite are not sent.
        """
        values = {name: float(value) for name, value in metrics.items()}
        _wait("report", lambda: self._inner.report_metrics(step, values))

    def explorers(self) -> dict[str, str]:
        """Returns the state of every explorer: `present`, `waiting`, `done`, `failed` or `lost`."""
        status = json.loads(_wait("explorers", self._inner.status))
        return {it["name"]: it["state"] for it in status["explorers"]}

    def explorers_left(self, timeout: float = 0.0) -> bool:
        """Waits until all explorers that ever joined have left."""
        return bool(_wait("explorers_left", lambda: self._inner.explorers_left(timeout)))

    def done(self) -> None:
        """Ends the membership; waiting explorers get the last weights."""
        _wait("done", self._inner.leave)

    def fail(self, message: str) -> None:
        """Ends the membership with an error; waiting explorers fail with it."""
        _wait("fail", lambda: self._inner.leave(message))

    def __repr__(self) -> str:
        return f"<Synchronizer at {self.url}>"


def _check_method(method: str | None) -> None:
    if method is not None and method not in _METHODS:
        expected = ", ".join(map(repr, _METHODS))
        raise ValueError(f"unknown method {method!r}, expected one of {expected}")


def _state_of(weights: Weights) -> Weights:
    """Returns the state dict of a model; other weights as they are."""
    if isinstance(weights, (Mapping, str, os.PathLike)):
        return weights
    state_dict = getattr(weights, "state_dict", None)
    if state_dict is None:
        kind = type(weights).__name__
        raise TypeError(f"a {kind} is not a state dict, a path or an object with `state_dict()`")
    return state_dict()


def _transfer(
    opened: Callable[[], Any], weights: Weights, version: int, backend: str, timeout: float
) -> bool:
    """Sends weights to the servers. A failure is logged: the caller publishes them otherwise."""
    try:
        inner = opened()
        if not isinstance(weights, Mapping):
            raise transfer.TransferError("it needs a state dict or a model, not a path")
        transfer.transfer(
            lambda: json.loads(_wait("status", inner.status)),
            lambda group: _wait("publish", lambda: inner.publish_group(version, group)),
            weights,
            version,
            backend=backend,
            address=transfer.own_address(str(inner.url)),
            timeout=timeout,
        )
    except SynchronizerError as error:
        _LOG.warning(
            "weights of version %d cannot be sent over %s: %s; they are published as files instead",
            version,
            backend,
            error,
        )
        return False
    return True


def _announce(inner: Any, version: int, folder: str) -> None:
    """Tells the synchronizer the folder of weights that it knows as being sent."""
    try:
        _wait("publish", lambda: inner.publish_folder(version, folder))
    except SynchronizerError as error:
        _LOG.warning("the synchronizer is not told of weights of version %d: %s", version, error)


def _wait(name: str, begin: Callable[[], Any]) -> Any:
    return PendingResult(name, begin, identity).result()


def _open(target: str, secret: str | None, timeout: float) -> Any:
    return _wait("Synchronizer", lambda: _rollway.Synchronizer.open(target, secret, timeout))


def _method(folder: str) -> str | None:
    """Returns the method of the job's synchronizer; `None`: none has run in the folder."""
    try:
        address = json.loads((Path(folder) / _ADDRESS_FILE).read_text())
    except (OSError, ValueError):
        return None
    method = address.get("method")
    return None if method is None else _known(str(method))


def _known(method: str) -> str:
    """Returns the method of a job; refuses one of a newer version."""
    if method not in _METHODS:
        raise SynchronizerError(
            f"the job transfers weights by {method!r}, which this version of rollway does not "
            f"support: it supports {', '.join(_METHODS)}"
        )
    return method


def _send(synchronizer: Any, weights: Weights, version: int) -> None:
    if isinstance(weights, Mapping):
        content = io.BytesIO()
        safetensors.write(content, weights)
        data = content.getvalue()
    else:
        data = _only_file(Path(weights)).read_bytes()
    _wait("publish", lambda: synchronizer.publish_bytes(version, data))


def _only_file(path: Path) -> Path:
    if path.is_file():
        return path
    files = sorted(path.glob("*.safetensors"))
    if (path / _MODEL).is_file():
        return path / _MODEL
    if len(files) == 1:
        return files[0]
    raise SynchronizerError(
        f"{path} has {len(files)} safetensors files, expected one: pass a state dict or "
        "use `synchronizer.sync_method: checkpoint`"
    )


def _write(folder: str, weights: Weights, version: int) -> str:
    """Writes weights to a folder and returns their path."""
    draft = Path(_wait("publish", lambda: _rollway.draft_weights(folder, version)))
    try:
        if isinstance(weights, Mapping):
            with (draft / _MODEL).open("wb") as file:
                safetensors.write(file, weights)
        else:
            _copy(Path(weights), draft)
        path = _wait("publish", lambda: _rollway.finish_weights(folder, version))
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return os.path.abspath(path)


def _copy(source: Path, draft: Path) -> None:
    if not source.exists():
        raise SynchronizerError(f"{source} does not exist: pass a safetensors file or folder")
    # Copied, not linked: published weights must not change when the trainer rewrites its file.
    if source.is_file():
        shutil.copy2(source, draft / _MODEL)
        return
    for path in sorted(source.iterdir()):
        if path.is_file():
            shutil.copy2(path, draft / path.name)
