"""Strict type checkers accept examples, templates and the public API, and find mistakes in them."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
FILES = [
    *(ROOT / "examples" / name for name in ("hello.py", "tools.py", "serve/agent.py")),
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
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("program", [MYPY, PYRIGHT], ids=["mypy", "pyright"])
def test_examples_templates_and_the_public_api_are_typed(program, tmp_path):
    (tmp_path / "pyrightconfig.json").write_text(
        # Strict, but for values of `Any` from untyped libraries and rows of the user.
        '{"typeCheckingMode": "strict", "reportUnknownMemberType": false,'
        ' "reportUnknownVariableType": false, "reportUnknownArgumentType": false}'
    )
    (tmp_path / "calls.py").write_text(CALLS)
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
