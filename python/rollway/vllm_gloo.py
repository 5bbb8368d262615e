"""Weight transfer engine of vLLM that receives tensors over gloo, PyTorch's transport for CPUs.

The gateway sends the same requests as for NCCL: `/init_weight_transfer_engine` joins the trainer's
group, `/update_weights` receives the tensors in the order in which the trainer sends them.
"""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (  # type: ignore[import-not-found]
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from rollway.client.transfer_group import GROUP, TRANSFER_TIMEOUT, gloo_group, receive


@dataclasses.dataclass
class GlooInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Address of the trainer's store, and the position in its group."""

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int


@dataclasses.dataclass
class GlooUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Tensors in the order in which they arrive."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]

    def __post_init__(self) -> None:
        counts = {len(self.names), len(self.dtype_names), len(self.shapes)}
        if len(counts) != 1:
            raise ValueError("`names`, `dtype_names` and `shapes` have different lengths")


class GlooWeightTransferEngine(WeightTransferEngine):  # type: ignore[misc]
    """Receives checkpoint tensors, which the model loads one by one."""

    init_info_cls = GlooInitInfo
    update_info_cls = GlooUpdateInfo

    _group: Any = None

    def init_transfer_engine(self, init_info: GlooInitInfo) -> None:
        """Joins the group of the trainer; a trainer opens a new one for every version."""
        parallel = self.parallel_config
        number = parallel.data_parallel_index * parallel.world_size + parallel.rank
        self._group = None
        store = torch.distributed.TCPStore(
            init_info.master_address,
            init_info.master_port,
            init_info.world_size,
            is_master=False,
            timeout=timedelta(seconds=TRANSFER_TIMEOUT),
        )
        rank = init_info.rank_offset + number
        self._group = gloo_group(store, rank, init_info.world_size, TRANSFER_TIMEOUT)

    def start_weight_update(self) -> None:
        """Prepares the model for tensors in checkpoint format."""
        from vllm.model_executor.model_loader.reload import (  # type: ignore[import-not-found]
            initialize_layerwise_reload,
        )

        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        """Completes the model."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receives tensors. Without an accelerator there is nothing to synchronize."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: GlooUpdateInfo) -> None:
        """Receives tensors and loads them."""
        if self._group is None:
            raise RuntimeError(f"the server has not joined the group {GROUP!r} of a trainer")
        for name, dtype, shape in zip(
            update_info.names, update_info.dtype_names, update_info.shapes
        ):
            tensor = receive(self._group, getattr(torch, dtype), shape)
            self.model.load_weights([(name, tensor.to(self.device))])

    def shutdown(self) -> None:
        """Leaves the group."""
        self._group = None
