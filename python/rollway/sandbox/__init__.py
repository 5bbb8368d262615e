"""Sandboxes: places in which agents and tests run, apart from the worker.

Every sandbox is held under a lease: it is ended with its run, or at the deadline, also after
`kill -9` of the worker or of the whole job. Its failures have a kind of their own, `sandbox`:
the run is retried, and the task is not charged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollway import stages
from rollway._registry import Registry
from rollway.errors import UnknownSandbox
from rollway.run_settings import LocalLimits, SandboxSettings
from rollway.sandbox.base import ExecResult, Lease, SandboxBackend
from rollway.sandbox.docker_backend import DockerBackend
from rollway.sandbox.local_backend import LocalBackend
from rollway.sandbox.sandbox import Sandbox

__all__ = [
    "ExecResult",
    "Lease",
    "LocalLimits",
    "Sandbox",
    "SandboxBackend",
    "SandboxSettings",
    "create",
    "docker",
    "local",
    "register",
]

_registry = Registry("sandbox", UnknownSandbox)


def local(
    files: Mapping[str, str | bytes] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    lease: float | None = None,
    parent: str | None = None,
    settings: SandboxSettings | None = None,
    **limits: Any,
) -> Sandbox:
    """Returns a sandbox of local processes, with a folder, an environment and limits of its own.

    `files` are written at its start. `limits` are those of `explorer.sandbox.local`, such as
    `memory_bytes`. `parent` is the folder for its own. It does not isolate code that is hostile:
    its processes have the user and the network of the worker.
    """
    run = stages.current()
    known = settings or (SandboxSettings() if run is None else run.settings.sandbox)
    backend = LocalBackend(dataclasses.replace(known.local, **limits), env, parent)
    return Sandbox(backend, files=files, lease=lease, settings=known)


def docker(
    image: str,
    files: Mapping[str, str | bytes] | None = None,
    *,
    lease: float | None = None,
    settings: SandboxSettings | None = None,
    network: str = "host",
    memory_bytes: int | None = None,
    cpus: float | None = None,
    processes: int | None = 4096,
    env: Mapping[str, str] | None = None,
    folder: str = "/work",
    user: str | None = None,
    run_arguments: Sequence[str] = (),
    docker: str = "docker",
) -> Sandbox:
    """Returns a sandbox in a container, through the command `docker`.

    With the network `host` agents reach a gateway that listens on the loopback only; `none` is for
    commands that need no model. The image needs `/bin/sh` and the usual small programs.
    """
    backend = DockerBackend(
        image,
        network=network,
        memory_bytes=memory_bytes,
        cpus=cpus,
        processes=processes,
        env=env,
        folder=folder,
        user=user,
        run_arguments=run_arguments,
        docker=docker,
    )
    return Sandbox(backend, files=files, lease=lease, settings=settings)


def register(name: str, factory: Callable[..., SandboxBackend]) -> Callable[..., SandboxBackend]:
    """Registers a factory of backends, such as a class, under a name for `create`.

    The class of the backends must be importable, so that another process can end a sandbox after
    a crash.
    """
    return _registry.register(name, factory)


def create(
    name: str,
    files: Mapping[str, str | bytes] | None = None,
    *,
    lease: float | None = None,
    settings: SandboxSettings | None = None,
    **options: Any,
) -> Sandbox:
    """Returns a sandbox of a registered name, or of a factory `package.module:name`."""
    if name == "local":
        return local(files, lease=lease, settings=settings, **options)
    if name == "docker":
        return docker(files=files, lease=lease, settings=settings, **options)
    backend = _registry.lookup(name)(**options)
    return Sandbox(backend, files=files, lease=lease, settings=settings)
