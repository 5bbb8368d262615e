"""Process groups over which a trainer sends tensors to inference servers.

The trainer has rank 0 and hosts the store; the workers of the servers follow. This module needs
PyTorch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

#: Name of the group.
GROUP = "rollway"

#: Maximum seconds of a worker for joining a group, and for each tensor.
TRANSFER_TIMEOUT = float(os.environ.get("ROLLWAY_TRANSFER_TIMEOUT", "300"))


def host_store(address: str, timeout: float) -> Any:
    """Opens the trainer's store on a free port of all interfaces that `address` reaches."""
    return torch.distributed.TCPStore(
        address,
        0,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout),
    )


def gloo_group(store: Any, rank: int, world_size: int, timeout: float) -> Any:
    """Joins a group; returns when all members have."""
    prefixed = torch.distributed.PrefixStore(GROUP, store)
    limit = timedelta(seconds=timeout)
    return torch.distributed.ProcessGroupGloo(prefixed, rank, world_size, timeout=limit)


def torch_group(store: Any, world_size: int, backend: str, timeout: float) -> Any:
    """Joins as rank 0 a group beside the default one, as SGLang's workers do."""
    from torch.distributed import distributed_c10d as c10d

    prefixed = torch.distributed.PrefixStore(GROUP, store)
    limit = timedelta(seconds=timeout)
    group, _ = c10d._new_process_group_helper(
        world_size, 0, [], backend, prefixed, group_name=GROUP, timeout=limit
    )
    c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(world_size)}
    return group


def vllm_nccl_group(address: str, port: int, store: Any, world_size: int) -> Any:
    """Joins as rank 0 the NCCL group of vLLM's workers; needs vLLM at the trainer."""
    from vllm.distributed.device_communicators.pynccl import (  # type: ignore[import-not-found]
        PyNcclCommunicator,
    )
    from vllm.distributed.utils import StatelessProcessGroup  # type: ignore[import-not-found]

    group = StatelessProcessGroup.create(address, port, 0, world_size)
    return PyNcclCommunicator(group, device=torch.accelerator.current_device_index())


def as_tensor(value: Any) -> torch.Tensor:
    """Returns an array or tensor as a contiguous tensor."""
    if isinstance(value, torch.Tensor):
        # A sharded tensor is gathered; all ranks of the trainer must take part.
        full = getattr(value, "full_tensor", None)
        value = (full() if full is not None else value).detach()
    else:
        value = torch.from_numpy(value)
    return value.contiguous()


def describe(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns names, types and shapes, in the order in which tensors are sent."""
    return [
        {
            "name": name,
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape),
        }
        for name, value in state.items()
    ]


def send(group: Any, tensor: torch.Tensor, timeout: float) -> None:
    """Sends a tensor to all members."""
    options = torch.distributed.BroadcastOptions()
    options.rootRank = 0
    options.rootTensor = 0
    group.broadcast([tensor], options).wait(timedelta(seconds=timeout))


def receive(group: Any, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    """Receives a tensor from the trainer."""
    tensor = torch.empty(shape, dtype=dtype)
    options = torch.distributed.BroadcastOptions()
    options.rootRank = 0
    options.rootTensor = 0
    group.broadcast([tensor], options).wait(timedelta(seconds=TRANSFER_TIMEOUT))
    return tensor
