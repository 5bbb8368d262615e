"""Workflow for job files: every row is an episode of an agent in a sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollway import sandbox
from rollway.errors import InvalidWorkflow
from rollway.harness.agents import Agent, codex, command, mini_swe_agent, opencode
from rollway.harness.run import Harness
from rollway.task import Task
from rollway.workflow import Workflow

_PRESETS = {"codex": codex, "opencode": opencode, "mini_swe_agent": mini_swe_agent}

#: Keys of `workflow_args`.
_KEYS = ("agent", "agent_args", "sandbox", "files_key", "setup", "reward")


class AgentWorkflow(Workflow):
    """Runs an agent on the prompt of the row.

    Its name in a job file is `rollway.harness:AgentWorkflow`.

    `workflow_args`:

    - `agent`: `codex`, `opencode`, `mini_swe_agent`, or a command as a list.
    - `agent_args` (none): arguments of the harness, such as `program`.
    - `sandbox` (`{kind: local}`): its kind, and arguments of `rw.sandbox.create`.
    - `files_key` (none): field of the row with files, as a dictionary of texts.
    - `setup` (none): list of commands that prepare the sandbox.
    - `reward`: command whose exit code 0 is the reward 1.0.
    """

    async def run_async(self) -> Any:
        arguments = self.task.workflow_args
        options = dict(arguments.get("sandbox") or {})
        files_key = arguments.get("files_key")
        files = self.task.raw_task[files_key] if files_key else None
        box = sandbox.create(options.pop("kind", "local"), files, **options)
        harness = Harness(self._agent(self.task))
        return await harness.episode(
            self.model,
            box,
            _prompt(self.task),
            setup=arguments.get("setup") or (),
            reward=arguments["reward"],
        )

    @classmethod
    def check(cls, task: Task) -> None:
        """Raises if tasks with these arguments cannot run, independent of their rows."""
        if unknown := sorted(set(task.workflow_args) - set(_KEYS)):
            raise InvalidWorkflow(f"workflow_args: {', '.join(_KEYS)}, not {', '.join(unknown)}")
        if not isinstance(task.workflow_args.get("reward"), (str, list)):
            raise InvalidWorkflow("workflow_args: `reward` is a command: a text or a list")
        if not isinstance(task.workflow_args.get("sandbox") or {}, Mapping):
            raise InvalidWorkflow("workflow_args: `sandbox` is a dictionary with `kind`")
        cls._agent(task)

    @staticmethod
    def _agent(task: Task) -> Agent:
        name = task.workflow_args.get("agent")
        options = dict(task.workflow_args.get("agent_args") or {})
        if isinstance(name, list):
            return command(name, **options)
        if name not in _PRESETS:
            known = ", ".join(_PRESETS)
            raise InvalidWorkflow(f"workflow_args: `agent` is one of {known}, or a list: {name!r}")
        return _PRESETS[name](**options)


def _prompt(task: Task) -> str:
    asked = [one for one in task.messages or () if one.get("role") == "user"]
    if not asked:
        raise InvalidWorkflow("the task has no prompt: its row has no prompt and no messages")
    return str(asked[-1]["content"])
