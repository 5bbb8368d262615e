"""Trainer side of a weight transfer without files: tensors go straight to the inference servers.

The trainer opens a group and publishes it. The job's gateway lets all servers join, and the trainer
sends the tensors. The transfer is done when the servers have read back their new version.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from rollway._rollway import server_kinds
from rollway.errors import SynchronizerError

#: Server kinds with endpoints for transfers.
_KINDS = tuple(name for name, _, updates_weights in server_kinds() if updates_weights)

#: Seconds between looks at the state of the servers.
_POLL_INTERVAL = 0.2


class TransferError(SynchronizerError):
    """A transfer that did not reach all servers, with the reason."""


class Fleet:
    """Servers of the job that take part in transfers, as their explorer reports them."""

    def __init__(self, explorer: str, report: Mapping[str, Any]) -> None:
        self.explorer = explorer
        self.engine = str(report["engine"])
        self.servers = int(report["servers"])
        self.ranks_per_server = int(report["ranks_per_server"])
        self.version: int | None = report.get("version")
        self.failed: Mapping[str, Any] | None = report.get("failed")

    @property
    def world_size(self) -> int:
        """Number of members of the group: the trainer and all workers."""
        return 1 + self.servers * self.ranks_per_server


def read_fleet(status: Mapping[str, Any]) -> Fleet:
    """Returns the servers that get the weights, from the status of the synchronizer."""
    present = [it for it in status["explorers"] if it["state"] in ("present", "waiting")]
    reports = [Fleet(it["name"], it["servers"]) for it in present if it.get("servers")]
    if not reports:
        raise TransferError("no explorer of the job has reported its servers yet")
    if len(reports) > 1:
        names = ", ".join(it.explorer for it in reports)
        raise TransferError(f"the job has several explorers ({names}), and a transfer reaches one")
    fleet = reports[0]
    if fleet.servers == 0:
        raise TransferError("the job has no server that is running")
    return fleet


def transfer(
    status: Callable[[], Mapping[str, Any]],
    publish: Callable[[str], None],
    state: Mapping[str, Any],
    version: int,
    *,
    backend: str,
    address: str,
    timeout: float,
) -> None:
    """Sends a state dict to all servers and waits until they have it.

    `status` returns the state of the synchronizer, `publish` announces a group.
    """
    try:
        from rollway.client import transfer_group
    except ImportError as error:
        raise TransferError(f"a transfer needs PyTorch: {error}") from error
    fleet = read_fleet(status())
    if fleet.engine not in _KINDS:
        raise TransferError(f"servers of kind {fleet.engine!r} take no weights over {backend}")
    deadline = time.monotonic() + timeout
    is_vllm_nccl = (fleet.engine, backend) == ("vllm", "nccl")
    if is_vllm_nccl:
        store, port = None, _free_port()
    else:
        store = transfer_group.host_store(address, timeout)
        port = store.port
    group = {
        "master_address": address,
        "master_port": port,
        "world_size": fleet.world_size,
        "ranks_per_server": fleet.ranks_per_server,
        "name": transfer_group.GROUP,
        "backend": backend,
        "join": True,
        "tensors": transfer_group.describe(state),
    }

    def send() -> None:
        if is_vllm_nccl:
            members = transfer_group.vllm_nccl_group(address, port, store, fleet.world_size)
        elif fleet.engine == "vllm":
            members = transfer_group.gloo_group(store, 0, fleet.world_size, timeout)
        else:
            members = transfer_group.torch_group(store, fleet.world_size, backend, timeout)
        for value in state.values():
            tensor = transfer_group.as_tensor(value)
            if is_vllm_nccl:
                members.broadcast(tensor, src=0)
            else:
                if backend == "gloo":
                    tensor = tensor.cpu()
                transfer_group.send(members, tensor, timeout)
        if is_vllm_nccl:
            transfer_group.torch.accelerator.synchronize()

    sender = _Sender(send)
    publish(json.dumps(group))
    _wait(status, sender, fleet, version, deadline)


class _Sender(threading.Thread):
    """Joins the group and sends. Joining blocks until all servers have joined."""

    def __init__(self, send: Callable[[], None]) -> None:
        # A daemon: a member that never joins must not keep the trainer from ending.
        super().__init__(name="rollway-transfer", daemon=True)
        self._send = send
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Sends, and keeps an error."""
        try:
            self._send()
        except BaseException as error:
            self.error = error


def _wait(
    status: Callable[[], Mapping[str, Any]],
    sender: _Sender,
    fleet: Fleet,
    version: int,
    deadline: float,
) -> None:
    """Waits until the servers report the version."""
    while True:
        if sender.error is not None:
            raise TransferError(f"sending failed: {sender.error}")
        now = read_fleet(status())
        if now.version is not None and now.version >= version and not sender.is_alive():
            return
        if now.failed is not None and int(now.failed["version"]) == version:
            raise TransferError(str(now.failed["reason"]))
        if time.monotonic() > deadline:
            begun = "all tensors are sent" if not sender.is_alive() else "not all servers joined"
            raise TransferError(
                f"{fleet.servers} servers did not have version {version} in time: {begun}"
            )
        time.sleep(_POLL_INTERVAL)


def own_address(synchronizer_url: str) -> str:
    """Returns the address under which servers reach this process.

    It is `ROLLWAY_TRANSFER_ADDRESS`, or that of the network interface to the synchronizer.
    """
    given = os.environ.get("ROLLWAY_TRANSFER_ADDRESS")
    if given:
        return given
    parts = urlsplit(synchronizer_url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Sends nothing; it only chooses the interface.
        probe.connect((parts.hostname or "127.0.0.1", parts.port or 9))
        return str(probe.getsockname()[0])


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])
