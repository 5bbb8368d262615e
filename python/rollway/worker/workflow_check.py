"""Preflight check that a job's workflows and reward functions can be imported.

The engine runs it in a separate process, so that side effects of imports stay there.
"""

from __future__ import annotations

import difflib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from rollway import _rollway, _trinity_alias, rewards
from rollway.errors import (
    InvalidRewardFn,
    InvalidWorkflow,
    MissingPackage,
    UnknownRewardFn,
    UnknownWorkflow,
)
from rollway.task import Task
from rollway.worker import plugins, setup
from rollway.workflow import resolve
from rollway.workflows import SimpleWorkflow


class _Problem(Exception):
    """A problem and its remedy."""

    def __init__(self, kind: str, what: str, hint: str) -> None:
        super().__init__(what)
        self.kind, self.what, self.hint = kind, what, hint


def main(questions: dict[str, Any]) -> dict[str, Any]:
    """Imports the workflows and reward functions of all sets; returns the problems."""
    _trinity_alias.install()
    text = os.environ.get(setup.SETUP_JSON)
    if text is not None:
        setup.setup_json(text)
    plugins.load()
    # Sets often share a workflow; its problem is reported once.
    problems: dict[str, dict[str, str]] = {}
    for one in questions["sets"]:
        try:
            _check(one)
        except _Problem as problem:
            what = f"{one['place']}: {problem.what}"
            row = {"kind": problem.kind, "what": what, "hint": problem.hint}
            problems.setdefault(problem.what, row)
    return {"version": _rollway.version(), "problems": list(problems.values())}


def _check(one: dict[str, Any]) -> None:
    """Raises the problem of one set."""
    workflow, reward_fn = one["workflow"], one["reward_fn"]
    executable = None
    if workflow is not None:
        executable = _import_checked("workflow", workflow, lambda: resolve(workflow))
    if reward_fn is not None:
        _import_checked("reward function", reward_fn, lambda: rewards.lookup(reward_fn))
    source: Any = getattr(executable, "source", None)
    is_ours = isinstance(source, type) and issubclass(source, SimpleWorkflow)
    if not is_ours or (reward_fn is None and one["rows_name_rewards"]):
        return
    task = Task(
        reward_fn=reward_fn,
        reward_fn_args=one["reward_fn_args"],
        workflow_args=one["workflow_args"],
    )
    _import_checked("workflow", workflow, lambda: source.check(task))


def _import_checked(sort: str, name: str, get: Callable[[], Any]) -> Any:
    """Returns the result of `get`, or raises the problem."""
    try:
        return get()
    except (UnknownWorkflow, UnknownRewardFn) as error:
        called, known = error.data["name"], error.data["known"]
        near = difflib.get_close_matches(called, known, 1)
        hint = f"did you mean `{near[0]}`?" if near else f"there is {', '.join(known)}"
        raise _Problem(
            "unknown",
            f"unknown {sort} `{called}`",
            f"{hint} (your own are called `package.module:name`)",
        ) from None
    except MissingPackage as error:
        what, _, hint = str(error).rpartition(": ")
        raise _Problem("package", what, f"install it: `{sys.executable} -m {hint}`") from None
    except (InvalidWorkflow, InvalidRewardFn) as error:
        hint = "check `workflow_args` and `reward_fn_args`"
        raise _Problem("arguments", f"{sort} `{name}`: {error}", hint) from None
    except ModuleNotFoundError as error:
        raise _no_module(sort, name, error) from None
    except AttributeError as error:
        raise _no_attribute(sort, name, error) from None
    except BaseException as error:
        raise _broken(sort, name, error) from None


def _no_module(sort: str, name: str, error: ModuleNotFoundError) -> _Problem:
    module = name.partition(":")[0]
    if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
        return _broken(sort, name, error)
    near = difflib.get_close_matches(error.name, _modules(), 1)
    hint = f"did you mean `{near[0]}`? " if near else ""
    folders = ", ".join(path for path in sys.path if os.path.isdir(path))
    return _Problem(
        "import",
        f"there is no module `{error.name}` for the {sort} `{name}`",
        f"{hint}{sys.executable} looked in {folders}; put it beside the configuration, start the "
        "job in its folder, or set PYTHONPATH",
    )


def _modules() -> list[str]:
    """Returns the modules and packages in the job's folders, first on `sys.path`."""
    found = []
    for folder in sys.path[:2]:
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        found += [entry.name.removesuffix(".py") for entry in entries]
    return [name for name in found if name.isidentifier()]


def _no_attribute(sort: str, name: str, error: AttributeError) -> _Problem:
    module, _, path = name.partition(":")
    there = sys.modules.get(module)
    frames = traceback.extract_tb(error.__traceback__)
    # Only if the lookup of the name failed, not code inside the module.
    if there is None or not frames or not frames[-1].filename.startswith(setup.PACKAGE):
        return _broken(sort, name, error)
    public = [one for one in vars(there) if not one.startswith("_") and callable(vars(there)[one])]
    near = difflib.get_close_matches(path, public, 1)
    hint = (
        f"did you mean `{module}:{near[0]}`?" if near else f"it has {', '.join(public) or 'none'}"
    )
    file = getattr(there, "__file__", None) or module
    return _Problem("unknown", f"{file} has no {sort} `{path}`", hint)


def _broken(sort: str, name: str, error: BaseException) -> _Problem:
    """Returns the problem of an import that raised, with its location."""
    module = name.partition(":")[0]
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((setup.PACKAGE, "<frozen"))
        and f"{os.sep}importlib{os.sep}" not in frame.filename
    ]
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    where = f" ({own[-1].filename}, line {own[-1].lineno}: {own[-1].line})" if own else ""
    return _Problem(
        "import",
        f"the {sort} `{name}` could not be imported: {words}{where}",
        f"the full traceback: `{sys.executable} -c 'import {module}'`, where the module is",
    )
