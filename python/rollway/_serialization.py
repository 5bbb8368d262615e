"""How workflows and tasks get into worker processes.

What can be imported there travels by name; what was defined in a script, a notebook, a test file or
inside a function travels by value. Both ends of the channel are this package in processes of the
same user.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import cloudpickle

from rollway.errors import InvalidWorkflow
from rollway.task import Task
from rollway.workflow import Executable, lookup, resolve

#: The encodings of definitions.
BY_NAME = "name"
BY_VALUE = "cloudpickle"
#: The encodings of tasks that were not made by this package, both JSON: a row, and the fields of a
#: task as the engine draws them from tasksets.
JSON = "json"
FIELDS = "fields"


@dataclass(frozen=True)
class WorkflowDefinition:
    """A workflow on its way: a name that is unique for what it does, and how it is found there."""

    name: str
    encoding: str
    body: bytes


def define(source: Any) -> WorkflowDefinition:
    """Returns what a worker needs to have a workflow."""
    if source is None:
        raise InvalidWorkflow("the task has no workflow")
    if isinstance(source, WorkflowDefinition):
        return source
    if isinstance(source, str):
        if ":" in source:
            return WorkflowDefinition(source, BY_NAME, b"")
        source = lookup(source)
    Executable(source)
    reference = _reference(source)
    if reference is not None:
        return WorkflowDefinition(reference, BY_NAME, b"")
    _, body = pickle_by_value(source)
    # A workflow that is changed and defined again is another workflow.
    digest = hashlib.sha256(body).hexdigest()[:16]
    return WorkflowDefinition(f"{_title(source)}#{digest}", BY_VALUE, body)


def pickle_by_value(source: Any) -> tuple[str, bytes]:
    """Returns a workflow as its encoding and bytes, for workers that know it by any name."""
    with _by_value(source):
        try:
            return BY_VALUE, cloudpickle.dumps(source)
        except Exception as error:
            raise InvalidWorkflow(
                f"workflow {_title(source)} cannot be sent to a worker process: {error}; "
                "what it refers to cannot be pickled, so create that inside the workflow"
            ) from error


def load(name: str, encoding: str, body: bytes) -> Executable:
    """Returns the workflow of a definition, in a worker."""
    if encoding == BY_NAME:
        return resolve(name)
    if encoding == BY_VALUE:
        return Executable(pickle.loads(body))
    raise InvalidWorkflow(f"workflow {name} came in the unknown encoding `{encoding}`")


#: What does not travel with a task, or is told apart from what is empty.
_APART = ("workflow", "batch_id", "task_id", "raw_task", "reward_fn", "repeat_times")

#: What travels of a task and is nothing if it is empty.
_ARGUMENTS = [field.name for field in fields(Task) if field.name not in _APART]


def encode_task(task: Task) -> bytes:
    """Returns a task without its workflow as bytes."""
    state = vars(task)
    content = {name: state[name] for name in _ARGUMENTS if state[name]}
    if task.raw_task is not None:
        content["raw_task"] = task.raw_task
    if task.reward_fn is not None:
        content["reward_fn"] = task.reward_fn
    if task.repeat_times != 1:
        content["repeat_times"] = task.repeat_times
    if not _plain(content.get("raw_task")) or "reward_fn" in content or "workflow_args" in content:
        with _by_value(content.get("reward_fn")):
            return cloudpickle.dumps(content)
    try:
        return pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:
        return cloudpickle.dumps(content)


def decode_task(body: bytes, encoding: str) -> dict[str, Any]:
    """Returns the fields of a task."""
    if encoding == JSON:
        return {"raw_task": json.loads(body)}
    return json.loads(body) if encoding == FIELDS else pickle.loads(body)


def sent(task: Task) -> tuple[WorkflowDefinition, bytes, Any, Any]:
    """Returns a task for a process that passes it on: its workflow stays what a worker gets."""
    return define(task.workflow), encode_task(task), task.batch_id, task.task_id


def received(parts: tuple[WorkflowDefinition, bytes, Any, Any]) -> Task:
    """Returns a task that was sent. Its workflow is a definition: nothing of it is loaded here."""
    definition, body, batch_id, task_id = parts
    fields = {"is_eval": False, **decode_task(body, "pickle")}
    return Task.restored(definition, fields, batch_id=batch_id, task_id=task_id)


def _plain(value: Any) -> bool:
    """Tells whether pickle alone is sure to do: nothing in it belongs to a script."""
    if value is None or isinstance(value, (str, int, float, bool, bytes)):
        return True
    if type(value) is dict:
        return all(type(key) is str and _plain(item) for key, item in value.items())
    return type(value) in (list, tuple) and all(map(_plain, value))


def _title(source: Any) -> str:
    module = getattr(source, "__module__", None) or type(source).__module__
    return f"{module}.{getattr(source, '__qualname__', type(source).__qualname__)}"


def _reference(source: Any) -> str | None:
    """Returns `module:name` if a worker can import the object by it."""
    module = getattr(source, "__module__", None)
    path = getattr(source, "__qualname__", None)
    if not module or not path or "<" in path or not _importable(module):
        return None
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return f"{module}:{path}" if found is source else None


def _importable(name: str) -> bool:
    """Tells whether a worker gets the same module by importing it.

    Not a script, not a notebook, and not a test file: importing one of those again in another
    process would run it again, and test runners rewrite what they import.
    """
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if name in ("__main__", "__mp_main__") or file is None:
        return False
    stem = os.path.basename(file).rpartition(".")[0]
    if stem.startswith("test_") or stem.endswith("_test") or stem == "conftest":
        return False
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main is not None and os.path.abspath(main) == os.path.abspath(file):
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


@contextmanager
def _by_value(source: Any) -> Iterator[None]:
    """Makes everything from the module of an object travel by value, if workers lack it."""
    module = inspect.getmodule(source) if source is not None else None
    name = getattr(module, "__name__", "__main__")
    if module is None or name == "__main__" or _importable(name):
        yield
        return
    if name in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)
