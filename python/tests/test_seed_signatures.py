"""Signatures, defaults and fields of Trinity-RFT's explorer, name by name.

`CLASSES`, `FUNCTIONS` and `DATA_CLASSES` list what its documentation declares, in the releases of
2025 and 2026. Behaviour is checked in test_seed_api.py; intended differences are listed in
docs/trinity-differences.md.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect

import pytest

import rollway as rw
from rollway.explorer import Explorer
from rollway.explorer import explorer as explorer_module
from rollway.explorer.rollout_coordinator import (
    BatchLifecycleState,
)

#: Marks a parameter without a default, and a default that a factory makes.
REQUIRED, FACTORY = object(), object()

COLLECT = {
    "batch_id": REQUIRED,
    "min_num": None,
    "timeout": None,
    "clear_timeout_tasks": True,
    "return_partial_tasks": False,
}
MODELS = {"config": REQUIRED, "rollout_model": REQUIRED, "auxiliary_models": None}

#: Module, class, methods with their parameters and defaults; `*` begins keyword-only ones.
CLASSES = {
    ("scheduler", "RunnerWrapper"): {
        "__init__": {
            "runner_id": REQUIRED,
            "rollout_model": REQUIRED,
            "auxiliary_models": REQUIRED,
            "config": REQUIRED,
        },
        "prepare": {},
        "update_state": {},
        # Optional after the task, so that the form of 2025 with the task alone works.
        "run_with_retry": {
            "task": REQUIRED,
            "repeat_times": None,
            "run_id_base": None,
            "timeout": None,
            "collect_partial_runs": None,
        },
        "restart_runner": {},
    },
    ("scheduler", "Scheduler"): {
        "__init__": MODELS,
        "task_done_callback": {"async_task": REQUIRED},
        "discard_completed_results": {"batch_id": REQUIRED},
        "start": {},
        "stop": {},
        "schedule": {"tasks": REQUIRED, "batch_id": REQUIRED},
        "dynamic_timeout": {"timeout": None},
        "drain_batch_payload_results": {"batch_id": REQUIRED},
        "get_payload_results": COLLECT,
        "get_statuses": COLLECT,
        "get_results": COLLECT,
        "abort_batch": {
            "batch_id": REQUIRED,
            "return_partial_tasks": False,
            "restart_runners": True,
        },
        "has_step": {"batch_id": REQUIRED},
        "wait_all": {"timeout": None, "clear_timeout_tasks": True},
        "get_key_state": {"key": REQUIRED},
        "get_runner_state": {"runner_id": REQUIRED},
        "get_all_state": {},
        "print_all_state": {},
    },
    ("rollout_coordinator", "RolloutCoordinator"): {
        "__init__": MODELS,
        "prepare": {},
        "shutdown": {},
        "submit_batch": {
            "*batch_id": REQUIRED,
            "*tasks": REQUIRED,
            "*batch_type": REQUIRED,
            "*min_wait_num": None,
        },
        "finalize_train_batch": {"batch_id": REQUIRED, "*timeout": None},
        "finalize_eval_batch": {"batch_id": REQUIRED, "*timeout": None},
        "abort_batch": {"batch_id": REQUIRED, "*reason": REQUIRED, "*keep_partial_results": False},
        "process_experiences": {"payloads": REQUIRED},
        "get_actor": {"config": REQUIRED, "models": REQUIRED, "auxiliary_models": REQUIRED},
    },
    ("workflow_runner", "WorkflowRunner"): {
        "__init__": {
            "config": REQUIRED,
            "model": REQUIRED,
            "auxiliary_models": None,
            "runner_id": None,
        },
        "run_task": {"task": REQUIRED, "repeat_times": 1, "run_id_base": 0},
    },
    ("workflow_runner", "Status"): {
        "__init__": {"completed_runs": None, "total_runs": None, "metrics": None, "message": None},
    },
    ("explorer", "Explorer"): {
        "__init__": {"config": REQUIRED},
        "setup_weight_sync_group": {
            "master_address": REQUIRED,
            "master_port": REQUIRED,
            "state_dict_meta": None,
        },
        "get_weight": {"name": REQUIRED},
        "explore": {},
    },
}

FUNCTIONS = {
    ("scheduler", "bootstrap_metric"): {
        "data": REQUIRED,
        "subset_size": REQUIRED,
        "reduce_fns": REQUIRED,
        "n_bootstrap": 1000,
        "seed": 42,
    },
    ("scheduler", "calculate_task_level_metrics"): {"metrics": REQUIRED, "is_eval": REQUIRED},
    ("scheduler", "sort_batch_id"): {"batch_id": REQUIRED},
}

DATA_CLASSES = {
    ("scheduler", "TaskWrapper"): {
        "task": REQUIRED,
        "batch_id": REQUIRED,
        "sub_task_num": 1,
        "finished_sub_task_num": 0,
        "completed_runs": 0,
        "total_runs": 0,
        "metrics": FACTORY,
        "experience_payloads": FACTORY,
        "first_error": None,
        "emitted": False,
        # The fields of 2025.
        "run_id_base": 0,
        "repeat_times": 1,
    },
    ("scheduler", "CompletedTaskResult"): {
        "batch_id": REQUIRED,
        "task_id": REQUIRED,
        "status": REQUIRED,
        "experience_payloads": FACTORY,
    },
    ("scheduler", "RunningTaskState"): {
        "task": REQUIRED,
        "runner_id": REQUIRED,
        "restart_runner_on_cancel": True,
    },
    ("rollout_coordinator", "BatchState"): {
        "batch_id": REQUIRED,
        "batch_type": REQUIRED,
        "expected_task_count": REQUIRED,
        "statuses": FACTORY,
        "min_wait_num": None,
        "state": BatchLifecycleState.PENDING,
        "final_result": None,
        "finalize_lock": FACTORY,
    },
}

METHODS = [
    (module, name, method, parameters)
    for (module, name), methods in CLASSES.items()
    for method, parameters in methods.items()
]


def imported(module: str, name: str):
    return getattr(importlib.import_module(f"rollway.explorer.{module}"), name)


def check_parameters(function, expected: dict) -> None:
    found = {
        ("*" if one.kind is one.KEYWORD_ONLY else "") + one.name: one
        for one in inspect.signature(function).parameters.values()
        if one.name not in ("self", "cls")
    }
    # Parameters of our own come after those of the seed.
    assert list(found)[: len(expected)] == list(expected)
    for name, default in expected.items():
        actual = found[name].default
        assert actual is inspect.Parameter.empty if default is REQUIRED else actual == default, name
    for name in list(found)[len(expected) :]:
        assert found[name].default is not inspect.Parameter.empty, f"{name} must be optional"


@pytest.mark.parametrize(("module", "name", "method", "parameters"), METHODS)
def test_signature_of_methods(module, name, method, parameters):
    kind = imported(module, name)
    check_parameters(getattr(kind, method), parameters)
    assert inspect.getdoc(getattr(kind, method) if method != "__init__" else kind)
    assert getattr(rw, name) is kind


@pytest.mark.parametrize(("path", "parameters"), FUNCTIONS.items())
def test_signature_of_functions(path, parameters):
    check_parameters(imported(*path), parameters)
    assert inspect.getdoc(imported(*path))


@pytest.mark.parametrize(("path", "members"), DATA_CLASSES.items())
def test_fields_of_data_classes(path, members):
    kind = imported(*path)
    found = {}
    for one in dataclasses.fields(kind):
        factory = one.default_factory is not dataclasses.MISSING
        default = REQUIRED if one.default is dataclasses.MISSING else one.default
        found[one.name] = FACTORY if factory else default
    assert found == members
    assert getattr(rw, path[1]) is kind


def test_import_paths():
    assert explorer_module.Explorer is Explorer is rw.Explorer
    states = {state.name: state.value for state in BatchLifecycleState}
    assert states == {
        "PENDING": "pending",
        "RUNNING": "running",
        "FINALIZING": "finalizing",
        "FINALIZED": "finalized",
        "ABORTED": "aborted",
    }
    assert issubclass(BatchLifecycleState, str)
