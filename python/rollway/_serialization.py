"""Serialization of workflows and tasks for worker processes.

Importable workflows are sent by name; workflows of a script, a notebook, a test file or a function
body are pickled by value. Both ends are this package in processes of the same user.
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

#: Encodings of definitions.
BY_NAME = "name"
BY_VALUE = "cloudpickle"
#: Encodings of tasks from other sources, both JSON: a dataset row, and the fields of a task as the
#: engine reads them from tasksets.
JSON = "json"
FIELDS = "fields"


@dataclass(frozen=True)
class WorkflowDefinition:
    """A workflow as it is sent to workers; its name is unique for its content."""

    name: str
    encoding: str
    body: bytes


def define(source: Any) -> WorkflowDefinition:
    """Returns the definition from which a worker loads a workflow."""
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
    # A workflow that is changed and defined again gets another name.
    digest = hashlib.sha256(body).hexdigest()[:16]
    return WorkflowDefinition(f"{_title(source)}#{digest}", BY_VALUE, body)


def pickle_by_value(source: Any) -> tuple[str, bytes]:
    """Returns the encoding and the pickled bytes of a workflow."""
    with _by_value(source):
        try:
            return BY_VALUE, cloudpickle.dumps(source)
        except Exception as error:
            raise InvalidWorkflow(
                f"workflow {_title(source)} cannot be pickled for a worker process: "
                f"{error}; create the objects that it refers to inside the workflow"
            ) from error


def load(name: str, encoding: str, body: bytes) -> Executable:
    """Loads the workflow of a definition."""
    if encoding == BY_NAME:
        return resolve(name)
    if encoding == BY_VALUE:
        return Executable(pickle.loads(body))
    raise InvalidWorkflow(f"workflow {name} has the unknown encoding `{encoding}`")


#: Entry of an encoded task with the options of one call: `run_id_base`, `collect_partial_runs`,
#: `task_id`.
RUN_OPTIONS = "run_options"

#: Fields that are not sent, or whose empty value differs from their default.
_SPECIAL_FIELDS = ("workflow", "batch_id", "task_id", "raw_task", "reward_fn", "repeat_times")

#: Fields that are sent unless empty.
_OPTIONAL_FIELDS = [field.name for field in fields(Task) if field.name not in _SPECIAL_FIELDS]


def encode_task(task: Task, options: dict[str, Any] | None = None) -> bytes:
    """Encodes the fields of a task except its workflow, and options of the call."""
    state = vars(task)
    content = {name: state[name] for name in _OPTIONAL_FIELDS if state[name]}
    if options:
        content[RUN_OPTIONS] = options
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
    """Decodes the fields of a task."""
    if encoding == JSON:
        return {"raw_task": json.loads(body)}
    return json.loads(body) if encoding == FIELDS else pickle.loads(body)


def sent(task: Task) -> tuple[WorkflowDefinition, bytes, Any, Any]:
    """Encodes a task and its workflow for the Ray coordinator."""
    return define(task.workflow), encode_task(task), task.batch_id, task.task_id


def received(parts: tuple[WorkflowDefinition, bytes, Any, Any]) -> Task:
    """Decodes a task of `sent`; its workflow stays a definition that only workers load."""
    definition, body, batch_id, task_id = parts
    fields = {"is_eval": False, **decode_task(body, "pickle")}
    return Task.restored(definition, fields, batch_id=batch_id, task_id=task_id)


def _plain(value: Any) -> bool:
    """Returns whether plain pickle suffices: built-in types only."""
    if value is None or isinstance(value, (str, int, float, bool, bytes)):
        return True
    if type(value) is dict:
        return all(type(key) is str and _plain(item) for key, item in value.items())
    return type(value) in (list, tuple) and all(map(_plain, value))


def _title(source: Any) -> str:
    module = getattr(source, "__module__", None) or type(source).__module__
    return f"{module}.{getattr(source, '__qualname__', type(source).__qualname__)}"


def _reference(source: Any) -> str | None:
    """Returns `module:name` if a worker can import the object."""
    module = getattr(source, "__module__", None)
    path = getattr(source, "__qualname__", None)
    if not module or not path or "<" in path or not _importable(module):
        return None
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return f"{module}:{path}" if found is source else None


def _importable(name: str) -> bool:
    """Returns whether a worker that imports a module gets the same code.

    False for scripts, notebooks and test files: importing a script runs it again, and test runners
    rewrite the modules that they import.
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
    """Pickles everything of an object's module by value if workers cannot import it."""
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
