"""Workflows, rewards and operators written for Trinity-RFT: nothing here names Rollway.

trinity_rft.py runs them with Trinity-RFT 0.6.0 itself.
"""

from dataclasses import asdict
from typing import Dict, List, Optional, Tuple

import openai
from trinity.buffer.operators import EXPERIENCE_OPERATORS, ExperienceOperator, ExperienceOperatorV1
from trinity.common.experience import Experience
from trinity.common.models.model import ModelWrapper
from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn
from trinity.common.workflows import WORKFLOWS, Task, Workflow
from trinity.common.workflows.step_wise_workflow import (
    AsyncRewardPropagationWorkflow,
    StepWiseRewardWorkflow,
)
from trinity.common.workflows.workflow import MultiTurnWorkflow, SimpleWorkflow
from trinity.utils.log import get_logger

logger = get_logger(__name__)


@WORKFLOWS.register_module("example_workflow")
class SingleTurn(Workflow):
    """Single turn: all runs are the samples of one call."""

    can_reset: bool = True
    can_repeat: bool = True

    def __init__(self, *, task: Task, model: ModelWrapper, auxiliary_models: Optional[List] = None):
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.question = task.raw_task.get("question")
        self.answer = task.raw_task.get("answer")
        self.rollout_args = task.rollout_args
        # Number of samples per call, as an attribute.
        self.repeat_times = task.rollout_args.n

    def set_repeat_times(self, repeat_times, run_id_base):
        self.repeat_times = repeat_times
        self.run_id_base = run_id_base

    def calculate_reward(self, response: str, truth: str) -> float:
        return float(len(response) % 2 == len(truth) % 2)

    def run(self) -> List[Experience]:
        responses = self.model.chat(
            [{"role": "user", "content": f"Question:\n{self.question}"}],
            n=self.repeat_times,
            temperature=self.rollout_args.temperature,
        )
        for i, response in enumerate(responses):
            reward = self.calculate_reward(response.response_text, self.answer)
            response.reward = reward
            response.metrics = {"length": len(response.response_text)}
            response.eid.run = i + self.run_id_base
        self.logger.info("%d responses", len(responses))
        return responses

    def reset(self, task: Task):
        self.question = task.raw_task.get("question")
        self.answer = task.raw_task.get("answer")
        self.rollout_args = task.rollout_args


class MultiTurn(MultiTurnWorkflow):
    """Multi turn: the conversation becomes one experience with an action mask."""

    def run(self) -> List[Experience]:
        memory = [
            {"role": "system", "content": "You walk through a house."},
            {"role": "user", "content": self.task.task_desc},
        ]
        turns = int(self.task.workflow_args.get("max_env_steps", 3))
        for turn in range(turns):
            response = self.model.chat(memory, n=1)[0]
            memory.append({"role": "assistant", "content": response.response_text})
            if turn + 1 < turns:
                memory.append({"role": "user", "content": f"You are in room {turn}."})
        reward = 1.0
        return [
            self.process_messages_to_experience(memory, reward, {"env_rounds": turns, "done": "no"})
        ]


class StepWise(StepWiseRewardWorkflow):
    """Step-wise: every step has a reward of its own."""

    def __init__(self, *, task: Task, model: ModelWrapper, auxiliary_models=None):
        super().__init__(
            task=task, model=model, auxiliary_models=auxiliary_models, use_openai_client=True
        )
        self.sampling = {
            key: value
            for key, value in asdict(task.rollout_args).items()
            if key in ("temperature", "max_tokens") and value is not None
        }

    @property
    def max_step_num(self):
        return self.task.workflow_args.get("max_step_num", 3)

    def step(self, step_num: int) -> bool:
        self.client.chat.completions.create(
            model=self.client.model_path,
            messages=[{"role": "user", "content": f"Step {step_num}"}],
            **self.sampling,
        )
        return step_num < self.max_step_num

    def reward(self, exps: list[Experience], step_num: int) -> float:
        assert len(exps) == 1
        return 0.5 * step_num


