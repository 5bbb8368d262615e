"""Models: what workflows talk to.

A model is given to a scheduler or a runner (`rw.models.Echo()`); every run gets a handle of its own
on it, with its own history: the `model` argument of workflows.
"""

from rollway.models.base import Model, Reply, RunModel
from rollway.models.echo import Echo
from rollway.models.mock_server import MockServer
from rollway.models.openai import OpenAI
from rollway.models.tiny import Tiny

__all__ = ["Echo", "Model", "OpenAI", "Reply", "RunModel", "MockServer", "Tiny"]
