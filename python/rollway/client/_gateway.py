"""The gateway of a scheduler, a coordinator or a runner, in front of its inference servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollway import _rollway
from rollway.client._pending import PendingResult, identity
from rollway.config import Config
from rollway.errors import Error
from rollway.models.base import Model
from rollway.models.gateway import GatewayModel, connect
from rollway.models.openai import OpenAI

#: A server for the extension: model name, whether the model is trained, server kind, address, API
#: key, and the server's own name of the model.
Server = tuple[str, bool, str, str, "str | None", "str | None"]

#: Default name of the trained model.
ROLLOUT = "rollout"


class ModelGateway:
    """The models of a job, and the gateway in front of those that are servers."""

    def __init__(
        self,
        config: Any,
        rollout: Sequence[Model],
        auxiliary: Sequence[Sequence[Model]],
    ) -> None:
        self._config = config
        # Servers in this process stop with the last reference to their model.
        self._models = [*rollout, *(engine for engines in auxiliary for engine in engines)]
        self._servers: list[Server] = []
        self._names: set[str] = set()
        self._gateway: Any = None
        self._attempts = 0
        #: The models as runs call them, in the same order.
        self.models = self._with_gateway(rollout, ROLLOUT, trained=True)
        self.auxiliary = [
            self._with_gateway(engines, f"auxiliary-{position}", trained=False)
            for position, engines in enumerate(auxiliary)
        ]

    def _with_gateway(self, engines: Sequence[Model], default: str, trained: bool) -> list[Model]:
        servers = [engine for engine in engines if isinstance(engine, OpenAI)]
        if not servers:
            return list(engines)
        kinds = {engine.records for engine in servers}
        if trained and len(kinds) > 1:
            raise Error(
                "some servers of the rollout model report token ids and some (engine='openai') do "
                "not: use servers of one kind, so that every run is recorded"
            )
        # All engines of a model share one name.
        name = next((engine.name for engine in servers if engine.name), default)
        if name in self._names:
            name = f"{name}-{default}"
        self._names.add(name)
        for engine in servers:
            server = engine.base_url.rstrip("/").removesuffix("/v1")
            self._servers.append(
                (name, trained, engine.engine, server, engine.api_key, engine.name)
            )
        served = {id(engine): GatewayModel(name, engine.engine, trained) for engine in servers}
        return [served.get(id(engine), engine) for engine in engines]

    @property
    def gateway(self) -> Any:
        """The gateway; `None`: no model is a server, or not started."""
        return self._gateway

    def start(self) -> Any:
        """Starts the gateway once and returns it; `None`: no model is a server."""
        if self._gateway is None and self._servers:
            config = self._config if isinstance(self._config, Config) else Config()
            self._gateway = _rollway.Gateway(config.to_json(), self._servers)
            for model in self.models:
                connect(model, self._gateway.address)
            # Operators in this process call auxiliary models outside of runs.
            for engines in self.auxiliary:
                for model in engines:
                    connect(model, self._gateway.address, self._gateway.admin_key)
        return self._gateway

    def open(self, runs: Sequence[int]) -> tuple[int, dict[int, str]]:
        """Opens an attempt without a scheduler; returns its number and the run keys."""
        self._attempts += 1
        gateway = self.start()
        if gateway is None:
            return self._attempts, {}
        keys = gateway.open(self._attempts, runs[0], len(runs))
        return self._attempts, dict(zip(runs, keys, strict=True))

    def close(self, attempt: int) -> None:
        """Closes an attempt of `open`."""
        if self._gateway is not None:
            self._gateway.close(attempt)

    def stop(self) -> None:
        """Stops the gateway."""
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            PendingResult("stop", lambda: gateway.stop(0.0), identity).result()

    def add(self, model: OpenAI) -> int:
        """Adds a server of the rollout model to the running gateway; returns its id."""
        gateway = self.required()
        names = [name for name, trained, *_ in self._servers if trained]
        if not names:
            raise Error("the rollout model is not a server: there is none to add another one to")
        server = model.base_url.rstrip("/").removesuffix("/v1")
        added = (names[0], True, model.engine, server, model.api_key, model.name)
        number: int = gateway.add_server(added)
        # A server in this process stops with the last reference to its model.
        self._models.append(model)
        return number

    def remove(self, base_url: str, timeout: float) -> PendingResult[int]:
        """Removes a server of the rollout model; returns the number of aborted calls."""
        gateway = self.required()
        url = base_url.rstrip("/").removesuffix("/v1")
        servers = [server for server in gateway.servers() if server["trained"]]
        found = [server["id"] for server in servers if server["url"] == url]
        if not found:
            known = ", ".join(server["url"] for server in servers)
            raise Error(f"the rollout model has no server {url}: it has {known}")
        return PendingResult(
            "remove_server", lambda: gateway.remove_server(found[0], timeout), identity
        )

    def required(self) -> Any:
        """Returns the gateway; raises if there is none."""
        if self._gateway is None:
            raise Error("no gateway: no model is a server, or start() was not called")
        return self._gateway
