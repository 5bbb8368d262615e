"""The gateway before models that are servers: one for a scheduler, a coordinator or a runner."""

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

#: A server, as the extension takes it: the model's name, whether it is trained, the kind of server,
#: its address, its key, and what it calls the model itself.
Server = tuple[str, bool, str, str, "str | None", "str | None"]

#: What the trained model is called if nobody gave it a name.
ROLLOUT = "rollout"


class ModelGateway:
    """The models of a job: those that are servers stand behind a gateway, which this one starts."""

    def __init__(
        self,
        config: Any,
        rollout: Sequence[Model],
        auxiliary: Sequence[Sequence[Model]],
    ) -> None:
        self._config = config
        # A simulated server lives as long as somebody holds its model.
        self._given = [*rollout, *(engine for engines in auxiliary for engine in engines)]
        self._servers: list[Server] = []
        self._taken: set[str] = set()
        self._gateway: Any = None
        self._attempts = 0
        #: The models as runs reach them, in the same order.
        self.models = self._behind(rollout, ROLLOUT, trained=True)
        self.auxiliary = [
            self._behind(engines, f"auxiliary-{position}", trained=False)
            for position, engines in enumerate(auxiliary)
        ]

    def _behind(self, engines: Sequence[Model], default: str, trained: bool) -> list[Model]:
        servers = [engine for engine in engines if isinstance(engine, OpenAI)]
        if not servers:
            return list(engines)
        kinds = {engine.records for engine in servers}
        if trained and len(kinds) > 1:
            raise Error(
                "some servers of the rollout model tell token ids and some (engine='openai') do "
                "not: a run would be recorded or not by chance"
            )
        # Engines of one model are one model to whoever calls it.
        name = next((engine.name for engine in servers if engine.name), default)
        if name in self._taken:
            name = f"{name}-{default}"
        self._taken.add(name)
        for engine in servers:
            server = engine.base_url.rstrip("/").removesuffix("/v1")
            self._servers.append(
                (name, trained, engine.engine, server, engine.api_key, engine.name)
            )
        served = {id(engine): GatewayModel(name, engine.engine, trained) for engine in servers}
        return [served.get(id(engine), engine) for engine in engines]

    @property
    def gateway(self) -> Any:
        """The gateway; none if there is nothing behind it, or it was not started."""
        return self._gateway

    def start(self) -> Any:
        """Starts the gateway, once, and returns it; none if no model is a server."""
        if self._gateway is None and self._servers:
            config = self._config if isinstance(self._config, Config) else Config()
            self._gateway = _rollway.Gateway(config.to_json(), self._servers)
            for model in self.models:
                connect(model, self._gateway.url)
            # Operators in this process call judges outside of any run.
            for engines in self.auxiliary:
                for model in engines:
                    connect(model, self._gateway.url, self._gateway.admin_key)
        return self._gateway

    def open(self, runs: Sequence[int]) -> tuple[int, dict[int, str]]:
        """Lets runs in that no scheduler started; returns what to close them by, and their keys."""
        self._attempts += 1
        gateway = self.start()
        if gateway is None:
            return self._attempts, {}
        keys = gateway.open(self._attempts, runs[0], len(runs))
        return self._attempts, dict(zip(runs, keys, strict=True))

    def close(self, attempt: int) -> None:
        """Ends runs that `open` let in."""
        if self._gateway is not None:
            self._gateway.close(attempt)

    def stop(self) -> None:
        """Ends the gateway."""
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            PendingResult("stop", lambda: gateway.stop(0.0), identity).result()

    def required(self) -> Any:
        """Returns the gateway, or raises if there is none."""
        if self._gateway is None:
            raise Error("there is no gateway: no model is a server, or nothing was started yet")
        return self._gateway
