"""Current states of runners, as dictionaries and as a table."""

from __future__ import annotations

import json
import logging
import shutil
from typing import Any

from rollway.client._pending import PendingResult

logger = logging.getLogger("rollway.states")

#: A runner: its id, the engine's view, and the labels of its heartbeat.
Row = tuple[int, dict[str, Any], dict[str, str]]

#: Width of the table if the terminal's width is unknown.
WIDTH = 120


class RunnerStatesMixin:
    """Methods that inspect the runners."""

    def _runners(self) -> PendingResult[list[Row]] | None:
        """Requests the runners; `None`: not started."""
        raise NotImplementedError

    def get_all_state(self) -> dict[int, dict[str, Any]]:
        """Returns the state of every runner: stuck ones first, then the most overdue.

        From the engine: `state` (`busy`, `idle`, …), `stuck`, `age` in that state; `batch_id`,
        `task_id`, `run_id`, `run_ids` and `attempt` of its work; `stage`, `stage_seconds` (time in
        that stage), `typical_seconds` (typical duration of such attempts), `code_location` (in the
        workflow, of a long stage), `model`, `server` and number of running `calls`, `silent_for`
        (time since the last heartbeat), `location`, `message`, `waiting` (why it is not started).
        From the runner: `workflow_id`, `model_version`, `begin_time`, `terminate_time`,
        `running_time`, and entries of its workflow.
        """
        pending = self._runners()
        return {} if pending is None else as_states(pending.result())

    def get_runner_state(self, runner_id: int) -> dict[str, Any]:
        """Returns the state of one runner; empty if the id is unknown."""
        return self.get_all_state().get(runner_id, {})

    def get_key_state(self, key: str) -> dict[int, Any]:
        """Returns one entry of the state, for every runner that has it."""
        states = self.get_all_state()
        return {runner: state[key] for runner, state in states.items() if key in state}

    def print_all_state(self) -> None:
        """Logs the state of all runners as a table."""
        logger.info("\n%s", table(self.get_all_state()))


def as_states(rows: list[Row]) -> dict[int, dict[str, Any]]:
    """Returns the states by runner, in the order of the rows."""
    states = {}
    for runner, view, labels in rows:
        reported = {key: _value(text) for key, text in labels.items()}
        if view["state"] not in ("broken", "stopped", "starting"):
            view.pop("message", None)
        states[runner] = {**reported, **view}
    return states


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


#: Columns of the table and their minimum widths.
_COLUMNS = {
    "runner_id": 9,
    "state": 10,
    "for": 6,
    "work": 8,
    "stage": 14,
    "since": 6,
    "code": 12,
    "model": 8,
    "heartbeat": 6,
    "location": 8,
    "more": 8,
}

#: Columns that are never omitted.
_REQUIRED = {"runner_id", "state", "work", "stage", "since"}

#: Entries with their own column; the others are in the last column.
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
    """Returns the states as an aligned table that fits the terminal.

    Stuck runners come first and are marked with `!`; truncated texts end in `…`.
    """
    if width is None:
        width = shutil.get_terminal_size((WIDTH, 24)).columns
    rows = [_row(runner, state) for runner, state in states.items()]
    names = [name for name in _COLUMNS if any(row[name] for row in rows)]
    if not names:
        return "no runners"
    widths = {name: max([len(name), *(len(row[name]) for row in rows)]) for name in names}
    while not _shrink(widths, width) and len(names) > len(_REQUIRED):
        # `get_all_state()` has the omitted columns.
        names.remove(next(name for name in reversed(names) if name not in _REQUIRED))
        widths = {name: widths[name] for name in names}
    lines = ["  ".join(_truncate(name, widths[name]) for name in names)]
    lines += [
        "  ".join(_truncate(row[name] or "-", widths[name]) for name in names) for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def _shrink(widths: dict[str, int], width: int) -> bool:
    """Narrows the widest columns until a line fits; returns whether it does."""
    while sum(widths.values()) + 2 * (len(widths) - 1) > width:
        wide = [name for name in widths if widths[name] > _COLUMNS[name]]
        if not wide:
            return False
        widths[max(wide, key=lambda name: widths[name])] -= 1
    return True


def _truncate(text: str, width: int) -> str:
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
    rest = [f"{key}={_format(state[key])}" for key in sorted(state) if key not in _SHOWN]
    return {
        "runner_id": f"{runner}{' !' if state.get('stuck') else ''}",
        "state": str(state["state"]),
        "for": span(state.get("age")),
        "work": work,
        "stage": str(state.get("stage") or state.get("message") or ""),
        "since": span(state.get("stage_seconds")),
        "code": _file(str(state.get("code_location") or "")),
        "model": model,
        "heartbeat": span(state.get("silent_for")),
        "location": str(state.get("location") or ""),
        "more": " ".join(rest),
    }


def _file(location: str) -> str:
    """Returns a code location without the folders of its file."""
    file, colon, rest = location.partition(":")
    return file.rpartition("/")[2] + colon + rest


def _format(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def span(seconds: Any) -> str:
    """Formats a duration: `0.4s`, `12s`, `3m05s`, `2h10m`, `3d04h`."""
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
