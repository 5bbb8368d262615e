"""A coding agent edits a file in a sandbox; its model calls become an experience.

The mock server prescribes the tool calls, so that no GPU is needed:

    npm install -g @openai/codex
    python examples/coding_agent.py codex
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import rollway as rw

COMMAND = "printf 'print(42)\\n' > answer.py"

#: Texts and tool calls, as the mock server returns them.
Turns = Sequence["str | tuple[str, Mapping[str, Any]]"]

#: Harness, and the turns of the mock server with the tools of the agent.
AGENTS: dict[str, tuple[rw.harness.Harness, Turns]] = {
    "codex": (rw.harness.codex(), [("exec_command", {"cmd": COMMAND}), "Done."]),
    "opencode": (
        rw.harness.opencode(),
        [("bash", {"command": COMMAND, "description": "write"}), "Done."],
    ),
    "mini_swe_agent": (
        rw.harness.mini_swe_agent(),
        [
            ("bash", {"command": COMMAND}),
            ("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}),
        ],
    ),
}


@rw.workflow
async def fix(task: rw.Task, model: rw.Model) -> dict[str, float]:
    harness, _ = AGENTS[task.raw_task["agent"]]
    return await harness.episode(
        model,
        rw.sandbox.local(files={"answer.py": "print(41)\n"}),
        "Let answer.py print 42.",
        reward='test "$(python3 answer.py)" = 42',
        agent_timeout=300,
    )


def main() -> None:
    """Runs the agent of the command line once."""
    name = sys.argv[1] if len(sys.argv) > 1 else "codex"
    if name not in AGENTS:
        sys.exit(f"usage: python examples/coding_agent.py [{'|'.join(AGENTS)}]")
    model = rw.models.MockServer(turns=AGENTS[name][1])
    with rw.Scheduler(rw.Config(), [model]) as scheduler:
        scheduler.schedule([rw.Task(workflow=fix, raw_task={"agent": name})], batch_id=1)
        (status,), experiences = scheduler.get_results(1).result()
    print(status.message or f"reward {status.metrics[0]['reward']}")
    for experience in experiences:
        print(f"{experience.info['turns']} turns, {len(experience.tokens)} tokens")


if __name__ == "__main__":
    main()
