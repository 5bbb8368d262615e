"""Models of running OpenAI-compatible servers."""

from __future__ import annotations

from typing import Literal, cast

from rollway._rollway import server_kinds
from rollway.errors import Error
from rollway.models.base import Model, RunModel

Engine = Literal["openai", "vllm", "sglang", "llama_cpp"]

ENGINES = tuple(name for name, _, _ in server_kinds())


class OpenAI(Model):
    """A model of a running OpenAI-compatible server:

        rw.models.OpenAI("http://127.0.0.1:8000/v1", model="qwen", engine="vllm")

    The scheduler starts a gateway in front of it. All calls of a run go there with its run key and
    are recorded: `model.chat`, `model.generate`, clients of the `openai` package, and any other
    client with `model.base_url` and `model.api_key`. If a workflow returns only a reward, the
    recorded turns become its experiences.

    `engine` is the server kind. A plain `openai` server reports no token ids, so nothing is
    recorded: workflows must return their own experiences, or run in evaluation. `model` is the
    server's name of the model; `None`: its only one.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        api_key: str | None = None,
        engine: Engine = "openai",
    ) -> None:
        engine = cast(Engine, engine.lower())
        if engine not in ENGINES:
            raise ValueError(f"engine is one of {', '.join(ENGINES)}, not {engine!r}")
        if not base_url.startswith(("http://", "https://")):
            raise ValueError(
                f"base_url is an address such as http://host:8000/v1, not {base_url!r}"
            )
        self.base_url: str = base_url
        self.name = model
        self.api_key: str | None = api_key or None
        self.engine = engine
        self.records: bool = engine != "openai"

    def bind(self, is_async: bool, key: str | None = None) -> RunModel:
        raise Error(
            f"the model at {self.base_url} is reached through a gateway: give it to a Scheduler, "
            "a RolloutCoordinator or a WorkflowRunner"
        )
