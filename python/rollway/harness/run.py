"""Runs of agents in sandboxes: the stages of a run, and what the end of an agent means."""

from __future__ import annotations

import inspect
import logging
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rollway import stages
from rollway.errors import AgentFailed, ModelUnavailable, SandboxError, SetupFailed, StageTimeout
from rollway.harness.agents import Agent, AgentCall, gateway_environment
from rollway.model_types import RunHandle
from rollway.run_settings import REWARD_AFTER, StageSettings
from rollway.sandbox import ExecResult, Sandbox
from rollway.sandbox.base import Command

logger = logging.getLogger("rollway.harness")

#: End of an agent: by itself with exit code 0; at its deadline; after a budget was used up; with
#: another exit code.
Outcome = Literal["finished", "timeout", "budget", "failed"]

#: Exit codes of shells for a program that cannot be executed, or does not exist.
_NOT_EXECUTED = (126, 127)

#: Exit codes after SIGKILL: of the process, and of a shell that waited for it.
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)

#: Characters of the outputs in an error message.
_MESSAGE_CHARS = 2000


@dataclass(frozen=True)
class AgentResult:
    """End of an agent."""

    outcome: Outcome
    exit_code: int
    stdout: str
    stderr: str
    #: Bytes that were omitted from the outputs.
    dropped: int
    #: Seconds that the agent took.
    duration: float
    #: Model usage of the run: `model_calls`, `completion_tokens`, …
    usage: Mapping[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """True if the agent ended by itself, without an error and within its budget."""
        return self.outcome == "finished"

    @property
    def exhausted(self) -> str | None:
        """Key of the budget that was used up."""
        return self.usage.get("exhausted")


#: Reward of a run: a command whose exit code 0 means 1.0 and others 0.0, or a function of the
#: sandbox and the result that returns a number or a dictionary with `reward`.
Reward = Command | Callable[[Sandbox, AgentResult], Any]


@dataclass(frozen=True)
class Harness:
    """An agent that can be run in sandboxes."""

    agent: Agent

    async def run(
        self,
        model: RunHandle,
        sandbox: Sandbox,
        prompt: str,
        *,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        max_output_bytes: int | None = None,
    ) -> AgentResult:
        """Runs the agent in a started sandbox; the gateway records its model calls.

        The address and the key of the model are in the environment of the agent only, not in that
        of later commands. `timeout`: seconds, by default `explorer.stages.agent_timeout`. Raises
        `SandboxError` and `ModelUnavailable` for failures of the infrastructure, and `SetupFailed`
        if the program does not exist.
        """
        settings = _settings()
        call = AgentCall.of(model, sandbox, prompt)
        with stages.stage("agent"):
            for path, text in self.agent.files(call).items():
                await sandbox.write_file(path, text)
            ended = await sandbox.exec(
                list(self.agent.command(call)),
                env={**gateway_environment(call), **self.agent.env(call), **(env or {})},
                timeout=settings.agent_timeout if timeout is None else timeout,
                max_output_bytes=max_output_bytes,
            )
            usage = await model.usage_async()
        return self._classified(ended, usage)

    def _classified(self, ended: ExecResult, usage: Mapping[str, Any]) -> AgentResult:
        outcome: Outcome = "finished"
        if ended.timed_out:
            outcome = "timeout"
        elif usage.get("exhausted"):
            outcome = "budget"
        elif ended.exit_code != 0:
            _raise_if_not_executed(ended, f"the agent {self.agent.name}")
            if usage.get("unavailable"):
                raise ModelUnavailable(
                    f"the agent {self.agent.name} ended with exit code {ended.exit_code} after the "
                    f"model did not answer: {_tail(ended)}"
                )
            outcome = "failed"
        return AgentResult(
            outcome=outcome,
            exit_code=ended.exit_code,
            stdout=ended.stdout,
            stderr=ended.stderr,
            dropped=ended.stdout_dropped + ended.stderr_dropped,
            duration=ended.duration,
            usage=usage,
        )

    async def episode(
        self,
        model: RunHandle,
        sandbox: Sandbox,
        prompt: str,
        *,
        reward: Reward,
        setup: Sequence[Command] = (),
        env: Mapping[str, str] | None = None,
        setup_timeout: float | None = None,
        agent_timeout: float | None = None,
        reward_timeout: float | None = None,
        teardown_timeout: float | None = None,
        reward_after: Sequence[str] | None = None,
    ) -> dict[str, float]:
        """Performs a whole run in stages: set-up, agent, reward, teardown.

        Starts the sandbox, executes the commands of `setup`, runs the agent, computes the reward,
        and ends the sandbox in any case. Deadlines are those of `explorer.stages` unless given;
        `StageTimeout` names the stage. `reward_after` lists the ends of the agent (`timeout`,
        `budget`, `failed`) after which the reward is computed nevertheless.
        Returns the reward with metrics, as a workflow does.
        """
        settings = _settings()
        after = settings.reward_after if reward_after is None else reward_after
        if unknown := set(after) - set(REWARD_AFTER):
            raise ValueError(f"reward_after: {', '.join(REWARD_AFTER)}, not {sorted(unknown)}")
        try:
            async with stages.stage("setup", setup_timeout or settings.setup_timeout):
                if sandbox.id is None:
                    await sandbox.start()
                for command in setup:
                    await _set_up(sandbox, command)
            limit = agent_timeout or settings.agent_timeout
            result = await self.run(model, sandbox, prompt, timeout=limit, env=env)
            if not result.finished and result.outcome not in after:
                raise _agent_error(self.agent.name, result, limit)
            async with stages.stage("reward", reward_timeout or settings.reward_timeout):
                rewards = await _reward(sandbox, result, reward)
        finally:
            await _tear_down(sandbox, teardown_timeout or settings.teardown_timeout)
        return {**_metrics(result), **rewards}


def _settings() -> StageSettings:
    run = stages.current()
    return StageSettings() if run is None else run.settings.stages


async def _set_up(sandbox: Sandbox, command: Command) -> None:
    ended = await sandbox.exec(command)
    if not ended.ok:
        _raise_if_killed(ended, "set-up")
        raise SetupFailed(
            f"set-up `{_shown(command)}` ended with exit code {ended.exit_code}: {_tail(ended)}",
            exit_code=ended.exit_code,
        )


async def _reward(sandbox: Sandbox, result: AgentResult, reward: Reward) -> dict[str, float]:
    if isinstance(reward, (str, Sequence)):
        ended = await sandbox.exec(reward)
        # A grader that did not run says nothing about the agent.
        _raise_if_not_executed(ended, f"the reward `{_shown(reward)}`")
        return {"reward": float(ended.ok)}
    value = reward(sandbox, result)
    value = await value if inspect.isawaitable(value) else value
    return dict(value) if isinstance(value, Mapping) else {"reward": float(value)}


async def _tear_down(sandbox: Sandbox, timeout: float | None) -> None:
    began = time.monotonic()
    try:
        async with stages.stage("teardown", timeout):
            await sandbox.close()
    except StageTimeout as error:
        # The run keeps its result: the reaper ends the sandbox.
        seconds = time.monotonic() - began
        logger.warning("sandbox %s: %s, after %.1f s", sandbox.id, error, seconds)


def _agent_error(name: str, result: AgentResult, limit: float | None) -> Exception:
    if result.outcome == "timeout":
        seconds = result.duration if limit is None else limit
        return StageTimeout(
            f"the stage `agent` exceeded its deadline of {seconds:g} s ({name})",
            stage="agent",
            seconds=seconds,
        )
    cause = f"used up the budget {result.exhausted}"
    if result.outcome == "failed":
        cause = f"ended with exit code {result.exit_code}"
    text = f"the agent {name} {cause}: {_tail(result)}"
    return AgentFailed(text, outcome=result.outcome, exit_code=result.exit_code)


def _raise_if_not_executed(ended: ExecResult, what: str) -> None:
    if ended.timed_out:
        return
    if ended.exit_code in _NOT_EXECUTED:
        raise SetupFailed(
            f"{what} cannot be executed (exit code {ended.exit_code}): {_tail(ended)}",
            exit_code=ended.exit_code,
        )
    _raise_if_killed(ended, what)


def _raise_if_killed(ended: ExecResult, what: str) -> None:
    if ended.exit_code in _KILLED and not ended.timed_out:
        raise SandboxError(f"{what} was killed, probably for lack of memory: {_tail(ended)}")


def _metrics(result: AgentResult) -> dict[str, float]:
    ends = {f"agent_{name}": float(result.outcome == name) for name in REWARD_AFTER}
    return {**ends, "agent_seconds": result.duration}


def _tail(ended: ExecResult | AgentResult) -> str:
    text = (ended.stderr.strip() or ended.stdout.strip()) or "no output"
    return text[-_MESSAGE_CHARS:]


def _shown(command: Command) -> str:
    return command if isinstance(command, str) else " ".join(command)
