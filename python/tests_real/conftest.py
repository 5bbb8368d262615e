"""Fixtures of the tests on real servers, and the table of their results."""

from __future__ import annotations

import os
import pathlib
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests"))

import matrix
import programs
import tiny_model
from servers import Gateway, Llama
from vllm_server import Vllm

programs.set_defaults()

#: Seconds between health checks in these tests.
HEALTH_INTERVAL = "0.2"

_RESULTS = matrix.Results()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Collects the results of tests with the mark `capability`."""
    outcome = yield
    mark = item.get_closest_marker("capability")
    report = outcome.get_result()
    if mark and (report.when == "call" or report.outcome != "passed"):
        # Fixtures of a test whose setup failed are incomplete; its parameters are not.
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        _RESULTS.add(parameters.get("server_kind", "vllm"), mark.args[0], report.outcome)


def pytest_deselected(items):
    """Notes that a run is a part of the tests, as with `-k`."""
    _RESULTS.is_complete &= not items


@pytest.hookimpl
def pytest_sessionfinish(session, exitstatus):
    """Writes the table: of a complete run that passed to the given path, otherwise to `target`."""
    if not _RESULTS.rows:
        return
    files = {item.path for item in session.items}
    every = set(pathlib.Path(__file__).parent.glob("test_*.py"))
    is_complete = _RESULTS.is_complete and exitstatus == pytest.ExitCode.OK and files >= every
    path = os.environ.get("ROLLWAY_SERVER_MATRIX")
    if not (path and is_complete):
        target = os.environ.get("CARGO_TARGET_DIR", programs.ROOT / "target")
        path = pathlib.Path(target, "server-matrix.md")
    pathlib.Path(path).write_text(_RESULTS.page())
    print(f"\nresults: {path}")


@pytest.fixture
def measured(request):
    """Stores a figure of a test for the table."""
    return lambda text: _RESULTS.measure(request.node.name, text)


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """Returns the folder of the marked model of a version."""
    root = tmp_path_factory.mktemp("weights")

    def folder(version: int) -> pathlib.Path:
        # Marks repeat, so that the folders may too.
        path = root / f"marked-{version % tiny_model.CYCLE}"
        return path if path.exists() else tiny_model.write(path, version=version)

    return folder


@pytest.fixture(scope="session")
def random_model(tmp_path_factory):
    """Returns the folder of a model with random weights."""
    return tiny_model.write(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def vllm(random_model):
    """A vLLM with random weights; tests leave it with others, and not paused."""
    server = Vllm(random_model)
    _RESULTS.version("vllm", server.get("/version")["version"])
    yield server
    server.kill()


@pytest.fixture(scope="session")
def llama():
    """A llama-server with a tiny model."""
    server = Llama()
    _RESULTS.version("llama_cpp", server.build())
    yield server
    server.close()


@pytest.fixture(params=["vllm", "llama_cpp"])
def server_kind(request):
    """The kinds of servers, one after the other."""
    return request.param


@pytest.fixture
def server(request, server_kind):
    """The server of the kind."""
    return request.getfixturevalue({"vllm": "vllm", "llama_cpp": "llama"}[server_kind])


def gateway_of(kind: str, url: str, *options: str, state: str = "running") -> Gateway:
    """Starts a gateway in front of a server, and waits until it found the server in a state."""
    gateway = Gateway("--health-interval", HEALTH_INTERVAL, *options, f"{kind}={url}")
    deadline = time.monotonic() + 120
    while (server := gateway.server())["state"] != state:
        assert time.monotonic() < deadline, server
        time.sleep(0.02)
    return gateway


@pytest.fixture
def gateway(server_kind, server):
    """A gateway in front of the server."""
    gateway = gateway_of(server_kind, server.url)
    yield gateway
    gateway.close()


@pytest.fixture
def vllm_gateway(vllm):
    """A gateway in front of vLLM."""
    gateway = gateway_of("vllm", vllm.url)
    yield gateway
    gateway.close()
