"""Strict type checkers accept examples, templates and the public API, and find mistakes in them."""

import json
import pathlib
import subprocess
import sys

import pytest
from language_server import LanguageServer
from marked_blocks import with_programs

ROOT = pathlib.Path(__file__).parents[2]
FILES = [
    *(path for path in sorted((ROOT / "examples").rglob("*.py"))),
    *(ROOT / "crates/cli/templates/workflow" / name for name in ("flows.py", "train.py")),
]

CALLS = """
import rollway as rw


@rw.workflow
async def solve(task: rw.Task, model: rw.Model) -> float:
    reply = await model.chat([{"role": "user", "content": "1+1="}])
    samples = await model.generate("1+1=", n=2)
    return float(reply.text == samples[0].text)


def blocking(task: rw.Task, model: rw.BlockingModel) -> str:
    return model.chat([{"role": "user", "content": "1+1="}]).text
"""

#: Stub of a package that is not installed here.
TORCH = """
from typing import Any

Tensor = Any

def __getattr__(name: str) -> Any: ...
"""

#: A misspelled field, a forgotten `await`, a list taken for a reply.
MISTAKES = (
    ("reply.text", "reply.txt"),
    ("await model.chat", "model.chat"),
    ("samples[0]", "samples"),
)

MYPY = ("mypy", "--strict", "--no-incremental")
PYRIGHT = ("pyright", "--pythonpath", sys.executable)


def check(program, files, folder):
    command = [sys.executable, "-m", *program, *map(str, files)]
    # `--verifytypes` takes the packages of the `python` of the PATH.
    variables = with_programs(pathlib.Path(sys.executable).parent)
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("program", [MYPY, PYRIGHT], ids=["mypy", "pyright"])
def test_examples_templates_and_the_public_api_are_typed(program, tmp_path):
    (tmp_path / "pyrightconfig.json").write_text(
        # Strict, but for values of `Any` from untyped libraries and rows of the user.
        '{"typeCheckingMode": "strict", "reportUnknownMemberType": false,'
        ' "reportUnknownVariableType": false, "reportUnknownArgumentType": false}'
    )
    (tmp_path / "calls.py").write_text(CALLS)
    (tmp_path / "torch.pyi").write_text(TORCH)
    copies = []
    for path in FILES:
        copy = tmp_path / path.name
        copy.write_text(path.read_text())
        copies.append(copy)
    done = check(program, [tmp_path / "calls.py", *copies], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    mistaken = []
    for number, (right, wrong) in enumerate(MISTAKES):
        mistaken.append(tmp_path / f"mistake_{number}.py")
        mistaken[-1].write_text(CALLS.replace(right, wrong, 1))
    done = check(program, mistaken, tmp_path)
    for path in mistaken:
        assert f"{path.name}:" in done.stdout, done.stdout


#: Its base classes belong to a package that is not installed here.
UNTYPED_BASES = "rollway.vllm_gloo"


def test_the_package_has_no_unknown_types(tmp_path):
    """`pyright --verifytypes` checks what a user's type checker sees of the wheel."""
    options = ["--ignoreexternal", "--outputjson"]
    done = check(("pyright", "--verifytypes", "rollway", *options), [], tmp_path)
    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    assert len(symbols) > 1000, done.stdout
    unknown = {
        one["name"]: [found["message"] for found in one["diagnostics"]]
        for one in symbols
        if not (one["isTypeKnown"] or one["isTypeAmbiguous"])
        and not one["name"].startswith(UNTYPED_BASES)
    }
    assert not unknown, unknown


@pytest.fixture(scope="module")
def editor(tmp_path_factory):
    server = LanguageServer(tmp_path_factory.mktemp("editor"))
    yield server
    server.close()


@pytest.mark.parametrize(
    ("typed", "after", "offered"),
    [
        (CALLS, "await model.", {"chat", "generate", "base_url", "openai_client"}),
        (CALLS, "float(reply.", {"text", "tokens", "logprobs", "finish_reason", "experience"}),
        (CALLS, "samples[0].", {"text", "experience"}),
        (CALLS, "reward = task.", {"raw_task", "rollout_args", "truth", "messages"}),
    ],
    ids=["model", "reply", "sample", "task"],
)
def test_an_editor_completes(editor, tmp_path, typed, after, offered):
    path = tmp_path / "calls.py"
    path.write_text(typed.replace("    samples", "    reward = task.raw_task\n    samples"))
    found = editor.completions(path, after)
    assert offered <= found, sorted(found)
