"""A worker process as a Ray actor.

Pickled by value and dependent only on Ray, so that it can report a missing package `rollway`.
"""

from __future__ import annotations

from typing import Any


class Worker:
    """Ray actor of a worker; its methods run in the main thread of its process."""

    def location(self, version: str) -> dict[str, Any]:
        """Returns the location of the worker; raises if the package is missing or differs."""
        import os
        import sys

        import ray

        here = ray.util.get_node_ip_address()
        remedy = (
            f"install rollway {version} in the environment that its Ray was started in, "
            "or name it under `pip` in cluster.runtime_env"
        )
        try:
            import rollway
        except ImportError as error:
            raise RuntimeError(
                f"{sys.executable} on {here} has no package `rollway` ({error}); {remedy}"
            ) from None
        if rollway.__version__ != version:
            raise RuntimeError(
                f"{sys.executable} on {here} has rollway {rollway.__version__}, and the job has "
                f"{version}; {remedy}"
            )
        node = ray.get_runtime_context().get_node_id()
        return {"ip": here, "node": node, "pid": os.getpid()}

    def work(self, env: dict[str, str]) -> str:
        """Works for the engine of these variables; returns the reason of the end."""
        import os
        import sys

        os.environ.update(env)
        # Set too late for the interpreter; folders that do not exist are ignored.
        more = env.get("PYTHONPATH", "").split(os.pathsep)
        sys.path.extend(path for path in more if path and path not in sys.path)
        from rollway.worker.process import work

        why, _ = work()
        return why
