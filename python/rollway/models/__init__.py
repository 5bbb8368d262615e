"""Models that workflows call.

A scheduler or a runner takes a model (`rw.models.Echo()`). Every run gets its own handle on it,
with its own history: the `model` argument of workflows.
"""

from rollway.models.base import Model, Reply, RunModel
from rollway.models.echo import Echo
from rollway.models.mock_server import MockServer
from rollway.models.openai import OpenAI
from rollway.models.tiny import Tiny

__all__ = ["Echo", "Model", "OpenAI", "Reply", "RunModel", "MockServer", "Tiny"]
