"""The compatibility package: files written for Trinity-RFT run without edits."""

from __future__ import annotations

import dataclasses
import importlib
import os
import pathlib
import pickle
import subprocess
import sys

import numpy as np
import pytest

import rollway as rw
import rollway.trinity
from rollway.trinity.common.config import Config, FormatConfig, GenerationConfig, load_config
from rollway.trinity.common.experience import EID, Experience
from rollway.trinity.common.models.model import ModelWrapper
from rollway.trinity.common.rewards import REWARD_FUNCTIONS
from rollway.trinity.common.workflows import WORKFLOWS, Task
from rollway.trinity.utils.registry import Registry

import programs
import trinity_recording
import trinity_workflows as user

ROW = {"question": "What is 1 + 2?", "answer": "3"}


def collect(config, task: rw.Task, models=None, auxiliary=None):
    """Runs one task in a worker process; returns its status and experiences."""
    models = models or [rw.models.MockServer(lengths=(3, 9))]
    with rw.Scheduler(config, models, auxiliary) as scheduler:
        scheduler.schedule([task], 1)
        (status,), experiences = scheduler.get_results(1).result()
    assert status.ok, status.message
    return status, experiences


# Six workflows as Trinity-RFT's documentation writes them.


def test_single_turn(config):
    task = Task(
        workflow=user.SingleTurn,
        raw_task=ROW,
        repeat_times=3,
        rollout_args=GenerationConfig(temperature=0.7),
    )
    status, experiences = collect(config, task)
    assert [one.eid.run for one in experiences] == [0, 1, 2]
    assert all(one.reward in (0.0, 1.0) and one.logprobs is not None for one in experiences)
    assert status.metric["length"] > 0
    assert type(experiences[0]) is rw.Experience


def test_single_turn_instances_are_reset(config):
    tasks = [rw.Task(workflow=user.SingleTurn, raw_task={**ROW, "answer": "x" * n}) for n in (1, 2)]
    config.explorer.runner_per_model = 1
    with rw.Scheduler(config, [rw.models.MockServer()]) as scheduler:
        scheduler.schedule(tasks, 1)
        statuses, experiences = scheduler.get_results(1).result()
    assert all(status.ok for status in statuses), statuses
    texts = [one.response_text for one in experiences]
    expected = [float(len(text) % 2 == (n + 1) % 2) for n, text in enumerate(texts)]
    assert [one.reward for one in experiences] == expected


def test_multi_turn(config):
    task = Task(
        workflow=user.MultiTurn,
        raw_task={"prompt": "Where is the exit?"},
        workflow_args={"max_env_steps": 3},
    )
    status, (one,) = collect(config, task)
    assert one.kind == "multi_turn" and one.reward == 1.0
    assert one.info["turns"] == 3 and 0 < one.action_mask.sum() < len(one.action_mask)
    assert len(one.logprobs) == len(one.action_mask) == len(one.tokens) - one.prompt_length
    assert status.metric["env_rounds"] == 3 and "done" not in status.metric


def test_step_wise(config):
    task = Task(workflow=user.StepWise, raw_task=ROW, workflow_args={"max_step_num": 3})
    _, experiences = collect(config, task)
    assert [(one.eid.step, one.reward) for one in experiences] == [(0, 0.0), (1, 0.5), (2, 1.0)]


def test_reward_propagation(config):
    status, experiences = collect(config, Task(workflow=user.Propagated, raw_task=ROW))
    assert [(one.eid.step, one.reward) for one in experiences] == [(0, 2.0), (1, 2.0)]
    assert status.metric["actual_env_steps"] == 2


def test_tool_use_through_an_openai_client(config):
    status, experiences = collect(config, Task(workflow=user.ToolUse, raw_task=ROW))
    assert experiences and all(one.reward == 1.0 for one in experiences)
    assert sum(one.info["turns"] for one in experiences) == 2
    assert status.metric["tool_calls"] >= 1


