"""Tests of the gateway with clients and agent frameworks, each in an environment of its own."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import programs  # noqa: E402

programs.set_defaults()
