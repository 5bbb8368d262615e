"""Log relay: forwards log records and printed lines of workflows to the job's log.

Both carry the batch, task, run and attempt of the run that produced them. If the engine reads the
output of this process, all lines go there, including the last ones of a process that dies.
Otherwise log records go over the connection to the engine, and printed lines stay local.
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

#: Variable that is set if the engine reads the output of this process.
LOG_RELAY = "ROLLWAY_WORKER_LOG_RELAY"

#: First character of a line with run ids, as JSON.
_MARK = "\x1e"

#: Maximum length of a relayed line, in characters.
_LINE = 3500

#: Libraries that log every request at level INFO.
_TALKATIVE = ("httpx", "httpx2", "httpcore", "httpcore2", "openai", "urllib3")

_LEVELS = ((40, "error"), (30, "warning"), (20, "info"), (0, "debug"))


#: Attempt of the current code.
attempt: contextvars.ContextVar[int | None] = contextvars.ContextVar("attempt", default=None)


def source() -> dict[str, Any]:
    """Returns the ids of the current run: `batch`, `task`, `run`, `attempt`."""
    run, number = stages.current(), attempt.get()
    names = {} if run is None else run.names()
    if number is not None:
        names["attempt"] = number
    return names


class LogRelay(io.TextIOBase):
    """Output stream that adds run ids to printed lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.RLock()
        #: Unfinished lines, by run.
        self._begun: dict[tuple[Any, ...], str] = {}

    def write(self, text: str) -> int:
        names = source()
        key = tuple(names.values())
        with self._lock:
            *lines, rest = (self._begun.pop(key, "") + text).split("\n")
            # Whole pieces of a long line are printed at once; cutting the rest only once keeps
            # the time linear.
            whole = (len(rest) - 1) // _LINE * _LINE if rest else 0
            lines += [rest[begin : begin + _LINE] for begin in range(0, whole, _LINE)]
            rest = rest[whole:]
            if rest:
                self._begun[key] = rest
            for line in lines:
                self._line(line, names)
        return len(text)

    def _line(self, line: str, names: dict[str, Any]) -> None:
        if names:
            for begin in range(0, max(len(line), 1), _LINE):
                self.write_record({"line": line[begin : begin + _LINE], **names})
        else:
            self._stream.write(line + "\n")

    def write_record(self, what: dict[str, Any]) -> None:
        """Prints a line with run ids."""
        with self._lock:
            self._stream.write(_MARK + json.dumps(what, ensure_ascii=False) + "\n")
            self._stream.flush()

    def flush(self) -> None:
        self._stream.flush()

    def finish(self) -> None:
        """Prints all unfinished lines."""
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
        # Other attributes are those of the stream.
        return getattr(self._stream, name)


class Handler(logging.Handler):
    """Logging handler that relays records with level and run ids."""

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
            self._relay.write_record(
                {"level": level, "logger": record.name, "line": line, **source()}
            )
        except Exception:
            self.handleError(record)


def _factory(make: Any) -> Any:
    """Returns a record factory that adds the run ids, for custom formatters."""

    def record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        made = make(*args, **kwargs)
        names = source()
        for name in ("batch", "task", "run", "attempt"):
            # A name that does not collide with `extra` fields.
            setattr(made, f"rollway_{name}", names.get(name))
        return made

    return record


def install(link: Any) -> None:
    """Relays everything that this process prints and logs from now on."""
    relay = None
    if os.environ.pop(LOG_RELAY, None) is not None:
        sys.stdout = LogRelay(sys.stdout)  # type: ignore[assignment]
        sys.stderr = relay = LogRelay(sys.stderr)  # type: ignore[assignment]
    root = logging.getLogger()
    root.addHandler(Handler(link, relay))
    root.setLevel(logging.INFO)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.setLogRecordFactory(_factory(logging.getLogRecordFactory()))


def finish() -> None:
    """Prints unfinished lines."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, LogRelay):
            stream.finish()