def test_operator_with_an_auxiliary_judge(config):
    config.data_processor.experience_pipeline.operators = [
        {"name": "judge_operator", "args": {"keep": 2}},
        {"name": "length_operator"},
    ]
    judge = rw.models.MockServer("openai", "judge", seed=2)
    models = [rw.models.MockServer(lengths=(3, 9))]
    with rw.RolloutCoordinator(config, models, [[judge]]) as coordinator:
        task = Task(workflow=user.SingleTurn, raw_task=ROW, repeat_times=3)
        coordinator.submit_batch(batch_id=1, tasks=[task], batch_type="train").result()
        metrics = coordinator.finalize_train_batch(1).result()["metrics"]
        with rw.ExperienceReader(coordinator, batch_size=2, timeout=10) as reader:
            kept = reader.read().experiences
    assert any(name.endswith("judged_count") and metrics[name] == 3 for name in metrics), metrics
    assert any(name.endswith("mean_tokens") for name in metrics)
    assert len(kept) == 2 and all(one.info["judge"] == "judge" for one in kept)
    assert len(judge.requests) == 3 and all(one.reward > 0 for one in kept)


def test_eval_only(config):
    config.mode = "bench"
    row = {"question": "1 + 2?", "answer": "three"}
    task = Task(
        workflow=user.EvalOnly,
        raw_task=row,
        is_eval=True,
        repeat_times=2,
        format_args=FormatConfig(prompt_key="question", response_key="answer"),
        rollout_args={"temperature": 0.0},
    )
    # A server without token ids suffices for evaluation.
    models = [rw.models.MockServer("openai")]
    with rw.RolloutCoordinator(config, models) as coordinator:
        coordinator.submit_batch(batch_id="1/set", tasks=[task], batch_type="eval").result()
        result = coordinator.finalize_eval_batch("1/set").result()
    assert result["metrics"]["eval/set/accuracy/mean@2"] == 1.0
    assert result["metrics"]["eval/set/truth_length/mean@2"] == 5.0


# Further parts.


def test_workflow_with_recording_and_reset(config):
    config.explorer.runner_per_model = 1
    judge = rw.models.MockServer("openai", "judge")
    workflow = trinity_recording.Recording
    tasks = [Task(workflow=workflow, raw_task={"question": q}) for q in ("a", "b")]
    with rw.Scheduler(config, [rw.models.MockServer()], [[judge]]) as scheduler:
        scheduler.schedule(tasks, 1)
        statuses, experiences = scheduler.get_results(1).result()
    assert all(status.ok for status in statuses), statuses
    assert [one.reward for one in experiences] == [1.0, 1.0]
    assert experiences[0].info["source"] == "llm_as_a_judge"
    assert statuses[0].metric["recording/reward"] == 1.0


def test_reward_functions_by_name(config):
    task = Task(
        workflow=user.Rewarded,
        raw_task={"prompt": "Say yes.", "response": "yes"},
        reward_fn="brevity_reward",
        reward_fn_args={"limit": 10_000},
        repeat_times=2,
    )
    assert task.reward_fn is user.Brevity
    status, experiences = collect(config, task, [rw.models.Echo()])
    assert [one.reward for one in experiences] == [1.5, 1.5]
    assert [one.response_text for one in experiences] == ["Say yes.", "Say yes."]
    assert (status.metric["brief"], status.metric["known"], status.metric["seen"]) == (
        1.0,
        0.5,
        1.0,
    )


def test_responses_without_token_ids_are_not_trained_on(config):
    task = Task(workflow=user.SingleTurn, raw_task=ROW)
    with rw.Scheduler(config, [rw.models.MockServer("openai")]) as scheduler:
        scheduler.schedule([task], 1)
        (status,), experiences = scheduler.get_results(1).result()
    assert not status.ok and not experiences and "no token ids" in status.message


def test_math_rewards():
    reward = REWARD_FUNCTIONS.get("math_reward")()
    right = "<think>1 and 2</think> <answer>3</answer>"
    assert reward(response=right, truth="3") == {"accuracy": 1.0, "format_score": 0.1}
    assert reward("<answer>4</answer>", truth="3") == {"accuracy": 0.0, "format_score": -0.1}
    boxed = REWARD_FUNCTIONS.get("math_boxed_reward")()
    assert boxed("It is \\boxed{\\frac{1}{2}}.", truth="0.5")["accuracy"] == 1.0
    assert boxed("\\boxed{1}", truth="1", with_think=True)["format_score"] == -0.1
    assert REWARD_FUNCTIONS.get("accuracy_reward")()("7", truth="7") == {"accuracy": 1.0}


