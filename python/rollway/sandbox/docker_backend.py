"""Docker sandboxes: one container each, through the `docker` command."""

from __future__ import annotations

import asyncio
import os
import posixpath
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rollway.errors import SandboxError
from rollway.sandbox.base import ExecResult, Lease
from rollway.sandbox.processes import run_process

#: Prefix of the names of containers.
PREFIX = "rollway-"

#: Label with the id of the lease.
LABEL = "rollway.lease"

#: First process of a container: collects ended processes, and ends at the deadline of the lease,
#: also if nothing is left that could end it.
_INIT = 'end=$(($(date +%s) + $1)); while [ "$(date +%s)" -lt "$end" ]; do sleep 5 & wait; done'

#: Writes the standard input to a file.
_WRITE = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1"'

#: Beginning of the messages of the command about the engine or the container.
_ENGINE_ERRORS = ("Error response from daemon", "Cannot connect to the Docker daemon")

#: Exit code of `docker` for its own failures.
_OWN_FAILURE = 125

#: Bytes of an error message.
_MESSAGE_BYTES = 4096

#: Seconds for a command about a container.
_CONTROL_TIMEOUT = 60.0


class DockerBackend:
    """A container. `docker` is the program; it finds the engine by its own configuration."""

    def __init__(
        self,
        image: str,
        *,
        network: str = "host",
        memory_bytes: int | None = None,
        cpus: float | None = None,
        processes: int | None = 4096,
        env: Mapping[str, str] | None = None,
        folder: str = "/work",
        user: str | None = None,
        run_arguments: Sequence[str] = (),
        docker: str = "docker",
    ) -> None:
        self._image = image
        self._network = network
        self._memory_bytes = memory_bytes
        self._cpus = cpus
        self._processes = processes
        self._env = dict(env or {})
        self._user = user
        self._run_arguments = list(run_arguments)
        self._docker = docker
        self._name = ""
        self.folder = folder
        self.home = "/tmp/rollway-home"

    async def start(self, lease: Lease) -> Mapping[str, Any]:
        self._name = PREFIX + lease.id
        seconds = max(1, round(lease.deadline - time.time()))
        command = [self._docker, "run", "--detach", "--rm", "--name", self._name]
        command += ["--label", f"{LABEL}={lease.id}", "--network", self._network]
        command += ["--workdir", self.folder]
        for option, value in (
            ("--memory", self._memory_bytes),
            ("--cpus", self._cpus),
            ("--pids-limit", self._processes),
            ("--user", self._user),
        ):
            if value is not None:
                command += [option, str(value)]
        command += [*self._run_arguments, "--entrypoint", "/bin/sh", self._image]
        await self._control([*command, "-c", _INIT, "sh", str(seconds)], None)
        return {"docker": self._docker}

    async def exec(
        self,
        command: Sequence[str],
        *,
        timeout: float | None,
        env: Mapping[str, str],
        cwd: str | None,
        stdin: bytes,
        max_output_bytes: int,
    ) -> ExecResult:
        given = {"HOME": self.home, **self._env, **env}
        arguments = [self._docker, "exec", "--interactive"]
        for name in given:
            # The value comes from the environment: arguments are visible to other users.
            arguments += ["--env", name]
        arguments += ["--workdir", self._path(cwd or "."), self._name, *command]
        try:
            result = await run_process(
                arguments,
                env={**os.environ, **given},
                cwd=None,
                stdin=stdin,
                timeout=timeout,
                max_output_bytes=max_output_bytes,
                kill=lambda: None,
            )
        except asyncio.CancelledError:
            # The end of the client does not end the command.
            await asyncio.shield(self._end_commands())
            raise
        if result.timed_out:
            await self._end_commands()
        elif result.exit_code != 0 and _is_engine_error(result):
            raise SandboxError(f"container {self._name}: {_message(result)}")
        return result

    async def _end_commands(self) -> None:
        """Kills everything but the first process."""
        command = ["exec", self._name, "/bin/sh", "-c", "kill -9 -1"]
        # The shell itself may be killed too: its exit code says nothing.
        await self._run([self._docker, *command], b"", _MESSAGE_BYTES)

    async def read_file(self, path: str, max_bytes: int) -> bytes:
        target = self._path(path)
        # One byte more shows that the file is too large.
        command = [self._docker, "exec", self._name, "head", "-c", str(max_bytes + 1), target]
        output = await _read_output(command, max_bytes + 1)
        if isinstance(output, str):
            if output.startswith(_ENGINE_ERRORS):
                raise SandboxError(f"container {self._name}: {output}")
            raise FileNotFoundError(f"{path}: {output}")
        if len(output) > max_bytes:
            raise ValueError(f"{path} is larger than {max_bytes} bytes")
        return output

    async def write_file(self, path: str, data: bytes) -> None:
        command = ["exec", "--interactive", self._name, "/bin/sh", "-c", _WRITE, "sh"]
        result = await self._run([self._docker, *command, self._path(path)], data, _MESSAGE_BYTES)
        if result.exit_code == 0:
            return
        if _is_engine_error(result):
            raise SandboxError(f"container {self._name}: {_message(result)}")
        raise PermissionError(f"{path} cannot be written: {_message(result)}")

    def _path(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self.folder, path))

    async def close(self) -> None:
        if self._name:
            await _remove(self._docker, self._name)

    @classmethod
    async def reap(cls, lease: Lease) -> None:
        await _remove(str(lease.data.get("docker", "docker")), PREFIX + lease.id)

    async def _control(self, command: list[str], timeout: float | None) -> None:
        result = await self._run(command, b"", _MESSAGE_BYTES, timeout)
        if result.exit_code != 0:
            raise SandboxError(f"container {self._name}: {_message(result)}")

    async def _run(
        self,
        command: list[str],
        stdin: bytes,
        max_output_bytes: int,
        timeout: float | None = _CONTROL_TIMEOUT,
    ) -> ExecResult:
        return await _docker(command, stdin, max_output_bytes, timeout)


async def _docker(
    command: list[str], stdin: bytes, max_output_bytes: int, timeout: float | None
) -> ExecResult:
    result = await run_process(
        command,
        env=os.environ,
        cwd=None,
        stdin=stdin,
        timeout=timeout,
        max_output_bytes=max_output_bytes,
        kill=lambda: None,
    )
    if result.timed_out:
        raise SandboxError(f"`{' '.join(command[:2])}` did not end within {timeout:g} s")
    return result


async def _remove(docker: str, name: str) -> None:
    command = [docker, "rm", "--force", "--volumes", name]
    result = await _docker(command, b"", _MESSAGE_BYTES, _CONTROL_TIMEOUT)
    if result.exit_code != 0 and "No such container" not in result.stderr:
        raise SandboxError(f"container {name} cannot be removed: {_message(result)}")


async def _read_output(command: list[str], max_bytes: int) -> bytes | str:
    """Returns the output of a command as bytes, or its error message."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), _CONTROL_TIMEOUT)
    except asyncio.TimeoutError:
        raise SandboxError(
            f"`{' '.join(command[:2])}` did not end within {_CONTROL_TIMEOUT:g} s"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode == 0:
        return output[:max_bytes]
    return errors[:_MESSAGE_BYTES].decode(errors="replace").strip()


def _is_engine_error(result: ExecResult) -> bool:
    is_own = result.exit_code == _OWN_FAILURE
    return is_own or result.stderr.lstrip().startswith(_ENGINE_ERRORS)


def _message(result: ExecResult) -> str:
    return result.stderr.strip() or f"`docker` ended with exit code {result.exit_code}"
