"""Readers of experience buffers, for trainers, and a server for remote readers.

    with rw.ExperienceReader("sqlite:///run/experience.db", batch_size=64) as reader:
        for batch in reader:
            train(batch.torch())
            checkpoint.save(reader=reader.state_dict())
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rollway import _rollway
from rollway.client._pending import PendingResult, identity
from rollway.client.coordinator import RolloutCoordinator
from rollway.errors import MissingPackage
from rollway.experience import Experience

_SECRET = "ROLLWAY_READER_SECRET"
#: Default timeout of reads in seconds, as `max_read_timeout` of the configuration.
READ_TIMEOUT = 1800.0
_FLOATS = ("logprobs", "advantages", "returns", "token_level_reward", "teacher_logprobs")


class ExperienceBatch:
    """Experiences that were read together. A sequence of `rw.Experience`.

    `versions` has the model version of each; `stale` counts the skipped ones, older than
    `min_model_version`. `payload` holds all of them as bytes and is decoded on first access.
    """

    __slots__ = ("_experiences", "payload", "stale", "versions")

    def __init__(self, payload: bytes, versions: list[int], stale: int) -> None:
        self.payload = payload
        self.versions = np.array(versions, dtype=np.int64)
        self.stale = stale
        self._experiences: list[Experience] | None = None

    @property
    def experiences(self) -> list[Experience]:
        """Decoded experiences; their arrays are read-only views of the payload."""
        if self._experiences is None:
            self._experiences = Experience.deserialize_many(self.payload)
        return self._experiences

    def __len__(self) -> int:
        return len(self.versions)

    def __iter__(self) -> Iterator[Experience]:
        return iter(self.experiences)

    def __getitem__(self, index: int) -> Experience:
        return self.experiences[index]

    def __repr__(self) -> str:
        return f"<ExperienceBatch of {len(self)} experiences, {len(self.payload)} bytes>"

    def to_numpy(self, pad: int | None = 0, length: int | None = None) -> dict[str, np.ndarray]:
        """Returns arrays of all experiences.

        With `pad`, the padding token, all arrays are dense. One row for each experience and one
        column for each token: `tokens`, `attention_mask`, `action_mask`, and
        those of `logprobs`, `advantages`, `returns`, `token_level_reward` and `teacher_logprobs`
        that any experience has. Columns of the prompt and of the padding are 0; experiences
        without a field that others have get NaN. `length`: fixed number of columns.

        With `pad=None` the arrays are concatenated, without the prompts except for `tokens`;
        experience `i` has
        `tokens[offsets[i]:offsets[i + 1]]` and `logprobs[response_offsets[i]:…]`.

        Both forms have `rewards` (NaN: none), `versions`, `lengths` and `prompt_lengths`.
        """
        experiences = self.experiences
        for experience in experiences:
            if experience.kind == "dpo":
                raise ValueError(
                    f"experience {experience.eid} is of kind dpo and has no dense form; "
                    "use split_dpo() first"
                )
        lengths = np.array([len(experience.tokens) for experience in experiences], dtype=np.int64)
        prompts = np.array([experience.prompt_length for experience in experiences], dtype=np.int64)
        rewards = [np.nan if one.reward is None else one.reward for one in experiences]
        arrays: dict[str, np.ndarray] = {
            "rewards": np.array(rewards, dtype=np.float64),
            "versions": self.versions,
            "lengths": lengths,
            "prompt_lengths": prompts,
        }
        names = [name for name in _FLOATS if any(getattr(e, name) is not None for e in experiences)]
        if pad is None:
            arrays.update(_ragged(experiences, lengths, names))
        else:
            arrays.update(_dense(experiences, lengths, names, pad, length))
        return arrays

    def torch(self, pad: int = 0, length: int | None = None) -> dict[str, Any]:
        """Returns the dense arrays of `to_numpy` as torch tensors."""
        try:
            import torch
        except ImportError as error:
            message = "torch is not installed: pip install rollway[torch]"
            raise MissingPackage(message, package="torch") from error
        arrays = self.to_numpy(pad, length)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def arrow(self) -> Any:
        """Returns a `pyarrow.RecordBatch`; columns: `docs/experience-columns.md`."""
        try:
            import pyarrow
        except ImportError as error:
            message = "pyarrow is not installed: pip install pyarrow"
            raise MissingPackage(message, package="pyarrow") from error
        columns = _rollway.payload_to_arrow(self.payload)
        return pyarrow.ipc.open_stream(columns).read_next_batch()


def _response(experience: Experience, name: str) -> np.ndarray | None:
    """Returns an array of the response, with the length of the response."""
    array: np.ndarray | None = getattr(experience, name)
    if array is None or len(array) == experience.response_length:
        return array
    # Only with a truncated prompt, which is not trained on.
    return np.zeros(experience.response_length, dtype=array.dtype)


def _dense(
    experiences: list[Experience],
    lengths: np.ndarray,
    names: list[str],
    pad: int,
    length: int | None,
) -> dict[str, np.ndarray]:
    longest = int(lengths.max(initial=0))
    if length is None:
        length = longest
    elif length < longest:
        raise ValueError(f"length is {length}, but an experience has {longest} tokens")
    shape = (len(experiences), length)
    tokens = np.full(shape, pad, dtype=np.int32)
    action = np.zeros(shape, dtype=np.bool_)
    floats = {name: np.zeros(shape, dtype=np.float32) for name in names}
    for row, experience in enumerate(experiences):
        begin, end = experience.prompt_length, len(experience.tokens)
        tokens[row, :end] = experience.tokens
        if end <= begin:
            continue
        mask = _response(experience, "action_mask")
        action[row, begin:end] = False if mask is None else mask
        for name, array in floats.items():
            values = _response(experience, name)
            array[row, begin:end] = np.nan if values is None else values
    attention = np.arange(length) < lengths[:, None]
    return {"tokens": tokens, "attention_mask": attention, "action_mask": action, **floats}


def _ragged(
    experiences: list[Experience], lengths: np.ndarray, names: list[str]
) -> dict[str, np.ndarray]:
    responses = [experience.response_length for experience in experiences]

    def joined(name: str, dtype: Any, missing: Any) -> np.ndarray:
        parts = [_response(experience, name) for experience in experiences]
        filled = [
            np.full(count, missing, dtype=dtype) if part is None else part
            for part, count in zip(parts, responses, strict=True)
        ]
        return np.concatenate([np.zeros(0, dtype=dtype), *filled])

    tokens = [experience.tokens for experience in experiences]
    return {
        "tokens": np.concatenate([np.zeros(0, dtype=np.int32), *tokens]),
        "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "response_offsets": np.concatenate([[0], np.cumsum(responses)]).astype(np.int64),
        "action_mask": joined("action_mask", np.bool_, False),
        **{name: joined(name, np.float32, np.nan) for name in names},
    }


def _source(source: Any) -> tuple[str, Any]:
    """Returns a source as text and in the form of the extension."""
    if isinstance(source, RolloutCoordinator):
        return "the coordinator", source._prepared()
    path = os.fspath(source)
    return path, path


class ExperienceReader:
    """Reads experiences in batches:

        reader = rw.ExperienceReader("rollway://trainer-0:7000", batch_size=64, timeout=600)
        for batch in reader:        # or: async for batch in reader
            ...

    `source` is a buffer (`sqlite:///…`, `postgresql://…`, a file `….jsonl`, a folder of Parquet
    files), a reader server (`rollway://HOST:PORT`, `rollway+unix:PATH`), or a prepared coordinator
    of this process. Readers of one `name` share one position. `table` of a database: default
    `experience`; an address may name it, too: `sqlite:///…?table=NAME`.

    A read waits for `timeout` seconds (half an hour; `None`: without limit), then returns what
    there is.

    The next read acknowledges a batch, unless `keep` is true; `acknowledge` does so explicitly.
    Unacknowledged batches are delivered again after a reader is lost. The reader reconnects after a
    lost connection or a restarted server and continues at its position.

    `secret` of a server is a text or the path of a file; default: `ROLLWAY_READER_SECRET`, or the
    file named by `ROLLWAY_READER_SECRET_FILE`. It is never part of the address, which is logged.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | RolloutCoordinator,
        batch_size: int = 32,
        min_model_version: int = 0,
        timeout: float | None = READ_TIMEOUT,
        name: str = "trainer",
        secret: str | os.PathLike[str] | None = None,
        keep: bool = False,
        raise_on_timeout: bool = True,
        table: str | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        self.source, given = _source(source)
        self.batch_size = batch_size
        self.min_model_version = min_model_version
        self.timeout = timeout
        self.name = name
        self.keep = keep
        self.raise_on_timeout = raise_on_timeout
        self.stale = 0
        secret = _secret(secret)
        opening = PendingResult(
            "open", lambda: _rollway.Reader.open(given, name, secret, table), identity
        )
        self._reader: Any = opening.result()

    def _call(
        self, count: int | None, timeout: float | None
    ) -> PendingResult[ExperienceBatch | None]:
        wanted = self.batch_size if count is None else count
        if wanted < 1:
            raise ValueError(f"count must be at least 1, not {wanted}")
        wait = self.timeout if timeout is None else timeout

        def begin() -> Any:
            return self._reader.read(wanted, wait, self.min_model_version, self.keep)

        def convert(answer: tuple[bytes, list[int], int, str]) -> ExperienceBatch | None:
            payload, versions, stale, end = answer
            self.stale += stale
            if not versions and end == "finished":
                return None
            if not versions and self.raise_on_timeout:
                raise TimeoutError(
                    f"no experience in {self.source} for reader {self.name!r} after {wait} s: is "
                    "the job that writes it running? A name continues where its last reader "
                    "stopped; another `name` reads from the beginning"
                )
            return ExperienceBatch(payload, versions, stale)

        return PendingResult("read", begin, convert)

    def read(self, count: int | None = None, timeout: float | None = None) -> ExperienceBatch:
        """Waits for a batch. Ctrl-C interrupts it without losing data.

        The batch is shorter at the timeout or at the end of the data. Raises `TimeoutError` if it
        would be empty (`raise_on_timeout=False`: returns the empty batch), and `StopIteration` at
        the end of the data.
        """
        batch = self._call(count, timeout).result()
        if batch is None:
            raise StopIteration(self._end())
        return batch

    async def aread(
        self, count: int | None = None, timeout: float | None = None
    ) -> ExperienceBatch:
        """As `read`, awaitable; raises `StopAsyncIteration` at the end of the data."""
        batch = await self._call(count, timeout)
        if batch is None:
            raise StopAsyncIteration(self._end())
        return batch

    def _end(self) -> str:
        return (
            f"{self.source} is closed, and readers named {self.name!r} have read all of it; a "
            "database or file is read from its start under another `name`"
        )

    def __iter__(self) -> Iterator[ExperienceBatch]:
        return self

    def __next__(self) -> ExperienceBatch:
        return self.read()

    def __aiter__(self) -> AsyncIterator[ExperienceBatch]:
        return self

    async def __anext__(self) -> ExperienceBatch:
        return await self.aread()

    def torch(self, pad: int = 0, length: int | None = None) -> Iterator[dict[str, Any]]:
        """Iterates over batches of torch tensors."""
        return (batch.torch(pad, length) for batch in self)

    def arrow(self) -> Iterator[Any]:
        """Iterates over batches as `pyarrow.RecordBatch`."""
        return (batch.arrow() for batch in self)

    def acknowledge(self) -> None:
        """Acknowledges everything that was read."""
        PendingResult("acknowledge", lambda: self._reader.read(0, 0.0, 0, False), identity).result()

    @property
    def position(self) -> str:
        """Position after the last returned batch."""
        position: str = self._reader.position
        return position

    def seek(self, position: str) -> None:
        """Moves to a position; later experiences are read again."""
        PendingResult("seek", lambda: self._reader.seek(position), identity).result()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint of the trainer."""
        return {"position": self.position, "name": self.name}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the position of a checkpoint."""
        if "position" not in state:
            raise ValueError("not the state of a reader: it has no `position`")
        self.seek(str(state["position"]))

    def close(self) -> None:
        """Closes the reader; the next one gets unacknowledged experiences again."""
        PendingResult("close", self._reader.close, identity).result()

    def __enter__(self) -> ExperienceReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Acknowledges the last batch unless an exception passes, and closes."""
        try:
            if kind is None and not self.keep:
                self.acknowledge()
        finally:
            self.close()

    def __repr__(self) -> str:
        return f"<ExperienceReader {self.name!r} of {self.source}>"


class ExperienceServer:
    """Serves a buffer to readers in other processes and on other machines:

        with rw.ExperienceServer(coordinator) as server:
            print(server.url)       # rollway://127.0.0.1:40123

    It listens on the loopback interface unless `address` is another one, such as
    `rollway://10.0.0.1:7000`. Then it is encrypted, with a certificate that is made for this
    server: `url` has its fingerprint (`rollway+tls://HOST:PORT#FINGERPRINT`), and readers accept
    no other.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | RolloutCoordinator,
        address: str = "rollway://127.0.0.1:0",
        secret: str | os.PathLike[str] | None = None,
    ) -> None:
        self.source, given = _source(source)
        secret = _secret(secret)
        starting = PendingResult(
            "start", lambda: _rollway.ReaderServer.start(given, address, secret), identity
        )
        self._server: Any = starting.result()

    @property
    def url(self) -> str:
        """Address for the `source` of readers."""
        url: str = self._server.url
        return url

    @property
    def secret(self) -> str:
        """Secret of the server: as given, or randomly generated."""
        secret: str = self._server.secret
        return secret

    @property
    def refused(self) -> dict[str, int]:
        """Number of refused connections, by reason."""
        return dict(self._server.refused())

    def stop(self) -> None:
        """Stops the server and disconnects all readers."""
        PendingResult("stop", self._server.stop, identity).result()

    def __enter__(self) -> ExperienceServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<ExperienceServer of {self.source} at {self.url}>"


def _secret(secret: str | os.PathLike[str] | None) -> str | None:
    if secret is None:
        secret = os.environ.get(_SECRET)
        if secret is None and f"{_SECRET}_FILE" in os.environ:
            secret = Path(os.environ[f"{_SECRET}_FILE"])
    if secret is None or isinstance(secret, str):
        return secret
    return Path(secret).read_text().strip()
