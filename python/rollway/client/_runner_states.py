"""What runners do now, for people: as dictionaries, and as a table."""

from __future__ import annotations

import json
import logging
import shutil
from typing import Any

from rollway.client._pending import PendingResult

logger = logging.getLogger("rollway.states")

#: A runner: its number, what the engine knows, and what it says itself, as text.
Row = tuple[int, dict[str, Any], dict[str, str]]

#: The width of a table whose place is not known.
WIDTH = 120


class RunnerStatesMixin:
    """What can be asked about the runners of a pool."""

    def _runners(self) -> PendingResult[list[Row]] | None:
        """Asks for the runners; none if there are none yet."""
        raise NotImplementedError

    def get_all_state(self) -> dict[int, dict[str, Any]]:
        """Returns the state of every runner, those first that are stuck, then the most overdue.

        What the engine knows: `state` (`busy`, `idle`, …), `stuck`, `age` in that state; of its
        work `batch_id`, `task_id`, `run_id`, `run_ids` and `attempt`; `stage` (what it is at, in
        words), `stage_seconds` (for how many seconds), `typical_seconds` (what attempts like it take), `code_location`
        (where in the workflow's code, if that lasts), `model`, `server` and `calls` of model calls
        under way, `silent_for` (since its last heartbeat), `location`, `message`, `waiting` (why it is
        not started yet). What the runner says itself: `workflow_id`, `model_version`, `begin_time`,
        `terminate_time`, `running_time`, and what its workflow adds.
        """
        asked = self._runners()
        return {} if asked is None else as_states(asked.result())

    def get_runner_state(self, runner_id: int) -> dict[str, Any]:
        """Returns the state of one runner; empty if there is none of that id."""
        return self.get_all_state().get(runner_id, {})

    def get_key_state(self, key: str) -> dict[int, Any]:
        """Returns one entry of the state of every runner that has it."""
        states = self.get_all_state()
        return {runner: state[key] for runner, state in states.items() if key in state}

    def print_all_state(self) -> None:
        """Writes the state of all runners to the log, as a table."""
        logger.info("\n%s", table(self.get_all_state()))


def as_states(rows: list[Row]) -> dict[int, dict[str, Any]]:
    """Returns states by runner, in the order of rows."""
    states = {}
    for runner, known, said in rows:
        told = {key: _value(text) for key, text in said.items()}
        if known["state"] not in ("broken", "gone", "starting"):
            known.pop("message", None)
        states[runner] = {**told, **known}
    return states


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


#: The columns of the table: their heading and the least width that they are cut to.
_COLUMNS = {
    "runner_id": 9,
    "state": 10,
    "for": 6,
    "work": 8,
    "stage": 14,
    "since": 6,
    "place": 12,
    "model": 8,
    "heard": 6,
    "node": 8,
    "more": 8,
}

#: The columns that are there in the narrowest terminal.
_LEAST = {"runner_id", "state", "work", "stage", "since"}

#: What the columns show; the rest is in the last one.
_SHOWN = {
    *(
        "state",
        "stuck",
        "age",
        "incarnation",
        "batch_id",
        "task_id",
        "run_id",
        "run_ids",
        "attempt",
    ),
    *("calls", "stage", "stage_seconds", "typical_seconds", "code_location", "model"),
    *("workflow_id", "begin_time", "terminate_time", "running_time", "stages"),
    *("server", "location", "silent_for", "message", "waiting"),
}


def table(states: dict[int, dict[str, Any]], width: int | None = None) -> str:
    """Returns the states of runners as an aligned table that fits the terminal.

    Those that are stuck come first, with a `!`; what is too long ends in `…`.
    """
    if width is None:
        width = shutil.get_terminal_size((WIDTH, 24)).columns
    rows = [_row(runner, state) for runner, state in states.items()]
    names = [name for name in _COLUMNS if any(row[name] for row in rows)]
    if not names:
        return "no runners"
    widths = {name: max([len(name), *(len(row[name]) for row in rows)]) for name in names}
    while not _fit(widths, width) and len(names) > len(_LEAST):
        # What is left out can be had from `get_all_state()`.
        names.remove(next(name for name in reversed(names) if name not in _LEAST))
        widths = {name: widths[name] for name in names}
    lines = ["  ".join(_cut(name, widths[name]) for name in names)]
    lines += ["  ".join(_cut(row[name] or "-", widths[name]) for name in names) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def _fit(widths: dict[str, int], width: int) -> bool:
    """Makes the widest columns narrower until a line fits; tells whether it does."""
    while sum(widths.values()) + 2 * (len(widths) - 1) > width:
        wide = [name for name in widths if widths[name] > _COLUMNS[name]]
        if not wide:
            return False
        widths[max(wide, key=lambda name: widths[name])] -= 1
    return True


def _cut(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else text[: width - 1] + "…"


def _row(runner: int, state: dict[str, Any]) -> dict[str, str]:
    work = ""
    if "batch_id" in state:
        runs = state.get("run_ids") or [state.get("run_id")]
        more = f"+{len(runs) - 1}" if len(runs) > 1 else ""
        work = f"{state['batch_id']}/{state['task_id']}/{state.get('run_id')}{more}"
    model = state.get("model") or ""
    if state.get("server"):
        model = f"{model} at {state['server']}".strip()
    rest = [f"{key}={_words(state[key])}" for key in sorted(state) if key not in _SHOWN]
    return {
        "runner_id": f"{runner}{' !' if state.get('stuck') else ''}",
        "state": str(state["state"]),
        "for": span(state.get("age")),
        "work": work,
        "stage": str(state.get("stage") or state.get("message") or ""),
        "since": span(state.get("stage_seconds")),
        "place": _file(str(state.get("code_location") or "")),
        "model": model,
        "heard": span(state.get("silent_for")),
        "node": str(state.get("location") or ""),
        "more": " ".join(rest),
    }


def _file(place: str) -> str:
    """Returns a place without the folders of its file."""
    file, colon, rest = place.partition(":")
    return file.rpartition("/")[2] + colon + rest


def _words(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def span(seconds: Any) -> str:
    """Returns a number of seconds as people say it: `0.4s`, `12s`, `3m05s`, `2h10m`, `3d04h`."""
    if not isinstance(seconds, (int, float)):
        return ""
    if seconds < 9.95:
        return f"{max(seconds, 0):.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"
