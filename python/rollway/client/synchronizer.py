"""Trainer side of the synchronizer: publishes weights and reports the trainer's state.

A custom trainer needs one line after each step, which begins at `rw.latest_version(job)`:

    rw.publish_weights("checkpoints/Rollway/job", model.state_dict(), version=step)

A trainer that reports its state keeps explorers from waiting without need:

    with rw.Synchronizer("checkpoints/Rollway/job") as sync:
        while True:
            seen = sync.last_wait()
            batch = reader.read(timeout=1)
            if batch is None:
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
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rollway import _rollway
from rollway.client import safetensors
from rollway.client._pending import PendingResult, identity
from rollway.errors import SynchronizerError

_MODEL = "model.safetensors"
_LATEST = "latest_state_dict_iteration.txt"
_ADDRESS_FILE = "synchronizer.json"
_ANY = 2**64 - 1
_NCCL = (
    "the job at {} has `synchronizer.sync_method: nccl`, which transfers weights between GPUs and "
    "cannot publish arrays or files: set `sync_method: checkpoint` (or `memory`) in the job"
)

#: Arrays or tensors by name, or the path of a safetensors file or folder.
Weights = Mapping[str, Any] | str | os.PathLike[str]


def publish_weights(
    url_or_dir: str | os.PathLike[str],
    state_dict_or_path: Weights,
    version: int,
    *,
    secret: str | None = None,
    timeout: float = 30.0,
) -> None:
    """Publishes weights atomically; a version older than the last one is rejected.

    `url_or_dir` is the folder of a job or the address of its synchronizer. A state dict is written
    to the folder as safetensors; a safetensors file or folder is copied. If a synchronizer with
    method `memory` runs for the folder, the weights are sent to it instead. An address needs
    `secret` or the variable `ROLLWAY_SYNCHRONIZER_SECRET`. The job deletes old versions:
    `trainer.max_checkpoints_to_keep` are kept, and every `trainer.save_interval` versions one for
    good.
    """
    target = os.fspath(url_or_dir)
    if "://" in target:
        _send(_open(target, secret, timeout), state_dict_or_path, version)
        return
    method = _method(target)
    if method == "memory":
        _send(_open(target, secret, timeout), state_dict_or_path, version)
    elif method == "nccl":
        raise SynchronizerError(_NCCL.format(target))
    else:
        # Weights in a folder are found even if no synchronizer runs.
        _write(target, state_dict_or_path, version)


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
        """Transfer method of the weights: `checkpoint`, `memory` or `nccl`."""
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

    def publish(self, state_dict_or_path: Weights, version: int) -> None:
        """Publishes weights; explorers are notified before it returns."""
        if self.method == "nccl":
            raise SynchronizerError(_NCCL.format(self.url))
        if self.method == "checkpoint" and "://" not in self._job:
            folder = _write(self._job, state_dict_or_path, version)
            _wait("publish", lambda: self._inner.publish_folder(version, folder))
        else:
            _send(self._inner, state_dict_or_path, version)

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
        """Returns the state of every explorer: `here`, `waiting`, `done`, `failed` or `lost`."""
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
    return str(address.get("method"))


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
