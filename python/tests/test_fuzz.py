"""The HTTP surface under fire: requests made from its own description, valid and not.

No request causes an internal error, and every request needs a key.
"""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from servers import Gateway

# The servers of module fixtures start once.
pytestmark = pytest.mark.xdist_group("fuzz")

# What would make the gateway call addresses that were made up, or take away the servers of all
# requests after it: these have tests of their own below.
CHANGING = [("/rollway/v1/models", "post"), ("/rollway/v1/models/{id}", "delete")]

# An update that was made up may leave the model broken, so it comes last.
UPDATE = "/rollway/v1/models/update"
OF_RUNS = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/rollway/v1/run/")


@pytest.fixture(scope="module")
def gateway():
    gateway = Gateway("--runs", "8", "vllm=simulated", "openai=simulated")
    yield gateway
    gateway.close()


def fetch(gateway, method, path, key=None, body=None):
    """Returns the status and the text of an answer, whatever it is."""
    headers = {"content-type": "application/json"}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    request = urllib.request.Request(gateway.url + path, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def description(gateway):
    status, text = fetch(gateway, "GET", "/openapi.json", gateway.admin_key)
    assert status == 200
    return json.loads(text)


def is_well(gateway):
    body = {"messages": [{"role": "user", "content": "still there?"}], "max_tokens": 4}
    text = json.dumps(body).encode()
    status, answer = fetch(gateway, "POST", "/v1/chat/completions", gateway.key(), text)
    return status == 200 and json.loads(answer)["usage"]["completion_tokens"] == 4


def fuzz(gateway, folder, key, chosen):
    """Sends what the descriptions of the chosen paths make."""
    schema = description(gateway)
    for path, method in CHANGING:
        assert schema["paths"][path].pop(method), f"{method} {path} is not described"
    schema["paths"] = {
        path: methods for path, methods in schema["paths"].items() if methods and chosen(path)
    }
    assert schema["paths"]
    file = folder / "openapi.json"
    file.write_text(json.dumps(schema))
    run = subprocess.run(
        [str(Path(sys.executable).with_name("schemathesis")), "run", str(file)]
        + ["--url", gateway.url, "--header", f"Authorization: Bearer {key}", "--no-color"]
        + ["--checks", "not_a_server_error,content_type_conformance"]
        + ["--phases", "examples,coverage,fuzzing", "--max-examples", "20", "--mode", "all"]
        + ["--request-timeout", "50", "--generation-deterministic"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]


def test_calls_that_the_description_makes(gateway, tmp_path):
    fuzz(gateway, tmp_path, gateway.key(), lambda path: path.startswith(OF_RUNS))
    assert is_well(gateway)


def test_questions_that_the_description_makes(gateway, tmp_path):
    def chosen(path):
        return not path.startswith(OF_RUNS) and path != UPDATE

    fuzz(gateway, tmp_path, gateway.admin_key, chosen)
    assert is_well(gateway)


def test_updates_that_the_description_makes(tmp_path):
    gateway = Gateway("vllm=simulated")
    try:
        fuzz(gateway, tmp_path, gateway.admin_key, lambda path: path == UPDATE)
        assert fetch(gateway, "GET", "/rollway/v1/models", gateway.admin_key)[0] == 200
    finally:
        gateway.close()


def test_every_endpoint_needs_a_key(gateway):
    schema = description(gateway)
    request_count = 0
    for path, methods in schema["paths"].items():
        for method in methods:
            if path == "/health":
                continue
            place = path.replace("{id}", "0")
            keys = [None, "", "rw-", "rw-0-0-00", gateway.key()[:-1], gateway.key() + "0", "é"]
            for key in keys:
                status, text = fetch(gateway, method.upper(), place, encoded(key), b"{}")
                assert status == 401, (method, path, key, status)
                assert json.loads(text)["error"]["type"] == "authentication_error"
                request_count += 1
    assert request_count >= 7 * 8
    assert fetch(gateway, "GET", "/no/such/place")[0] == 401
    assert fetch(gateway, "GET", "/health")[0] == 200


def encoded(key):
    """Headers are Latin-1; what is not ASCII arrives as bytes that no key has."""
    return None if key is None else key.encode().decode("latin-1")


def test_a_run_gets_nothing_that_is_not_its_own(gateway):
    key = gateway.key()
    for method, path in [
        ("GET", "/metrics"),
        ("GET", "/rollway/v1/models"),
        ("POST", "/rollway/v1/models"),
        ("POST", "/rollway/v1/models/update"),
        ("DELETE", "/rollway/v1/models/0"),
        ("GET", "/openapi.json"),
    ]:
        status, _ = fetch(gateway, method, path, key, b"{}")
        assert status == 403, (method, path, status)


# No server listens at port 9.
NOWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        json.dumps({"url": 1}).encode(),
        json.dumps({"model": "m", "engine": "vllm", "url": ""}).encode(),
        json.dumps({"model": "m", "engine": "vllm", "url": "ftp://127.0.0.1"}).encode(),
        json.dumps({"model": "", "engine": "vllm", "url": NOWHERE}).encode(),
        json.dumps({"model": "m", "engine": "none", "url": NOWHERE}).encode(),
    ],
)
def test_servers_that_make_no_sense_are_refused(gateway, body):
    status, text = fetch(gateway, "POST", "/rollway/v1/models", gateway.admin_key, body)
    assert status in (400, 413, 422), (status, text)
    assert json.loads(text)["error"]["message"]
    assert is_well(gateway)


@pytest.mark.parametrize("id", ["-1", "x", "99999", "18446744073709551616", "%00", "0x1", ""])
def test_servers_that_are_not_there_cannot_be_removed(gateway, id):
    path = f"/rollway/v1/models/{id}"
    status, _ = fetch(gateway, "DELETE", path, gateway.admin_key)
    assert status in (400, 404, 405), status
    assert is_well(gateway)