def test_registries():
    assert WORKFLOWS.get("example_workflow") is user.SingleTurn
    assert WORKFLOWS.get("math_workflow").__name__ == "MathWorkflow"
    assert WORKFLOWS.get("trinity_workflows.EvalOnly") is user.EvalOnly
    assert "example_workflow" in importlib.import_module("rollway.workflow").known()
    registry = Registry("things")

    @registry.register_module()
    class Thing:
        pass

    assert registry.get("Thing") is Thing and registry.list() == ["Thing"]
    with pytest.raises(KeyError, match="already registered"):
        registry.register_module("Thing", module_cls=int)
    registry.register_module("Thing", module_cls=int, force=True)
    assert registry.get(None) is None
    with pytest.raises(ValueError, match="not registered"):
        registry.get("Other")
    with pytest.raises(ImportError, match="cannot be imported"):
        registry.get("no_such_module.Thing")


def test_tasks_have_attributes():
    task = Task(
        workflow=user.SingleTurn,
        raw_task=ROW,
        rollout_args={"temperature": 0.5, "n": 4, "stop": ["."]},
        format_args={"prompt_key": "question", "response_key": "answer"},
    )
    assert task.rollout_args.n == 4 and task.rollout_args.temperature == 0.5
    assert dataclasses.asdict(task.rollout_args)["stop"] == ["."]
    assert dict(**task.rollout_args) == {"temperature": 0.5, "n": 4, "stop": ["."]}
    assert task.task_desc == ROW["question"] and task.truth == "3"
    assert task.format_args.system_prompt is None and task.to_dict() is ROW
    task.rollout_args.n = 2
    assert task.with_n(1).rollout_args["n"] == 1 and task.rollout_args.n == 2
    workflow = task.to_workflow(rw.models.Echo().bind(False))
    assert isinstance(workflow.model, ModelWrapper) and workflow.repeat_times == 2
    assert workflow.auxiliary_models is None and workflow.logger.name.startswith("trinity")


def test_experience():
    one = Experience(
        tokens=np.array([1.0, 2.0, 3.0]), prompt_length=1, reward=0.5, eid=EID(batch=1), info=None
    )
    assert one.plain().tokens.dtype == np.int32 and one.metrics == {} and one.info == {}
    one.metrics = None
    one.note = "kept on the object"
    one.logprobs = [0.5, 0.25]
    assert one.plain().metrics == {} and one.plain().logprobs.dtype == np.float64
    again = Experience.deserialize_many(Experience.serialize_many([one]))[0]
    assert isinstance(again, Experience) and list(again.logprobs) == [0.5, 0.25]
    assert pickle.loads(pickle.dumps(one)).reward == 0.5
    assert Experience.deserialize(one.serialize()) == again
    with pytest.raises(ValueError, match="whole numbers"):
        Experience(tokens=[1.5, 2.0], prompt_length=1)


TORCH = """
import numpy as np
import torch
import rollway as rw
from rollway.trinity.common.experience import Experience

one = Experience(
    tokens=torch.from_numpy(np.array([1.0, 2.0, 3.0])), prompt_length=1,
    logprobs=torch.from_numpy(np.array([0.5, 0.25], dtype=np.float32)), reward=1.0,
)
assert isinstance(one.tokens, torch.Tensor) and isinstance(one.logprobs, torch.Tensor)
one.logprobs = one.logprobs * 2.0
assert list(one.plain().logprobs) == [1.0, 0.5]
(again,) = rw.Experience.deserialize_many(Experience.serialize_many([one]))
assert list(again.tokens) == [1, 2, 3] and list(again.logprobs) == [1.0, 0.5]
"""


def test_experiences_have_torch_tensors():
    folder = pathlib.Path(__file__).parent / "stand_in"
    path = os.pathsep.join([*filter(None, sys.path), str(folder)])
    command = [sys.executable, "-c", TORCH]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr


