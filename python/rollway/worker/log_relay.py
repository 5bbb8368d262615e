"""What workflows say in words, with the run that says it.

What a workflow logs reaches the job's log with its level, and what it prints line by line, both
with the batch, task, run and attempt of the run that said it. Where the engine reads what this
process prints, the lines go that way: the last words of a process that dies are there too. From
elsewhere, what is logged goes over the connection to the engine, and what is printed stays where
it is printed.
"""

from __future__ import annotations

import contextvars
import io
import json
import logging
import os
import sys
import threading
from typing import Any, TextIO

from rollway import stages

#: Set if the engine reads what this process prints.
RELAYED = "ROLLWAY_WORKER_LOG_RELAY"

#: What begins a line that says where it comes from.
_MARK = "\x1e"

#: How much of a line travels at once, in characters.
_LINE = 3500

#: Libraries that log every request.
_TALKATIVE = ("httpx", "httpcore", "openai", "urllib3")

_LEVELS = ((40, "error"), (30, "warning"), (20, "info"), (0, "debug"))


#: The attempt for which the current code is executed.
attempt: contextvars.ContextVar[int | None] = contextvars.ContextVar("attempt", default=None)


def source() -> dict[str, Any]:
    """Returns the names of the run that is executed: `batch`, `task`, `run`, `attempt`."""
    run, number = stages.current(), attempt.get()
    names = {} if run is None else run.names()
    if number is not None:
        names["attempt"] = number
    return names


class LogRelay(io.TextIOBase):
    """A stream whose lines say which run printed them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.RLock()
        #: What was printed without the end of its line, by who printed it.
        self._begun: dict[tuple[Any, ...], str] = {}

    def write(self, text: str) -> int:
        names = source()
        key = tuple(names.values())
        with self._lock:
            *lines, rest = (self._begun.pop(key, "") + text).split("\n")
            while len(rest) > _LINE:
                lines.append(rest[:_LINE])
                rest = rest[_LINE:]
            if rest:
                self._begun[key] = rest
            for line in lines:
                self._line(line, names)
        return len(text)

    def _line(self, line: str, names: dict[str, Any]) -> None:
        if names:
            for begin in range(0, max(len(line), 1), _LINE):
                self.say({"line": line[begin : begin + _LINE], **names})
        else:
            self._stream.write(line + "\n")

    def say(self, what: dict[str, Any]) -> None:
        """Prints a line that says where it comes from."""
        with self._lock:
            self._stream.write(_MARK + json.dumps(what, ensure_ascii=False) + "\n")
            self._stream.flush()

    def flush(self) -> None:
        self._stream.flush()

    def finish(self) -> None:
        """Prints what has no end of line, whoever began it."""
        with self._lock:
            for text in self._begun.values():
                self._stream.write(text + "\n")
            self._begun.clear()
            self._stream.flush()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def __getattr__(self, name: str) -> Any:
        # `buffer`, `reconfigure` and the like are the stream's own.
        return getattr(self._stream, name)


class Handler(logging.Handler):
    """Has what is logged told to the engine, with its level and the run that logged it."""

    def __init__(self, link: Any, relay: LogRelay | None) -> None:
        super().__init__()
        self._link = link
        self._relay = relay

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
            if len(line) > _LINE:
                line = line[:_LINE] + "…"
            if self._relay is None:
                self._link.log(record.levelno, line, record.name, **source())
                return
            level = next(name for least, name in _LEVELS if record.levelno >= least)
            self._relay.say({"level": level, "logger": record.name, "line": line, **source()})
        except Exception:
            self.handleError(record)


def _factory(make: Any) -> Any:
    """Returns what makes records that know the run, for whoever formats them otherwise."""

    def record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        made = make(*args, **kwargs)
        names = source()
        for name in ("batch", "task", "run", "attempt"):
            # Not to be mistaken for what somebody adds as `extra`.
            setattr(made, f"rollway_{name}", names.get(name))
        return made

    return record


def install(link: Any) -> None:
    """Has everything told that is printed and logged in this process from now on."""
    relay = None
    if os.environ.pop(RELAYED, None) is not None:
        sys.stdout = LogRelay(sys.stdout)  # type: ignore[assignment]
        sys.stderr = relay = LogRelay(sys.stderr)  # type: ignore[assignment]
    root = logging.getLogger()
    root.addHandler(Handler(link, relay))
    root.setLevel(logging.INFO)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.setLogRecordFactory(_factory(logging.getLogRecordFactory()))


def finish() -> None:
    """Prints what has no end of line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, LogRelay):
            stream.finish()
