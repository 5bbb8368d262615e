"""Common parts of the scripts: the questions, and the report of their calls."""

import json
import os

QUESTION = "tell me of the sea"
MESSAGES = [{"role": "user", "content": QUESTION}]
SCHEMA = {
    "type": "object",
    "properties": {"word": {"type": "string"}},
    "required": ["word"],
}

#: True if the model can call tools.
SERVER_HAS_TOOLS = os.environ.get("SERVER_HAS_TOOLS") == "1"


def finish(package, *, calls, experiences, texts):
    """Prints the report: numbers of calls and experiences, and the texts that the client got."""
    version = getattr(package, "__version__", None)
    report = {"version": version, "calls": calls, "experiences": experiences, "texts": texts}
    print(json.dumps(report))
