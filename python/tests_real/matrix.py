"""The table "server kind, version, capability" of the documentation, from a test run."""

from __future__ import annotations

import datetime

HEAD = """# Server matrix

Results of `cargo xtask test real`, which runs the gateway against real servers with tiny models.
The command writes this page; do not edit it. [inference-servers.md](inference-servers.md) describes
the kinds of servers and how to start them.
"""

#: Kinds that no machine without a GPU can run.
UNTESTED = {"sglang": "not run: no CPU build; simulated only"}

CELLS = {"passed": "yes", "failed": "**failed**", "skipped": "no"}


class Results:
    """Outcomes by capability and server kind."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, str]] = {}
        self.versions: dict[str, str] = {}
        self.figures: dict[str, str] = {}
        #: False if tests were left out.
        self.is_complete = True

    def add(self, kind: str, capability: str, outcome: str) -> None:
        """Adds an outcome. A failure of one test counts for all of a capability."""
        row = self.rows.setdefault(capability, {})
        known = row.get(kind)
        row[kind] = outcome if known in (None, "passed") else known

    def version(self, kind: str, version: str) -> None:
        """Stores the version of a server."""
        self.versions[kind] = version

    def measure(self, test: str, text: str) -> None:
        """Stores a figure of a test."""
        self.figures[test] = text

    def page(self) -> str:
        """Returns the page."""
        kinds = sorted(self.versions, reverse=True)
        titles = [f"`{kind}` {self.versions[kind]}" for kind in kinds]
        lines = [HEAD, f"Last run: {datetime.date.today().isoformat()}.", ""]
        lines += ["| capability | " + " | ".join(titles) + " |", "|---" * (len(kinds) + 1) + "|"]
        for capability, row in self.rows.items():
            cells = [CELLS.get(row.get(kind, ""), "not tested") for kind in kinds]
            lines.append(f"| {capability} | " + " | ".join(cells) + " |")
        lines += ["", *(f"`{kind}`: {reason}." for kind, reason in UNTESTED.items())]
        if self.figures:
            lines += ["", "## Figures", "", "| test | result |", "|---|---|"]
            names = ((name.removeprefix("test_").replace("_", " "), name) for name in self.figures)
            lines += [f"| {shown} | {self.figures[name]} |" for shown, name in names]
        return "\n".join(lines) + "\n"
