"""Programs as agents: environment, classification of their ends, and stages of a run."""

import sys

import pytest
from sandbox_processes import leases

import rollway as rw

#: An agent in a few lines: one call through the environment, then an edit.
AGENT = """
import json, os, sys, urllib.request
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
for _ in range(int(sys.argv[2])):
    body = {"messages": [{"role": "user", "content": sys.argv[1]}]}
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    headers["content-type"] = "application/json"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
open("answer.txt", "w").write("42")
print("done", file=sys.stderr)
if len(sys.argv) > 3:
    exec(sys.argv[3])
"""


def agent(*arguments, calls=1):
    words = [sys.executable, "agent.py", "{prompt}", str(calls), *arguments]
    return rw.harness.command(words, files={"agent.py": AGENT})


@pytest.fixture
def config(config, tmp_path):
    config.explorer.sandbox.folder = str(tmp_path / "leases")
    return config


@pytest.fixture
def model():
    model = rw.models.MockServer(lengths=(4, 8))
    yield model
    model.stop()


def run(config, model, workflow):
    runner = rw.WorkflowRunner(config, model)
    status, experiences = runner.run_task(rw.Task(workflow=workflow, raw_task={}))
    runner.close()
    assert leases(config.explorer.sandbox.folder) == []
    return status, experiences


def test_an_agent_edits_a_file_and_its_calls_are_recorded(config, model):
    seen = {}

    async def fix(task, model):
        async with rw.sandbox.local() as box:
            seen["end"] = await agent().run(model, box, "what is it?")
            # The key is that of the agent, not of the grader.
            seen["names"] = (await box.exec(["env"])).stdout
            return float(await box.read_text("answer.txt") == "42")

    status, (experience,) = run(config, model, fix)
    end = seen["end"]
    assert status.completed_runs == 1 and experience.reward == 1.0
    assert end.finished and end.exit_code == 0 and end.stderr == "done\n"
    assert end.usage["model_calls"] == 1 and end.exhausted is None
    assert "API_KEY" not in seen["names"]
    (request,) = model.requests
    assert list(experience.tokens) == request.prompt + [token for token, _, _ in request.choices[0]]
    assert request.body["messages"][0]["content"] == "what is it?"


async def _end(agent, model, **options):
    async with rw.sandbox.local() as box:
        return await agent.run(model, box, "?", **options)


@pytest.mark.parametrize(
    ("program", "outcome", "code"),
    [
        ("sys.exit(3)", "failed", 3),
        ("import time; time.sleep(1000)", "timeout", -9),
        ("os.kill(os.getpid(), 15)", "failed", -15),
    ],
)
def test_ends_of_agents_are_classified(config, model, program, outcome, code):
    seen = []

    async def fix(task, model):
        seen.append(await _end(agent(program), model, timeout=8))
        return 0.0

    run(config, model, fix)
    assert (seen[0].outcome, seen[0].exit_code) == (outcome, code)


def test_a_used_up_budget_is_an_end_of_its_own(config, model):
    config.explorer.run_budget.model_calls = 2
    seen = []

    async def fix(task, model):
        seen.append(await _end(agent(calls=5), model))
        return 0.0

    run(config, model, fix)
    (end,) = seen
    assert (end.outcome, end.exit_code, end.exhausted) == ("budget", 0, "model_calls")
    assert "The budget of this run is exhausted" in end.stdout and len(model.requests) == 2


@pytest.mark.parametrize(
    ("harness", "kind", "message"),
    [
        (rw.harness.codex("no-such-program"), "workflow", "agent codex cannot be executed"),
        (agent("os.kill(os.getpid(), 9)"), "sandbox", "was killed, probably for lack of memory"),
    ],
)
def test_failures_of_the_infrastructure_raise(config, model, harness, kind, message):
    async def fix(task, model):
        await _end(harness, model)

    status, _ = run(config, model, fix)
    assert status.failed_runs == {kind: 1} and message in status.message, status.message


def test_an_unreachable_model_is_not_charged_to_the_task(config, model):
    config.explorer.gateway.server_wait = 0.1

    async def fix(task, handle):
        model.fail(503, 100)
        await _end(agent(), handle)

    status, _ = run(config, model, fix)
    assert status.failed_runs == {"model_unavailable": 1}, status.message


def test_a_model_without_an_address_is_refused(config):
    async def fix(task, model):
        await _end(agent(), model)

    status, _ = run(config, rw.models.Echo(), fix)
    assert "it has no address and key" in status.message


def episode(config, model, harness, **options):
    async def fix(task, model):
        return await harness.episode(model, rw.sandbox.local(), "what is it?", **options)

    return run(config, model, fix)


