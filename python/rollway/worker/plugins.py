"""Plugin folders: modules that register workflows, reward functions and operators.

`TRINITY_PLUGIN_DIRS`, the variable of Trinity-RFT, lists the folders. Every module in them is
imported before the first task, so that configurations can name what they register.
"""

from __future__ import annotations

import importlib
import os
import pathlib
import sys

#: Variable with the folders, separated as in `PATH`.
PLUGIN_DIRS = "TRINITY_PLUGIN_DIRS"


def load() -> list[str]:
    """Imports the modules of the plugin folders; returns their names."""
    names = []
    for text in filter(None, os.environ.get(PLUGIN_DIRS, "").split(os.pathsep)):
        folder = pathlib.Path(text).absolute()
        if not folder.is_dir():
            raise FileNotFoundError(f"{PLUGIN_DIRS} names {text}, which is not a folder")
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
        for name in _modules(folder):
            importlib.import_module(name)
            names.append(name)
    return names


def _modules(folder: pathlib.Path) -> list[str]:
    files = [file.stem for file in folder.glob("*.py")]
    packages = [file.parent.name for file in folder.glob("*/__init__.py")]
    return sorted(name for name in (*files, *packages) if not name.startswith("_"))