class Propagated(AsyncRewardPropagationWorkflow):
    """All steps get the reward of the run."""

    def __init__(self, *, task, model, auxiliary_models=None):
        super().__init__(
            task=task, model=model, auxiliary_models=auxiliary_models, use_openai_client=False
        )
        self.agent = model.get_openai_async_client()

    @property
    def max_step_num(self):
        return 5

    async def step_async(self, step_num: int) -> bool:
        await self.model.set_workflow_state({"step": step_num})
        await self.agent.chat.completions.create(
            model=self.agent.model_path, messages=[{"role": "user", "content": str(step_num)}]
        )
        return step_num < 1

    async def reward_async(self, exps: list[Experience]) -> float:
        return float(len(exps))


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    }
]


class ToolUse(Workflow):
    """Tool use through an OpenAI client."""

    is_async: bool = True

    async def run_async(self) -> List[Experience]:
        client = self.model.get_openai_async_client()
        messages = [{"role": "user", "content": self.task.raw_task["question"]}]
        called = await client.chat.completions.create(
            model=client.model_path, messages=messages, tools=TOOLS, tool_choice="required"
        )
        message = called.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            assert call.function.name == "add"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "3"})
        await client.chat.completions.create(
            model=client.model_path, messages=messages, tools=TOOLS, tool_choice="none"
        )
        experiences = self.model.extract_experience_from_history()
        for experience in experiences:
            experience.reward = 1.0
            experience.metrics = {"tool_calls": len(message.tool_calls)}
        return experiences


@EXPERIENCE_OPERATORS.register_module("judge_operator")
class JudgeOperator(ExperienceOperatorV1):
    """Operator with an auxiliary judge, reached through an OpenAI client."""

    def __init__(self, keep: int = 1) -> None:
        self.keep = keep

    async def process(self, exps: List[Experience]) -> Tuple[List[Experience], Dict]:
        judge: openai.AsyncOpenAI = self.auxiliary_models[0][0]
        for exp in exps:
            answer = await judge.chat.completions.create(
                model=judge.model_path,
                messages=[{"role": "user", "content": f"Judge this: {exp.response_text}"}],
                max_tokens=4,
            )
            exp.reward = float(len(answer.choices[0].message.content))
            exp.info["judge"] = judge.model_path
        return exps[: self.keep], {"judged_count": len(exps)}


@EXPERIENCE_OPERATORS.register_module("length_operator")
class LengthOperator(ExperienceOperator):
    """Operator of the older interface."""

    def process(self, exps: List[Experience]) -> Tuple[List[Experience], Dict]:
        assert all(isinstance(exp, Experience) for exp in exps)
        return exps, {"mean_tokens": sum(len(exp.tokens) for exp in exps) / len(exps)}


class EvalOnly(Workflow):
    """Eval-only: the metrics count, the experiences are not stored."""

    is_async: bool = True

    async def run_async(self) -> List[Experience]:
        assert self.task.is_eval
        (response,) = await self.model.chat_async(
            [{"role": "user", "content": self.task.task_desc}], **asdict(self.task.rollout_args)
        )
        response.reward = 1.0
        response.metrics = {"accuracy": 1.0, "truth_length": len(self.task.truth)}
        return [response]


@REWARD_FUNCTIONS.register_module("brevity_reward")
class Brevity(RewardFn):
    """Reward function with arguments."""

    def __init__(self, limit: int = 10, **kwargs) -> None:
        self.limit = limit

    def __call__(self, response: str, truth: Optional[str] = None, **kwargs) -> Dict[str, float]:
        return {"brief": float(len(response) <= self.limit), "known": 0.5 * (truth is not None)}


class Rewarded(SimpleWorkflow):
    """A subclass of a built-in workflow."""

    def run(self) -> List[Experience]:
        responses = super().run()
        for response in responses:
            response.metrics["seen"] = 1
        return responses
