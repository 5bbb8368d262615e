"""Runs the workflows of trinity_workflows.py with Trinity-RFT or with `rollway.trinity`.

Prints what they return, without token ids, as JSON: the output must be the same for both. It is run
by hand (docs/trinity.md), because Trinity-RFT needs torch, Ray and transformers::

    rollway mock-server --port 8000 --completion-tokens 3-9 --tokens-per-second 0 &
    python trinity_rft.py rollway 8000 > rollway.json
    python trinity_rft.py trinity 8000 > trinity.json       # in the environment of Trinity-RFT
    diff rollway.json trinity.json

Inference is that of the mock server in both; Trinity-RFT gets a model actor that calls it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import sys
import tempfile
import types
from typing import Any

MODEL = "mock"
ROW = {"question": "What is 1 + 2?", "answer": "3"}

#: Workflow, arguments of the task, and number of runs.
TASKS: dict[str, tuple[str, dict[str, Any], int]] = {
    "single_turn": ("SingleTurn", {"raw_task": ROW}, 3),
    "multi_turn": (
        "MultiTurn",
        {"raw_task": {"prompt": "Where is the exit?"}, "workflow_args": {"max_env_steps": 3}},
        1,
    ),
    "step_wise": ("StepWise", {"raw_task": ROW, "workflow_args": {"max_step_num": 3}}, 2),
    "reward_propagation": ("Propagated", {"raw_task": ROW}, 1),
    "tool_use": ("ToolUse", {"raw_task": ROW}, 1),
    "eval_only": ("EvalOnly", {"raw_task": {"prompt": "1 + 2?", "response": "three"}}, 2),
    "reward_function": ("Rewarded", {"raw_task": {"prompt": "Yes?", "response": "yes"}}, 2),
}


def arguments(name: str, given: dict[str, Any], user: Any, generation: Any) -> dict[str, Any]:
    """Returns the arguments of a task."""
    more: dict[str, Any] = {"rollout_args": generation(temperature=0.7)}
    if name == "reward_function":
        more |= {"reward_fn": user.Brevity, "reward_fn_args": {"limit": 10_000}}
    return {**given, **more, "is_eval": name == "eval_only"}


def numbers(metrics: dict[str, float]) -> dict[str, float]:
    """Returns metrics without times, and without `turns`, which Rollway adds to recorded turns."""
    kept = [name for name in sorted(metrics) if name != "turns" and not name.startswith("time/")]
    return {name: float(metrics[name]) for name in kept}


def summary(name: str, experiences: list[Any]) -> list[Any]:
    """Returns what a trainer gets, but for the known differences (docs/trinity.md)."""
    if name == "tool_use":
        # Rollway merges calls that continue each other.
        return sorted({(one.eid.run, one.eid.step, one.reward) for one in experiences})
    return [
        {
            "run": one.eid.run,
            "step": one.eid.step,
            "reward": one.reward,
            "text": None if name == "multi_turn" else one.response_text,
            "metrics": numbers(one.metrics),
        }
        for one in experiences
    ]


def result(name: str, status: Any, metrics: dict[str, float], experiences: list[Any]) -> Any:
    """Returns the result of a task."""
    return {
        "status": (status.completed_runs, status.total_runs, status.ok, status.message),
        "metrics": numbers(metrics),
        "experiences": summary(name, experiences),
    }


# Rollway.


def with_rollway(port: str) -> dict[str, Any]:
    import rollway as rw
    import rollway.trinity
    from rollway.trinity.common.config import GenerationConfig
    from rollway.trinity.common.workflows import Task

    user = importlib.import_module("trinity_workflows")
    found: dict[str, Any] = {}
    model = rw.models.OpenAI(f"http://127.0.0.1:{port}/v1", MODEL, engine="vllm")
    config = rw.Config()
    config.checkpoint_root_dir = tempfile.mkdtemp()
    config.data_processor.experience_pipeline.operators = [
        {"name": "judge_operator", "args": {"keep": 2}}
    ]
    with rw.Scheduler(config, [model]) as scheduler:
        for number, (name, (workflow, given, runs)) in enumerate(TASKS.items()):
            given = arguments(name, given, user, GenerationConfig)
            task = Task(workflow=getattr(user, workflow), repeat_times=runs, **given)
            scheduler.schedule([task], number)
            (status,), experiences = scheduler.get_results(number).result()
            found[name] = result(name, status, status.metric, experiences)
    with rw.RolloutCoordinator(config, [model], [[model]]) as coordinator:
        task = Task(workflow=user.SingleTurn, raw_task=ROW, repeat_times=3)
        coordinator.submit_batch(batch_id=1, tasks=[task], batch_type="train").result()
        coordinator.finalize_train_batch(1).result()
        with rw.ExperienceReader(coordinator, batch_size=2, timeout=10) as reader:
            kept = reader.read().experiences
    found["operator"] = [(one.eid.run, one.reward, "judge" in one.info) for one in kept]
    return found


# Trinity-RFT.


def without_vllm() -> None:
    """Defines the names of vLLM that Trinity-RFT 0.6.0 imports for models with images."""
    names = {
        "vllm": [],
        "vllm.config": ["ModelConfig"],
        "vllm.entrypoints": [],
        "vllm.entrypoints.chat_utils": [
            "ChatTemplateContentFormat",
            "ConversationMessage",
            "parse_chat_messages",
            "parse_chat_messages_async",
        ],
        "vllm.inputs": ["MultiModalDataDict"],
    }
    for module, members in names.items():
        made = types.ModuleType(module)
        for member in members:
            setattr(made, member, object)
        sys.modules[module] = made


def model_actor(port: str) -> type:
    """Returns the class of a model actor of Trinity-RFT that calls the mock server."""
    import httpx
    from trinity.common.experience import Experience
    from trinity.common.models.model import InferenceModel

    class MockModel(InferenceModel):
        async def chat(self, messages: list[dict], lora_request: Any = None, **kwargs: Any) -> list:
            body = {name: value for name, value in kwargs.items() if value is not None}
            body |= {"model": MODEL, "messages": messages, "return_token_ids": True}
            body |= {"logprobs": True}
            async with httpx.AsyncClient(timeout=60) as client:
                url = f"http://127.0.0.1:{port}/v1/chat/completions"
                answer = (await client.post(url, json=body)).raise_for_status().json()
            prompt = answer["prompt_token_ids"]
            return [
                Experience(
                    tokens=[*prompt, *choice["token_ids"]],
                    prompt_length=len(prompt),
                    logprobs=[one["logprob"] for one in choice["logprobs"]["content"]],
                    response_text=choice["message"]["content"],
                )
                for choice in answer["choices"]
            ]

        async def convert_messages_to_experience(
            self, messages: list[dict], tools: Any = None, temperature: Any = None
        ) -> Any:
            parts = [(list(one["content"].encode()), one["role"]) for one in messages]
            tokens = [token for part, _ in parts for token in part]
            mask = [role == "assistant" for part, role in parts for _ in part]
            first = mask.index(True)
            return Experience(
                tokens=tokens,
                prompt_length=first,
                action_mask=mask[first:],
                logprobs=[0.0] * (len(tokens) - first),
                messages=messages,
            )

        def get_api_server_url(self) -> str:
            return f"http://127.0.0.1:{port}"

        def get_model_version(self) -> int:
            return 0

        async def sync_model_weights(self, *args: Any, **kwargs: Any) -> int:
            return 0

    return MockModel


async def with_trinity(port: str) -> dict[str, Any]:
    without_vllm()
    import ray
    from trinity.buffer.operators import create_operators
    from trinity.common.config import Config, GenerationConfig, OperatorConfig
    from trinity.common.experience import Experience
    from trinity.common.workflows import Task
    from trinity.explorer.scheduler import calculate_task_level_metrics
    from trinity.explorer.workflow_runner import WorkflowRunner

    user = importlib.import_module("trinity_workflows")
    environment = {"worker_process_setup_hook": without_vllm}
    ray.init(num_cpus=2, include_dashboard=False, namespace="check", runtime_env=environment)
    config = Config()
    model = config.explorer.rollout_model
    model.model_path, model.ray_namespace = MODEL, "check"
    model.enable_openai_api = model.enable_history = True
    model.engine_type = "vllm"
    name = f"{config.explorer.name}_rollout_model_0_0"
    kind = ray.remote(model_actor(port)).options(name=name, namespace="check")
    actor = kind.remote(config=model)
    runner = WorkflowRunner(config, 0, [], 0)
    await runner.prepare()
    found: dict[str, Any] = {}
    for number, (name, (workflow, given, runs)) in enumerate(TASKS.items()):
        given = arguments(name, given, user, GenerationConfig)
        task = Task(workflow=getattr(user, workflow), repeat_times=runs, **given)
        task.rollout_args.n = runs if task.workflow.can_repeat else 1
        task.batch_id, task.task_id = number, 0
        status, payload = await runner.run_task(task, number, repeat_times=runs)
        experiences = Experience.deserialize_many(payload) if payload else []
        metrics = calculate_task_level_metrics(status.metrics, task.is_eval)
        found[name] = result(name, status, metrics, experiences)
    judge = runner.model_wrapper.get_openai_async_client()
    config_of = OperatorConfig(name="judge_operator", args={"keep": 2})
    (operator,) = create_operators([config_of], {0: [judge]})
    task = Task(workflow=user.SingleTurn, raw_task=ROW, repeat_times=3)
    _, payload = await runner.run_task(task, 1, repeat_times=3)
    kept, _ = await operator.process(Experience.deserialize_many(payload))
    found["operator"] = [(one.eid.run, one.reward, "judge" in one.info) for one in kept]
    del actor
    ray.shutdown()
    return found


def main() -> None:
    package, port = sys.argv[1:]
    with contextlib.redirect_stdout(sys.stderr):
        found = with_rollway(port) if package == "rollway" else asyncio.run(with_trinity(port))
    print(json.dumps(found, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
