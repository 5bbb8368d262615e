"""Real coding agents edit a file in a sandbox, through tool calls that the mock server prescribes.

`cargo xtask test agents` installs the agents and runs this in a network namespace that has the
loopback interface only.
"""

import os
import socket

import numpy as np
import pytest

import rollway as rw

#: Contents of the file before and after.
BEFORE, AFTER = "print(41)\n", "print(42)\n"

WRITE = "printf 'print(42)\\n' > answer.py"
RUN = "python3 answer.py"

#: Harness, and the turns of the model: write the file, run it, end.
AGENTS = {
    "codex": (
        lambda: rw.harness.codex(os.environ["ROLLWAY_CODEX"]),
        [("exec_command", {"cmd": WRITE}), ("exec_command", {"cmd": RUN}), "The file is written."],
    ),
    "opencode": (
        lambda: rw.harness.opencode(os.environ["ROLLWAY_OPENCODE"]),
        [
            ("write", {"filePath": "answer.py", "content": AFTER}),
            ("bash", {"command": RUN, "description": "runs the program"}),
            "The file is written.",
        ],
    ),
    "mini_swe_agent": (
        lambda: rw.harness.mini_swe_agent(os.environ["ROLLWAY_MINI_SWE_AGENT"]),
        [
            ("bash", {"command": WRITE}),
            ("bash", {"command": RUN}),
            ("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}),
        ],
    ),
}


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_edits_a_file(tmp_path, name):
    assert [interface for _, interface in socket.if_nameindex()] == ["lo"]
    make, turns = AGENTS[name]
    model = rw.models.MockServer(turns=turns)
    config = rw.Config()
    config.checkpoint_root_dir = str(tmp_path)
    config.explorer.runner_per_model = 1
    config.explorer.max_retry_times = 0
    config.explorer.sandbox.folder = str(tmp_path / "leases")

    async def fix(task, model):
        async with rw.sandbox.local({"answer.py": BEFORE}) as box:
            end = await make().run(model, box, "Let answer.py print 42.", timeout=300)
            assert end.finished, (end.outcome, end.exit_code, end.stderr)
            assert await box.read_text("answer.py") == AFTER
            assert "API_KEY" not in (await box.exec(["env"])).stdout
            return {"reward": 1.0, "calls": float(end.usage["model_calls"])}

    with rw.Scheduler(config, [model]) as scheduler:
        scheduler.schedule([rw.Task(workflow=fix, raw_task={})], 1)
        (status,), experiences = scheduler.get_results(1).result()
    assert status.completed_runs == 1, status.message
    # Every call is recorded once.
    requests = model.requests
    assert {request.end for request in requests} == {"complete"}
    recorded = [one for experience in experiences for one in experience.info["message_ids"]]
    assert len(recorded) == len(set(recorded)) == len(requests) == status.metrics[0]["calls"]
    # The conversation is one experience; calls for titles are others.
    (conversation,) = [one for one in experiences if one.info["turns"] == len(turns)]
    assert all(one.info["turns"] == 1 for one in experiences if one is not conversation)
    with_tools = [request for request in requests if _offers_tools(request)]
    assert len(with_tools) == len(turns)
    _check_tokens(conversation, with_tools)


def _offers_tools(request):
    sampling = request.body.get("sampling_params", {})
    return bool(request.body.get("tools") or (sampling.get("extra_args") or {}).get("tools"))


def _check_tokens(conversation, requests):
    """Compares ids, log-probabilities and mask with what the server generated."""
    first, last = requests[0], requests[-1]
    expected = last.prompt + [token for token, _, _ in last.choices[0]]
    assert list(conversation.tokens) == expected
    begin = conversation.prompt_length
    assert begin == len(first.prompt)
    mask = np.zeros(len(expected), dtype=bool)
    logprobs = np.zeros(len(expected), dtype=np.float32)
    for request in requests:
        (choice,) = request.choices
        span = slice(len(request.prompt), len(request.prompt) + len(choice))
        assert expected[span] == [token for token, _, _ in choice]
        mask[span] = True
        logprobs[span] = [logprob for _, logprob, _ in choice]
    assert np.array_equal(np.asarray(conversation.action_mask, dtype=bool), mask[begin:])
    assert np.array_equal(np.asarray(conversation.logprobs)[mask[begin:]], logprobs[mask])
