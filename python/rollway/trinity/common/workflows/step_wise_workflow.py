"""Workflows that run step by step, with a reward per step or one for all steps."""

from __future__ import annotations

from typing import Any

from rollway.trinity.common.experience import Experience
from rollway.trinity.common.models.model import ModelWrapper
from rollway.trinity.common.workflows.workflow import Task, Workflow


class _StepWise(Workflow):
    def __init__(
        self,
        *,
        task: Task,
        model: ModelWrapper,
        auxiliary_models: Any = None,
        use_openai_client: bool = True,
    ) -> None:
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        if not model.enable_history:
            raise ValueError(
                f"the server of model {model.model_name} reports no token ids, which step-wise "
                "workflows need: give its kind with `explorer.rollout_model.engine_type`"
            )
        #: OpenAI client of the trained model.
        self.client: Any = None
        if use_openai_client:
            self.client = model.get_openai_client()

    @property
    def max_step_num(self) -> int:
        """Maximum number of steps."""
        raise NotImplementedError(f"{type(self).__name__} has no max_step_num")

    def _taken(self, experiences: list[Experience], step: int) -> list[Experience]:
        for experience in experiences:
            experience.eid.step = step
        return experiences


def _is_truncated(experiences: list[Experience]) -> bool:
    return any(one.truncate_status == "response_truncated" for one in experiences)


class StepWiseRewardWorkflow(_StepWise):
    """Every step has its own reward.

    Subclasses define `step(step_num)`, which returns whether to continue, `reward(exps, step_num)`
    and `max_step_num`. `self.client` is an OpenAI client of the trained model.
    """

    def run(self) -> list[Experience]:
        experiences: list[Experience] = []
        for step in range(self.max_step_num):
            goes_on = self.step(step_num=step)
            taken = self._taken(self.model.extract_experience_from_history(), step)
            reward = self.reward(taken, step_num=step)
            for one in taken:
                one.reward = reward
            experiences += taken
            if not goes_on or _is_truncated(taken):
                break
        return experiences

    def step(self, step_num: int) -> bool:
        """Performs one step; returns whether to continue."""
        raise NotImplementedError(f"{type(self).__name__} has no step()")

    def reward(self, exps: list[Experience], step_num: int) -> float:
        """Returns the reward of a step."""
        raise NotImplementedError(f"{type(self).__name__} has no reward()")


class AsyncStepWiseRewardWorkflow(StepWiseRewardWorkflow):
    """As `StepWiseRewardWorkflow`, with `step_async` and `reward_async`.

    `self.client` blocks, as in Trinity-RFT; `self.model.get_openai_async_client()` does not.
    """

    is_async = True

    async def run_async(self) -> list[Experience]:
        experiences: list[Experience] = []
        for step in range(self.max_step_num):
            goes_on = await self.step_async(step_num=step)
            found = await self.model.extract_experience_from_history_async()
            taken = self._taken(found, step)
            reward = await self.reward_async(taken, step_num=step)
            for one in taken:
                one.reward = reward
            experiences += taken
            if not goes_on or _is_truncated(taken):
                break
        return experiences

    async def step_async(self, step_num: int) -> bool:
        """Performs one step; returns whether to continue."""
        raise NotImplementedError(f"{type(self).__name__} has no step_async()")

    async def reward_async(self, exps: list[Experience], step_num: int) -> float:
        """Returns the reward of a step."""
        raise NotImplementedError(f"{type(self).__name__} has no reward_async()")


def _propagated(experiences: list[Experience], reward: float, steps: int) -> list[Experience]:
    for one in experiences:
        one.reward = reward
        one.metrics = {**(one.metrics or {}), "actual_env_steps": float(steps)}
    return experiences


class RewardPropagationWorkflow(_StepWise):
    """All steps get the reward of the run.

    Subclasses define `step(step_num)`, which returns whether to continue, `reward(exps)` and
    `max_step_num`.
    """

    def run(self) -> list[Experience]:
        experiences: list[Experience] = []
        steps = 0
        for step in range(self.max_step_num):
            goes_on = self.step(step_num=step)
            taken = self._taken(self.model.extract_experience_from_history(), step)
            experiences += taken
            steps = step + 1
            if not goes_on or _is_truncated(taken):
                break
        return _propagated(experiences, self.reward(experiences), steps)

    def step(self, step_num: int) -> bool:
        """Performs one step; returns whether to continue."""
        raise NotImplementedError(f"{type(self).__name__} has no step()")

    def reward(self, exps: list[Experience]) -> float:
        """Returns the reward of the run."""
        raise NotImplementedError(f"{type(self).__name__} has no reward()")


class AsyncRewardPropagationWorkflow(RewardPropagationWorkflow):
    """As `RewardPropagationWorkflow`, with `step_async` and `reward_async`."""

    is_async = True

    async def run_async(self) -> list[Experience]:
        experiences: list[Experience] = []
        steps = 0
        for step in range(self.max_step_num):
            goes_on = await self.step_async(step_num=step)
            found = await self.model.extract_experience_from_history_async()
            taken = self._taken(found, step)
            experiences += taken
            steps = step + 1
            if not goes_on or _is_truncated(taken):
                break
        return _propagated(experiences, await self.reward_async(experiences), steps)

    async def step_async(self, step_num: int) -> bool:
        """Performs one step; returns whether to continue."""
        raise NotImplementedError(f"{type(self).__name__} has no step_async()")

    async def reward_async(self, exps: list[Experience]) -> float:
        """Returns the reward of the run."""
        raise NotImplementedError(f"{type(self).__name__} has no reward_async()")
