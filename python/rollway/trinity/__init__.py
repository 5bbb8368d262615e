"""Compatibility package: Trinity-RFT workflows, rewards, operators and configurations.

Importing it makes the names of Trinity-RFT importable, so that its files run without edits:

    import rollway as rw
    import rollway.trinity                      # now `import trinity...` works
    from my_workflows import ExampleWorkflow    # written for Trinity-RFT

    config = rollway.trinity.common.config.load_config("trinity.yaml")

Workers of a job import it themselves. Where Trinity-RFT is installed, its own modules are imported
as `trinity`; the modules here stay available as `rollway.trinity...`.

docs/trinity.md lists the modules, and docs/trinity-differences.md what differs.
"""

from __future__ import annotations

from rollway import _trinity_alias

_trinity_alias.install()
