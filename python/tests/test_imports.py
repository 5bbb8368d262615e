"""Import graph of the package: every module imports alone, and no module imports itself."""

import ast
import graphlib
import pathlib
import subprocess
import sys

import pytest

import rollway as rw

ROOT = pathlib.Path(rw.__file__).parent


def name_of(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}

#: Modules, and the extension that they import.
KNOWN = {*MODULES, "rollway._rollway"}


class Imports(ast.NodeVisitor):
    """Collects the modules of the package that a module imports, in functions too.

    Imports for type checkers do not count.
    """

    def __init__(self, name):
        is_package = MODULES[name].name == "__init__.py"
        self.package = name if is_package else name.rpartition(".")[0]
        self.found = set()

    def visit_If(self, node):
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self.generic_visit(node)

    def visit_Import(self, node):
        self.found.update(alias.name for alias in node.names if alias.name in KNOWN)

    def visit_ImportFrom(self, node):
        module = node.module or ""
        if node.level:
            package = ".".join(self.package.split(".")[: 1 - node.level or None])
            module = f"{package}.{module}" if module else package
        for alias in node.names:
            inner = f"{module}.{alias.name}"
            self.found.update({inner if inner in KNOWN else module} & KNOWN)


def imports(name):
    visitor = Imports(name)
    visitor.visit(ast.parse(MODULES[name].read_text()))
    return visitor.found


def test_imports_have_no_cycles():
    graph = {name: imports(name) for name in MODULES}
    # The extension is part of the graph, so that a wrong folder does not pass.
    assert "rollway._rollway" in graph["rollway.config"]
    list(graphlib.TopologicalSorter(graph).static_order())


#: Modules that need PyTorch or vLLM, which the package does not require.
NEED_TORCH = ("rollway.client.transfer_group", "rollway.vllm_gloo")


@pytest.mark.parametrize("name", MODULES)
def test_module_imports_alone(name, tmp_path):
    command = [sys.executable, "-c", f"import {name}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    if name in NEED_TORCH and done.returncode:
        assert done.stderr.rstrip().endswith(("named 'torch'", "named 'vllm'")), done.stderr
    else:
        assert done.returncode == 0, done.stderr
