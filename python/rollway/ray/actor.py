"""A worker process as a Ray actor.

It travels by value and needs nothing but Ray to arrive, so that a machine without the package can
say what it lacks.
"""

from __future__ import annotations

from typing import Any


class Worker:
    """Is asked where it is, then told to work; both in the main thread of its own process."""

    def where(self, version: str) -> dict[str, Any]:
        """Returns where it is, if it can work there."""
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
        """Works for the engine that these variables name until it needs no more; returns why."""
        import os
        import sys

        os.environ.update(env)
        # This process has begun without it; folders that are not on this machine do no harm.
        more = env.get("PYTHONPATH", "").split(os.pathsep)
        sys.path.extend(path for path in more if path and path not in sys.path)
        from rollway.worker.process import work

        why, _ = work()
        return why
