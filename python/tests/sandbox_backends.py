"""Sandbox backends of the tests, in a module so that the reaper can import them."""

import os
import pathlib

import rollway as rw


class Remote:
    """A provider whose sandboxes are files in a folder, as if on another machine."""

    def __init__(self, where, fails_at=None):
        self._where = pathlib.Path(where)
        self._fails_at = fails_at
        self._path = None
        self.folder, self.home = "/work", "/home"

    async def start(self, lease):
        if self._fails_at == "start":
            raise ConnectionRefusedError("no capacity")
        self._path = self._where / lease.id
        self._path.write_text("running")
        return {"where": str(self._where)}

    async def exec(self, command, *, timeout, env, cwd, stdin, max_output_bytes):
        if self._fails_at == "exec":
            raise ConnectionResetError("connection lost")
        return rw.sandbox.ExecResult(0, " ".join(command), "")

    async def read_file(self, path, max_bytes):
        raise FileNotFoundError(path)

    async def write_file(self, path, data):
        pass

    async def close(self):
        if self._fails_at == "close":
            raise ConnectionResetError("connection lost")
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    @classmethod
    async def reap(cls, lease):
        # Nothing else is left of a sandbox that was still starting.
        if "where" in lease.data:
            os.unlink(os.path.join(lease.data["where"], lease.id))
