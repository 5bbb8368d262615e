"""A workflow for releases of Trinity-RFT after 0.6.0: nothing here names Rollway."""

from typing import List

import openai
from trinity.common.models.model import ModelWrapper
from trinity.common.workflows import WORKFLOWS, Task
from trinity.common.workflows.workflow import Metrics, WorkflowWithRecording


@WORKFLOWS.register_module("recording_workflow")
class Recording(WorkflowWithRecording):
    """A workflow whose model calls are recorded, with an auxiliary judge."""

    can_reset: bool = True

    def __init__(self, *, task: Task, model: ModelWrapper, auxiliary_models: List = None):
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.question = task.raw_task.get("question")
        self.client = openai.AsyncOpenAI(base_url=self.base_url, api_key=self.api_key)
        self.judge = self.auxiliary_models[0]
        self.judge_client = openai.AsyncOpenAI(
            base_url=self.judge.base_url, api_key=self.judge.api_key
        )

    async def run_async(self) -> Metrics:
        answer = await self.client.chat.completions.create(
            model=self.model_name,
            messages=[{"role": "user", "content": self.question}],
            temperature=self.task.rollout_args.temperature,
        )
        text = answer.choices[0].message.content
        judged = await self.judge_client.chat.completions.create(
            model=self.judge.model_name, messages=[{"role": "user", "content": text}]
        )
        reward = float(len(judged.choices[0].message.content) > 0)
        await self.update_reward(reward, info={"source": "llm_as_a_judge"})
        return {"recording/reward": reward}

    def reset(self, task: Task):
        self.task = task
        self.model.set_api_key(task.api_key)
        self.client.api_key = task.api_key
        self.judge_client.api_key = task.api_key
        self.question = task.raw_task.get("question")