def test_an_episode_has_stages_and_metrics(config, model):
    status, (experience,) = episode(
        config, model, agent(), setup=["echo ready >ready"], reward="test -e ready -a -e answer.txt"
    )
    assert experience.reward == 1.0 and status.metrics[0]["agent_timeout"] == 0.0
    assert status.metrics[0]["agent_seconds"] > 0


async def graded(box, result):
    text = (await box.exec("cat answer.txt 2>/dev/null; true")).stdout
    return {"reward": 0.5, "right": float(text == "42"), "late": float(not result.finished)}


def test_the_reward_is_computed_after_a_deadline_or_a_budget(config, model):
    slow = agent("import time; time.sleep(1000)")
    status, (experience,) = episode(config, model, slow, reward=graded, agent_timeout=8)
    metrics = status.metrics[0]
    assert experience.reward == 0.5 and (metrics["right"], metrics["late"]) == (1.0, 1.0)
    assert metrics["agent_timeout"] == 1.0
    status, _ = episode(config, model, slow, reward=graded, agent_timeout=1, reward_after=[])
    assert status.failed_runs == {"timeout": 1}
    assert "the stage `agent` exceeded its deadline of 1 s" in status.message


def test_a_failed_agent_has_no_reward_unless_configured(config, model):
    status, _ = episode(config, model, agent("sys.exit(3)"), reward=graded)
    assert status.failed_runs == {"workflow": 1} and "exit code 3" in status.message
    config.explorer.stages.reward_after = ["failed"]
    status, (experience,) = episode(config, model, agent("sys.exit(3)"), reward=graded)
    assert experience.reward == 0.5 and status.metrics[0]["agent_failed"] == 1.0


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"setup": ["exit 4"], "reward": "true"}, "workflow", "set-up `exit 4` ended with exit"),
        ({"setup": ["sleep 1000"], "reward": "true", "setup_timeout": 0.3}, "timeout", "`setup`"),
        ({"reward": "sleep 1000", "reward_timeout": 0.3}, "timeout", "the stage `reward`"),
        ({"reward": ["no-such-grader"]}, "workflow", "cannot be executed"),
        ({"reward": "kill -9 $$"}, "sandbox", "was killed"),
    ],
)
def test_a_stage_that_fails_is_named_and_is_no_reward_of_0(config, model, options, kind, message):
    status, _ = episode(config, model, agent(), **options)
    assert status.failed_runs == {kind: 1} and message in status.message, status.message


def test_configuration_files_of_the_presets():
    call = rw.harness.AgentCall("do it", "my/policy", "http://127.0.0.1:1/v1", "rw-1", "/w", "/h")
    codex = rw.harness.codex("codex", ["-c", "x=1"]).agent
    assert codex.command(call)[-4:] == ["-c", "x=1", "--", "do it"]
    config = codex.files(call)["/h/.codex/config.toml"]
    assert 'wire_api = "responses"' in config and 'base_url = "http://127.0.0.1:1/v1"' in config
    assert "rw-1" not in config
    opencode = rw.harness.opencode().agent
    (config,) = opencode.files(call).values()
    assert '"rollway/my/policy"' in config and "rw-1" not in config
    words = rw.harness.command(["a", "{prompt} {model} {x}", "{root_url}"]).agent.command(call)
    assert words == ["a", "do it my/policy {x}", "http://127.0.0.1:1"]
    with pytest.raises(TypeError, match="a command is a list"):
        rw.harness.command("codex exec")


def test_the_workflow_of_job_files(config, model):
    arguments = {
        "agent": [sys.executable, "agent.py", "{prompt}", "1"],
        "files_key": "files",
        "setup": ["test -e agent.py"],
        "reward": "test -e answer.txt",
    }
    row = {"prompt": "what is it?", "files": {"agent.py": AGENT}}

    def task(**changed):
        return rw.Task(
            workflow="rollway.harness:AgentWorkflow",
            raw_task=row,
            workflow_args={**arguments, **changed},
            format_args={"prompt_key": "prompt"},
        )

    runner = rw.WorkflowRunner(config, model)
    status, (experience,) = runner.run_task(task())
    runner.close()
    assert status.completed_runs == 1, status.message
    assert experience.reward == 1.0
    check = rw.harness.AgentWorkflow.check
    check(task(agent="codex", agent_args={"program": "/opt/codex"}))
    for changed, message in [
        ({"agent": "codx"}, "one of codex, opencode, mini_swe_agent"),
        ({"reward": None}, "`reward` is a command"),
        ({"prompt": "x"}, "not prompt"),
    ]:
        with pytest.raises(rw.InvalidWorkflow, match=message):
            check(task(**changed))
