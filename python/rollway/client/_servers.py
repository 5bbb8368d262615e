"""Servers of a running scheduler or coordinator: list, add, remove."""

from __future__ import annotations

from typing import Any

from rollway.client._gateway import ModelGateway
from rollway.client._pending import PendingResult
from rollway.models.openai import OpenAI


class ServerAdministration:
    """Methods of classes with a gateway."""

    def _model_gateway(self) -> ModelGateway:
        raise NotImplementedError

    def servers(self) -> list[dict[str, Any]]:
        """Returns the servers of all models with their states.

        `version` is the version of new tokens, `loaded_version` that of the loaded weights; they
        differ if the server does not report versions. `missing` describes missing endpoints.
        """
        found: list[dict[str, Any]] = self._model_gateway().required().servers()
        return found

    def add_server(self, model: OpenAI) -> int:
        """Adds a server of the rollout model; returns its id.

        It is used after its first successful health check, with the latest weights.
        """
        return self._model_gateway().add(model)

    def remove_server(self, base_url: str, timeout: float = 30.0) -> PendingResult[int]:
        """Removes a server of the rollout model; returns the number of aborted calls.

        It gets no new calls, and running ones are aborted after `timeout` seconds.
        """
        return self._model_gateway().remove(base_url, float(timeout))
