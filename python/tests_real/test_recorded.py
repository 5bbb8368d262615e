"""Replies of a real vLLM to the requests that the gateway sends, recorded for the mock server.

The mock server is compared with the recording in `crates/mock-server/tests`, in every test run.
"""

from __future__ import annotations

import json
import os
import pathlib

import pytest

FILE = pathlib.Path(__file__).parents[2] / "crates/mock-server/tests/mock_server/vllm_recorded.json"

CHAT = {"model": "MODEL", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
IDS = {"return_token_ids": True, "logprobs": True, "top_logprobs": 0}
RELOAD = {"method": "reload_weights", "kwargs": {"weights_path": "WEIGHTS"}}

#: Method, path and body. MODEL and WEIGHTS stand for the model's name and a folder of weights.
REQUESTS = [
    ("GET", "/health", None),
    ("GET", "/version", None),
    ("GET", "/v1/models", None),
    ("GET", "/weight_info", None),
    ("GET", "/is_paused", None),
    ("GET", "/load", None),
    ("GET", "/get_world_size", None),
    ("OPTIONS", "/pause", None),
    ("OPTIONS", "/collective_rpc", None),
    ("OPTIONS", "/no_such_endpoint", None),
    ("GET", "/no_such_endpoint", None),
    ("POST", "/tokenize", {"model": "MODEL", "prompt": "hi"}),
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/v1/chat/completions", CHAT | IDS),
    ("POST", "/v1/completions", {"model": "MODEL", "prompt": "hi", "max_tokens": 4}),
    (
        "POST",
        "/v1/completions",
        {"model": "MODEL", "prompt": "hi", "max_tokens": 4, "logprobs": 0}
        | {"return_token_ids": True},
    ),
    ("POST", "/v1/chat/completions", CHAT | {"model": "another"}),
    ("POST", "/pause?mode=keep", {}),
    ("GET", "/is_paused", None),
    ("GET", "/is_sleeping", None),
    ("POST", "/pause?mode=keep", {}),
    ("POST", "/reset_prefix_cache?reset_running_requests=true", {}),
    (
        "POST",
        "/collective_rpc",
        {"method": "reload_weights", "kwargs": {"weights_path": "/no/such/folder-1"}},
    ),
    ("GET", "/is_paused", None),
    ("GET", "/weight_info", None),
    ("POST", "/collective_rpc", RELOAD),
    ("POST", "/update_weight_version", {"new_version": "7"}),
    ("GET", "/weight_info", None),
    ("POST", "/resume", {}),
    ("GET", "/is_paused", None),
    ("POST", "/resume", {}),
    ("POST", "/pause?mode=abort", {}),
    ("POST", "/resume", {}),
    ("POST", "/pause?mode=other", {}),
    ("POST", "/update_weight_version", {}),
    ("POST", "/collective_rpc", {}),
    ("POST", "/collective_rpc", {"method": "no_such_method"}),
    ("POST", "/abort_requests", {"request_ids": ["unknown"]}),
    ("POST", "/abort_requests", {}),
    ("POST", "/init_weight_transfer_engine", {}),
    ("POST", "/update_weights", {}),
    ("POST", "/sleep?level=1", None),
    ("GET", "/is_sleeping", None),
    ("GET", "/is_paused", None),
    ("POST", "/resume", {}),
    ("GET", "/is_paused", None),
    ("GET", "/is_sleeping", None),
    ("POST", "/wake_up", None),
    ("GET", "/is_sleeping", None),
    ("GET", "/is_paused", None),
]


#: Endpoints whose replies are compared with their values, if they succeed.
EXACT = {
    "/abort_requests",
    "/collective_rpc",
    "/get_world_size",
    "/is_paused",
    "/is_sleeping",
    "/load",
    "/pause",
    "/reset_prefix_cache",
    "/resume",
    "/sleep",
    "/update_weight_version",
    "/version",
    "/wake_up",
    "/weight_info",
}


def shape(value: object) -> object:
    """Returns the types of a JSON value: those of all fields, and of the first element of lists."""
    if isinstance(value, dict):
        fields = {name: shape(field) for name, field in sorted(value.items())}
        # Its names are tokens.
        return fields | ({"top_logprobs": "list"} if "top_logprobs" in fields else {})
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return {bool: "bool", int: "number", float: "number", str: "string"}.get(type(value), "null")


def filled(value: object, model: str, weights: str) -> object:
    """Replaces the placeholders of a request."""
    text = json.dumps(value).replace("MODEL", model).replace("WEIGHTS", weights)
    return json.loads(text)


@pytest.mark.capability("replies as recorded for the mock server")
def test_replies_are_as_recorded(vllm, random_model):
    recorded = []
    for method, path, body in REQUESTS:
        sent = None if body is None else filled(body, "tiny", str(random_model))
        status, reply = vllm.request(method, path, sent)
        entry = {"method": method, "path": path, "body": body, "status": status}
        is_exact = status == 200 and path.split("?")[0] in EXACT
        is_json = isinstance(reply, dict | list)
        shown = reply if is_exact else shape(reply) if is_json else "text"
        recorded.append(entry | {"is_exact": is_exact, "reply": shown})
    content = {"version": vllm.get("/version")["version"], "requests": recorded}
    if os.environ.get("ROLLWAY_RECORD"):
        lines = ",\n  ".join(json.dumps(entry) for entry in recorded)
        version = json.dumps(content["version"])
        FILE.write_text(f'{{"version": {version}, "requests": [\n  {lines}\n]}}\n')
    assert json.loads(FILE.read_text()) == content
