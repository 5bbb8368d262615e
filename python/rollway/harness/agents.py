"""Agents that are programs: their command, environment and configuration files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollway.errors import Error
from rollway.model_types import RunHandle
from rollway.sandbox import Sandbox

#: Name of the provider in configuration files. Not `openai`: some agents treat that one specially.
PROVIDER = "rollway"

#: Variable with the run key, to which configuration files refer.
KEY_VARIABLE = "ROLLWAY_API_KEY"


@dataclass(frozen=True)
class AgentCall:
    """Input of an agent: the prompt, the model and the folders of its sandbox."""

    prompt: str
    model: str
    #: Base URL of the gateway with `/v1`.
    base_url: str
    api_key: str
    folder: str
    home: str

    @property
    def root_url(self) -> str:
        """Base URL without `/v1`, for clients of Anthropic."""
        return self.base_url.removesuffix("/v1")

    @classmethod
    def of(cls, model: RunHandle, sandbox: Sandbox, prompt: str) -> AgentCall:
        """Describes a run; raises if agents cannot reach its model."""
        if not model.base_url or not model.api_key:
            raise Error(
                f"agents cannot reach the model {model.name}: it has no address and key. Use a "
                "model behind the gateway, such as rw.models.OpenAI"
            )
        name = model.name or "policy"
        return cls(prompt, name, model.base_url, model.api_key, sandbox.folder, sandbox.home)


def gateway_environment(call: AgentCall) -> dict[str, str]:
    """Returns the address and the key of the gateway, as clients of the usual APIs read them."""
    return {
        KEY_VARIABLE: call.api_key,
        "ROLLWAY_BASE_URL": call.base_url,
        "OPENAI_API_KEY": call.api_key,
        "OPENAI_BASE_URL": call.base_url,
        "OPENAI_API_BASE": call.base_url,
        "ANTHROPIC_API_KEY": call.api_key,
        "ANTHROPIC_BASE_URL": call.root_url,
        "ANTHROPIC_MODEL": call.model,
    }


@dataclass(frozen=True)
class Agent:
    """A program as an agent. Functions get the `AgentCall` of the run."""

    name: str
    command: Callable[[AgentCall], Sequence[str]]
    env: Callable[[AgentCall], Mapping[str, str]] = lambda _: {}
    #: Files by path; relative paths begin in the working folder.
    files: Callable[[AgentCall], Mapping[str, str]] = lambda _: {}


_PLACEHOLDERS = re.compile(r"\{(prompt|model|base_url|root_url|api_key|folder|home)\}")


def filled(text: str, call: AgentCall) -> str:
    """Replaces `{prompt}`, `{model}`, `{base_url}`, …; other braces stay."""
    return _PLACEHOLDERS.sub(lambda match: getattr(call, match[1]), text)


def command(
    words: Sequence[str],
    env: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
) -> Agent:
    """Returns an agent of any command; placeholders are replaced in all texts."""
    if isinstance(words, str) or not words:
        raise TypeError(f"a command is a list of the program and its arguments, not {words!r}")

    def replaced(given: Mapping[str, str] | None, call: AgentCall) -> dict[str, str]:
        return {name: filled(text, call) for name, text in (given or {}).items()}

    return Agent(
        name=words[0].rpartition("/")[2],
        command=lambda call: [filled(word, call) for word in words],
        env=lambda call: replaced(env, call),
        files=lambda call: replaced(files, call),
    )


def codex(program: str = "codex", arguments: Sequence[str] = ()) -> Agent:
    """Returns OpenAI's Codex CLI, which speaks the Responses API.

    Its own sandbox and questions are switched off: the sandbox of the run applies.
    """
    fixed = ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return Agent(
        name="codex",
        command=lambda call: [program, *fixed, *arguments, "--", call.prompt],
        env=lambda call: {"CODEX_HOME": f"{call.home}/.codex"},
        files=lambda call: {f"{call.home}/.codex/config.toml": _codex_config(call)},
    )


def _codex_config(call: AgentCall) -> str:
    # A JSON string is a basic string of TOML.
    model, url = json.dumps(call.model), json.dumps(call.base_url)
    return f"""model = {model}
model_provider = "{PROVIDER}"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.{PROVIDER}]
name = "{PROVIDER}"
base_url = {url}
wire_api = "responses"
env_key = "{KEY_VARIABLE}"
"""


def opencode(program: str = "opencode", arguments: Sequence[str] = ()) -> Agent:
    """Returns opencode, which speaks the Chat API; all of its tools are permitted."""
    config_path = ".config/opencode/opencode.json"
    return Agent(
        name="opencode",
        command=lambda call: [
            *(program, "run", "--model", f"{PROVIDER}/{call.model}"),
            *(*arguments, "--", call.prompt),
        ],
        env=lambda call: {
            "OPENCODE_DISABLE_AUTOUPDATE": "true",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "true",
            "OPENCODE_DISABLE_MODELS_FETCH": "true",
            "OPENCODE_CONFIG": f"{call.home}/{config_path}",
        },
        files=lambda call: {f"{call.home}/{config_path}": json.dumps(_opencode_config(call))},
    )


def _opencode_config(call: AgentCall) -> dict[str, Any]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": PROVIDER,
        "options": {"baseURL": call.base_url, "apiKey": f"{{env:{KEY_VARIABLE}}}"},
        "models": {call.model: {"name": call.model, "tool_call": True}},
    }
    return {
        "$schema": "https://opencode.ai/config.json",
        "provider": {PROVIDER: provider},
        "model": f"{PROVIDER}/{call.model}",
        "small_model": f"{PROVIDER}/{call.model}",
        "permission": {"edit": "allow", "bash": "allow", "webfetch": "deny"},
        "autoupdate": False,
        "share": "disabled",
    }


def mini_swe_agent(program: str = "mini", arguments: Sequence[str] = ()) -> Agent:
    """Returns mini-swe-agent, which speaks the Chat API through litellm."""
    return Agent(
        name="mini_swe_agent",
        command=lambda call: [
            *(program, "--yolo", "--exit-immediately", "--cost-limit", "0"),
            *("--model", f"openai/{call.model}", "--output", f"{call.home}/trajectory.json"),
            *(*arguments, "--task", call.prompt),
        ],
        env=lambda call: {
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_GLOBAL_CONFIG_DIR": f"{call.home}/.config/mini-swe-agent",
            "MSWEA_SILENT_STARTUP": "true",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
    )
