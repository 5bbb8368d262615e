"""Plugin of vLLM: the weight transfer backend `gloo`, for servers without GPUs.

vLLM loads it in every process of an environment in which Rollway is installed. The backend is
chosen with `--weight-transfer-config '{"backend": "gloo"}'`, and used by
`rw.publish_weights(..., method="gloo")`.
"""

from __future__ import annotations

import logging


def register() -> None:
    """Registers the backend; vLLM calls it by the entry point `vllm.general_plugins`."""
    try:
        from vllm.distributed.weight_transfer.factory import (  # type: ignore[import-not-found]
            WeightTransferEngineFactory,
        )
    except ImportError:
        logging.getLogger(__name__).info("this vLLM has no weight transfer engines")
        return
    try:
        WeightTransferEngineFactory.register_engine(
            "gloo", "rollway.vllm_gloo", "GlooWeightTransferEngine"
        )
    except ValueError:
        # Registered by an earlier call in this process, or by vLLM itself.
        pass
