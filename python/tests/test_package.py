"""The package as it is installed: names, defaults, types, docstrings."""

import ast
import importlib.metadata
import inspect
import pathlib
import subprocess
import sys
import typing

import pytest

import rollway as rw
from rollway import _rollway
from rollway.errors import InvalidOutput, ModelUnavailable
from rollway.models.openai import Engine
from rollway.worker.run_outcome import WORKFLOW

PACKAGE = pathlib.Path(rw.__file__).parent


def stub():
    """Returns the stub's functions with their parameters and classes with their members."""
    tree = ast.parse((PACKAGE / "_rollway.pyi").read_text())
    names = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            names[node.name] = [argument.arg for argument in node.args.args]
        elif isinstance(node, ast.ClassDef):
            members = {one.name: one.args.args for one in node.body}
            names[node.name] = {
                name: [argument.arg for argument in arguments]
                for name, arguments in members.items()
            }
    return names


def parameters(function):
    return list(inspect.signature(function).parameters)


def test_the_stub_matches_the_extension():
    declared = stub()
    assert set(declared) == {name for name in vars(_rollway) if not name.startswith("_")}
    for name, content in declared.items():
        real = getattr(_rollway, name)
        if isinstance(content, list):
            assert parameters(real) == content, name
            continue
        members = {member for member in vars(real) if not member.startswith("__")}
        assert members == set(content) - {"__new__"}, name
        for member, arguments in content.items():
            if member == "__new__":
                assert parameters(real) == arguments[1:], name
            elif callable(getattr(real, member)):
                assert parameters(getattr(real, member)) == arguments, (name, member)


def test_the_package_is_typed_and_named():
    assert (PACKAGE / "py.typed").exists()
    for name in rw.__all__:
        value = getattr(rw, name)
        assert getattr(value, "__doc__", None), name
    assert list(rw.__all__) == sorted(rw.__all__, key=lambda name: (not name.isupper(), name))


SIGNATURES = {
    rw.Task: "workflow=None, repeat_times=1, raw_task=None, workflow_args, rollout_args, "
    "reward_fn=None, reward_fn_args, format_args, is_eval=False, index, batch_id='', task_id=''",
    rw.EID: "batch='', task='', run=0, step=0, suffix",
    rw.Scheduler: "config, rollout_model, auxiliary_models=None",
    rw.Scheduler.schedule: "self, tasks, batch_id",
    rw.Scheduler.get_payload_results: "self, batch_id, min_num=None, timeout=None, "
    "clear_timeout_tasks=True, return_partial_tasks=False",
    rw.Scheduler.get_statuses: "self, batch_id, min_num=None, timeout=None, "
    "clear_timeout_tasks=True, return_partial_tasks=False",
    rw.Scheduler.get_results: "self, batch_id, min_num=None, timeout=None, "
    "clear_timeout_tasks=True, return_partial_tasks=False",
    rw.Scheduler.drain_batch_payload_results: "self, batch_id",
    rw.Scheduler.discard_completed_results: "self, batch_id",
    rw.Scheduler.abort_batch: "self, batch_id, return_partial_tasks=False, restart_runners=True",
    rw.Scheduler.has_step: "self, batch_id",
    rw.Scheduler.wait_all: "self, timeout=None, clear_timeout_tasks=True",
    rw.Scheduler.dynamic_timeout: "self, timeout=None",
    rw.Scheduler.get_key_state: "self, key",
    rw.Scheduler.get_runner_state: "self, runner_id",
    rw.Scheduler.get_all_state: "self",
    rw.Scheduler.print_all_state: "self",
    rw.RolloutCoordinator.submit_batch: "self, *batch_id, *tasks, *batch_type, *min_wait_num=None",
    rw.RolloutCoordinator.finalize_train_batch: "self, batch_id, *timeout=None",
    rw.RolloutCoordinator.finalize_eval_batch: "self, batch_id, *timeout=None",
    rw.RolloutCoordinator.abort_batch: "self, batch_id, *reason, *keep_partial_results=False",
    rw.RolloutCoordinator.process_experiences: "self, payloads",
    rw.RolloutCoordinator.get_actor: "config, models, auxiliary_models",
    rw.Explorer: "config, rollout_model=None, auxiliary_models=None, *on_event=None",
    rw.Explorer.setup_weight_sync_group: "self, master_address, master_port, state_dict_meta=None",
    rw.Explorer.get_weight: "self, name",
    rw.ExperienceReader: "source, batch_size=32, min_model_version=0, timeout=1800.0, "
    "name='trainer', secret=None, keep=False, raise_on_timeout=True, table=None",
    rw.ExperienceReader.read: "self, count=None, timeout=None",
    rw.WorkflowRunner: "config, model, auxiliary_models=None, runner_id=None",
    rw.WorkflowRunner.run_task: (
        "self, task, repeat_times=1, run_id_base=0, collect_partial_runs=True"
    ),
    rw.metrics.bootstrap_metric: "data, subset_size, reduce_fns, n_bootstrap=1000, seed=42",
    rw.metrics.calculate_task_level_metrics: "metrics, is_eval",
    rw.metrics.gather_metrics: "metric_list, prefix, output_stats=('mean', 'max', 'min')",
    rw.metrics.gather_eval_metrics: "metric_list, prefix, "
    "output_stats=('mean', 'max', 'min', 'std'), detailed_stats=False",
    rw.sort_batch_id: "batch_id",
}


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__qualname__)
def test_names_and_defaults_are_interface(function):
    words = []
    for parameter in inspect.signature(function).parameters.values():
        star = "*" if parameter.kind is parameter.KEYWORD_ONLY else ""
        factory = repr(parameter.default) == "<factory>"
        default = parameter.default
        plain = default is not parameter.empty and not factory
        words.append(f"{star}{parameter.name}" + (f"={default!r}" if plain else ""))
    assert ", ".join(words) == SIGNATURES[function]


def test_optional_packages_are_asked_for_by_name(monkeypatch):
    for name in ("torch", "ray", "openai"):
        monkeypatch.setitem(sys.modules, name, None)
    experience = rw.Experience(tokens=[1, 2])
    calls = {
        "torch": experience.to_torch,
        "ray": lambda: rw.RolloutCoordinator.get_actor(rw.Config(), [rw.models.Echo()], None),
        "openai": rw.models.Echo().bind(is_async=False).openai_client,
    }
    for package, call in calls.items():
        with pytest.raises(ImportError, match=f"pip install rollway\\[{package}\\]") as caught:
            call()
        assert caught.value.package == package


def test_the_metadata_lists_the_dependencies():
    needed = importlib.metadata.requires("rollway") or []
    assert [line for line in needed if line.startswith(("numpy", "cloudpickle"))]


def test_lists_of_names_are_those_of_the_extension():
    engines = typing.get_args(Engine)
    assert sorted(engines) == sorted(name for name, _, _ in _rollway.server_kinds())
    # Other tests register more names.
    script = (
        "import rollway.workflows\n"
        "from rollway import _rollway\n"
        "from rollway.rewards import known as rewards\n"
        "from rollway.workflow import known as workflows\n"
        "known = [workflows(), rewards()]\n"
        "assert known == [sorted(names) for names in _rollway.built_in_names()], known"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_failures_of_runs_have_kinds_of_the_engine():
    kinds = {WORKFLOW, InvalidOutput.code, ModelUnavailable.code}
    assert kinds <= set(_rollway.failure_kinds())