CONFIGURATION = """
project: demo
name: one
mode: explore
ray_namespace: demo
model: {model_path: Qwen/Qwen2.5-0.5B-Instruct, max_response_tokens: 64}
algorithm: {algorithm_type: grpo, repeat_times: 4}
cluster: {node_num: 1, gpu_per_node: 2}
buffer:
  batch_size: 2
  total_steps: 3
  explorer_input:
    default_workflow_type: math_workflow
    taskset:
      path: tasks
      format: {prompt_key: question, response_key: answer}
      rollout_args: {temperature: 1.0}
explorer:
  runner_per_model: 2
  rollout_model: {engine_num: 1, engine_type: vllm_async, enable_openai_api: true}
synchronizer: {sync_method: checkpoint, sync_style: dynamic_by_explorer, sync_interval: 2}
trainer: {trainer_type: verl, save_interval: 100}
"""


def test_configuration_files(tmp_path):
    file = tmp_path / "trinity.yaml"
    file.write_text(CONFIGURATION)
    with pytest.warns(UserWarning):
        config = load_config(file)
    assert isinstance(config, Config) and config.algorithm.repeat_times == 4
    assert config.synchronizer.sync_style == "explorer_driven"
    assert config.explorer.rollout_model.engine_type == "vllm"
    config.save(tmp_path / "again.yaml")
    assert load_config(tmp_path / "again.yaml") == config
    assert pickle.loads(pickle.dumps(config)) == config
    fresh = Config()
    fresh.buffer.explorer_input.default_workflow_type = "simple_workflow"
    with pytest.raises(rw.ConfigError):
        fresh.explorer.runner_per_model = 0
        fresh.check_and_update()


def test_trinity_is_importable_under_both_names():
    import trinity
    import trinity.common.workflows.workflow as under_its_name

    import rollway.trinity.common.workflows.workflow as here

    assert trinity is rollway.trinity and under_its_name is here
    assert here.__spec__.name == here.__name__ == "rollway.trinity.common.workflows.workflow"
    with pytest.raises(ModuleNotFoundError, match=r"trinity\.nothing"):
        importlib.import_module("trinity.nothing")
    from trinity.explorer.rollout_coordinator import RolloutCoordinator
    from trinity.explorer.scheduler import Scheduler

    assert Scheduler is rw.Scheduler and RolloutCoordinator is rw.RolloutCoordinator


PLUGIN = """
from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn
from trinity.common.workflows import WORKFLOWS, SimpleWorkflow


@WORKFLOWS.register_module("plugin_workflow")
class PluginWorkflow(SimpleWorkflow):
    def format_messages(self):
        return [{"role": "user", "content": self.task_desc + "="}]


@REWARD_FUNCTIONS.register_module("plugin_reward")
class PluginReward(RewardFn):
    def __init__(self, weight=1.0):
        self.weight = weight

    def __call__(self, response, prompt=None, truth=None):
        return {"answered": self.weight * isinstance(response, str), "known": float(truth == "2")}
"""

JOB = """
mode: explore
algorithm: {repeat_times: 2}
buffer:
  batch_size: 1
  total_steps: 1
  explorer_input:
    default_workflow_type: WORKFLOW
    default_reward_fn_type: plugin_reward
    taskset:
      path: tasks.jsonl
      format: {prompt_key: question, response_key: answer}
      rollout_args: {max_tokens: 4}
      reward_fn_args: {weight: 0.5}
explorer:
  rollout_model: {engine_type: tiny}
"""


@pytest.mark.parametrize(
    "workflow", ["plugin_workflow", "code.PluginWorkflow", "simple_workflow", "math_boxed_workflow"]
)
def test_registered_names_of_plugin_folders_run_from_the_command_line(tmp_path, workflow):
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "plugin_code.py").write_text(PLUGIN)
    name = workflow.replace("code.", "plugin_code.")
    (tmp_path / "job.yaml").write_text(JOB.replace("WORKFLOW", name))
    (tmp_path / "tasks.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    done = subprocess.run(
        [programs.program("ROLLWAY_BIN"), "debug", "job.yaml"],
        cwd=tmp_path,
        env={
            **os.environ,
            "ROLLWAY_PYTHON": sys.executable,
            "TRINITY_PLUGIN_DIRS": str(folder),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    reward = next(line for line in done.stdout.splitlines() if line.strip().startswith("reward"))
    assert float(reward.split()[-1]) == 1.5
