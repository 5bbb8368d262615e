"""The trainer's side of the synchronizer: weights to explorers, and what explorers wait for.

A trainer of one's own needs one line after a step::

    rw.publish_weights("checkpoints/Rollway/job", model.state_dict(), version=step)

One that tells what it is at keeps explorers from waiting in vain::

    with rw.Synchronizer("checkpoints/Rollway/job") as sync:
        while True:
            seen = sync.asked()
            batch = reader.read(timeout=1)
            if batch is None:
                sync.idle(seen)
                continue
            sync.training()
            step += 1
            train(batch)
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
from rollway.client._pending import Call, same
from rollway.errors import SynchronizerError

_MODEL = "model.safetensors"
_CARD = "synchronizer.json"
_ANY = 2**64 - 1

#: Weights as a trainer has them: arrays or tensors by name, or a file or folder of safetensors.
Weights = Mapping[str, Any] | str | os.PathLike[str]


def publish_weights(
    url_or_dir: str | os.PathLike[str],
    state_dict_or_path: Weights,
    version: int,
    *,
    secret: str | None = None,
    timeout: float = 30.0,
) -> None:
    """Publishes weights: whole or not at all, and never a version that is older than the last.

    `url_or_dir` is the folder of a job, or the address of its synchronizer. Into a folder a state
    dict is written as safetensors, and a file or folder of them is copied. If a synchronizer with
    method `memory` runs for that folder, they are pushed to it instead. An address needs its
    `secret`, or the variable `ROLLWAY_SYNCHRONIZER_SECRET`.
    """
    target = os.fspath(url_or_dir)
    if "://" in target:
        _push(_open(target, secret, timeout), state_dict_or_path, version)
        return
    running = _running(target, secret, timeout)
    if running is not None and running.method == "memory":
        _push(running, state_dict_or_path, version)
    else:
        _put(target, state_dict_or_path, version)


class Synchronizer:
    """The synchronizer of a job, for its trainer. `job` is the job's folder, or an address.

    As a context manager it takes the trainer's seat, keeps it, and leaves it: as done, or as failed
    if an exception passes. Every call waits for its answer; Ctrl-C ends it.
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
        """Its address."""
        return str(self._inner.url)

    @property
    def method(self) -> str:
        """The way that weights take: `checkpoint`, `memory` or `nccl`."""
        return str(self._inner.method)

    def __enter__(self) -> Synchronizer:
        _wait("enter", lambda: self._inner.enter(self._name))
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
        """Publishes weights; when it returns, explorers are told."""
        if self.method == "checkpoint" and "://" not in self._job:
            place = _put(self._job, state_dict_or_path, version)
            _wait("publish", lambda: self._inner.tell(version, place))
        else:
            _push(self._inner, state_dict_or_path, version)

    def asked(self) -> int:
        """The number of the last wait of an explorer. Ask before you look for experiences."""
        return int(_wait("asked", self._inner.asked))

    def demanded(self, timeout: float = 0.0, step: int | None = None) -> bool:
        """Waits until an explorer demands weights; of at most version `step`, if it is given."""
        wanted = _ANY if step is None else step
        return bool(_wait("demanded", lambda: self._inner.demanded(wanted, timeout)))

    def training(self) -> None:
        """Says that the trainer makes a step."""
        _wait("training", self._inner.state)

    def idle(self, seen: int) -> None:
        """Says that there were too few experiences. `seen` is what `asked` said before the look:
        explorers that waited by then are told that there is nothing new."""
        _wait("idle", lambda: self._inner.state(seen))

    def explorers(self) -> dict[str, str]:
        """What every explorer that came is at: `here`, `waiting`, `done`, `failed` or `lost`."""
        view = json.loads(_wait("explorers", self._inner.view))
        return {it["name"]: it["state"] for it in view["explorers"]}

    def explorers_left(self, timeout: float = 0.0) -> bool:
        """Waits until every explorer that ever came has left."""
        return bool(_wait("explorers_left", lambda: self._inner.explorers_left(timeout)))

    def done(self) -> None:
        """Leaves: explorers that wait are given the last weights."""
        _wait("done", self._inner.leave)

    def fail(self, message: str) -> None:
        """Leaves with an error, which explorers that wait end with."""
        _wait("fail", lambda: self._inner.leave(message))

    def __repr__(self) -> str:
        return f"<Synchronizer at {self.url}>"


def _wait(name: str, begin: Callable[[], Any]) -> Any:
    return Call(name, begin, same).result()


def _open(target: str, secret: str | None, timeout: float) -> Any:
    return _wait("Synchronizer", lambda: _rollway.Synchronizer.open(target, secret, timeout))


def _running(folder: str, secret: str | None, timeout: float) -> Any:
    """The synchronizer of the job in a folder, if weights have to go through it."""
    try:
        card = json.loads((Path(folder) / _CARD).read_text())
    except (OSError, ValueError):
        return None
    # In a folder they are seen, whether it runs or not.
    return _open(folder, secret, timeout) if card.get("method") == "memory" else None


def _push(synchronizer: Any, weights: Weights, version: int) -> None:
    if isinstance(weights, Mapping):
        content = io.BytesIO()
        safetensors.write(content, weights)
        data = content.getvalue()
    else:
        data = _only_file(Path(weights)).read_bytes()
    _wait("publish", lambda: synchronizer.push(version, data))


def _only_file(path: Path) -> Path:
    if path.is_file():
        return path
    files = sorted(path.glob("*.safetensors"))
    if (path / _MODEL).is_file():
        return path / _MODEL
    if len(files) == 1:
        return files[0]
    raise SynchronizerError(
        f"{path} has {len(files)} safetensors files, and one is pushed at a time: give a state "
        "dict, or use `synchronizer.sync_method: checkpoint`"
    )


def _put(folder: str, weights: Weights, version: int) -> str:
    """Puts weights into a folder, and returns where they are."""
    draft = Path(_wait("publish", lambda: _rollway.draft_weights(folder, version)))
    try:
        if isinstance(weights, Mapping):
            with (draft / _MODEL).open("wb") as file:
                safetensors.write(file, weights)
        else:
            _take(Path(weights), draft)
        place = _wait("publish", lambda: _rollway.finish_weights(folder, version))
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return os.path.abspath(place)


def _take(source: Path, draft: Path) -> None:
    if not source.exists():
        raise SynchronizerError(f"{source} is not there: give a file or folder of safetensors")
    # Not linked: what is published must not change when the trainer writes its file again.
    if source.is_file():
        shutil.copy2(source, draft / _MODEL)
        return
    for path in sorted(source.iterdir()):
        if path.is_file():
            shutil.copy2(path, draft / path.name)
