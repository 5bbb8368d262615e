"""Any server that speaks the OpenAI API."""

from __future__ import annotations

from typing import Literal

from rollway._rollway import server_kinds
from rollway.errors import Error
from rollway.models.base import Model, RunModel

Engine = Literal["openai", "vllm", "sglang", "llama_cpp"]

ENGINES = tuple(server_kinds())


class OpenAI(Model):
    """A model behind an OpenAI-compatible server that runs already::

        rw.models.OpenAI("http://127.0.0.1:8000/v1", model="qwen", engine="vllm")

    Whoever it is given to starts a gateway before it: every call of a run goes there, with a key of
    that run, and is recorded: `model.chat`, `model.generate`, the clients of the `openai` package,
    and any other client that is given `model.base_url` and `model.api_key`. A workflow that returns
    only a reward gets the recorded turns as its experiences.

    `engine` says what kind of server it is. A plain `openai` server tells no token ids: then chat
    works and nothing is recorded, so that workflows return experiences of their own, or are
    evaluated. `model` is what the server calls the model; none if it has only one.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        api_key: str | None = None,
        engine: Engine = "openai",
    ) -> None:
        if engine not in ENGINES:
            raise ValueError(f"engine is one of {', '.join(ENGINES)}, not {engine!r}")
        if not base_url.startswith(("http://", "https://")):
            raise ValueError(
                f"base_url is an address such as http://host:8000/v1, not {base_url!r}"
            )
        self.base_url: str = base_url
        self.name = model
        self.api_key = api_key or None
        self.engine = engine
        self.records = engine != "openai"

    def bind(self, is_async: bool, key: str | None = None) -> RunModel:
        raise Error(
            f"the model at {self.base_url} is reached through a gateway: give it to a Scheduler, "
            "a RolloutCoordinator or a WorkflowRunner"
        )
