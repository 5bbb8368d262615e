"""Clients and agent frameworks from PyPI and npm against the gateway.

Every script of `scripts/` prints how many calls it made. All of them must be recorded, each once,
with the texts that the client got.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from servers import Gateway, Llama

SCRIPTS = Path(__file__).parent / "scripts"

#: Environments below `target/clients`, and the scripts that run in them.
CLIENTS = [
    ("agents", "agents_sdk"),
    ("agents", "pydantic_agent"),
    ("agents", "openai_api"),
    ("agents", "anthropic_api"),
    ("litellm", "litellm_calls"),
    ("litellm", "mini_swe_agent"),
    ("langchain", "langgraph_agent"),
    ("langchain", "openai_api"),
]

# Tokens of the tiny model are bytes after five marks; llama-server omits tokens of characters of
# several bytes, and such responses are refused.
NO_LONG_CHARACTERS = {"logit_bias": {str(5 + byte): -100 for byte in range(128, 256)}}


@pytest.fixture(scope="module", params=["mock", "llama"])
def gateway(request):
    if request.param == "mock":
        gateway = Gateway("--runs", "32", "vllm=simulated")
        gateway.has_tools = True
        yield gateway
        gateway.close()
        return
    server = Llama()
    sampling = json.dumps(NO_LONG_CHARACTERS)
    gateway = Gateway("--runs", "32", "--sampling", sampling, f"llama_cpp={server.url}")
    gateway.has_tools = False
    yield gateway
    gateway.close()
    server.close()


def run(gateway, key, command, **environment):
    """Runs a script, and returns its report."""
    environment = {
        **os.environ,
        **environment,
        "OPENAI_BASE_URL": gateway.base_url,
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": gateway.url,
        "ANTHROPIC_API_KEY": key,
        "SERVER_HAS_TOOLS": "1" if gateway.has_tools else "0",
    }
    # Nothing but the gateway can be reached.
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        environment[name] = "http://127.0.0.1:9"
    environment["NO_PROXY"] = environment["no_proxy"] = "127.0.0.1,localhost"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def check(experiences, report):
    """Checks that every call was recorded once, with aligned tokens."""
    turns = sum(int(experience.metrics["turns"]) for experience in experiences)
    assert turns == report["calls"]
    if report["experiences"] is not None:
        assert len(experiences) == report["experiences"]
    for experience in experiences:
        actions = len(experience.tokens) - experience.prompt_length
        assert actions == len(experience.logprobs) == len(experience.action_mask) > 0
        assert experience.action_mask.any()
    recorded = [experience.response_text or "" for experience in experiences]
    for text in report["texts"]:
        assert any(text.strip() == one.strip() for one in recorded), (text, recorded)


@pytest.mark.parametrize(("environment", "script"), CLIENTS)
def test_every_call_is_recorded_once(gateway, environment, script):
    python = Path(os.environ["ROLLWAY_CLIENTS"]) / environment / "bin" / "python"
    key = gateway.key()
    report = run(gateway, key, [str(python), str(SCRIPTS / f"{script}.py")])
    check(gateway.experiences(key), report)


@pytest.mark.parametrize("script", ["openai_api.cjs", "anthropic_api.cjs"])
def test_every_call_from_node_is_recorded_once(gateway, script):
    modules = os.environ["ROLLWAY_NODE_MODULES"]
    key = gateway.key()
    command = [os.environ.get("ROLLWAY_NODE", "node"), str(SCRIPTS / script)]
    report = run(gateway, key, command, NODE_PATH=modules)
    check(gateway.experiences(key), report)
