"""Programs as agents of workflows, in sandboxes, with the gateway as their model:

@rw.workflow
async def fix(task, model):
    async with rw.sandbox.local(files=task.raw_task["files"]) as box:
        end = await rw.harness.codex().run(model, box, task.raw_task["prompt"], timeout=900)
        test = await box.exec("python3 -m pytest -q", timeout=120)
    return float(end.finished and test.ok)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rollway.harness import agents
from rollway.harness.agents import Agent, AgentCall
from rollway.harness.run import AgentResult, Harness
from rollway.harness.workflow import AgentWorkflow

__all__ = [
    "Agent",
    "AgentCall",
    "AgentResult",
    "AgentWorkflow",
    "Harness",
    "codex",
    "command",
    "mini_swe_agent",
    "opencode",
]


def command(
    words: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
) -> Harness:
    """Returns a harness of any program.

    In the command, `env` and `files`, the placeholders `{prompt}`, `{model}`, `{base_url}`,
    `{root_url}`, `{api_key}`, `{folder}` and `{home}` are replaced. The environment has the address
    and the key of the gateway under the usual names, such as `OPENAI_BASE_URL`.
    """
    return Harness(agents.command(words, env, files))


def codex(program: str = "codex", arguments: Sequence[str] = ()) -> Harness:
    """Returns a harness of OpenAI's Codex CLI. `arguments` come before the prompt."""
    return Harness(agents.codex(program, arguments))


def opencode(program: str = "opencode", arguments: Sequence[str] = ()) -> Harness:
    """Returns a harness of opencode. `arguments` come before the prompt."""
    return Harness(agents.opencode(program, arguments))


def mini_swe_agent(program: str = "mini", arguments: Sequence[str] = ()) -> Harness:
    """Returns a harness of mini-swe-agent. `arguments` come before the task."""
    return Harness(agents.mini_swe_agent(program, arguments))
