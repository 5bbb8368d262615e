"""mini-swe-agent with its model through litellm: it works until its limit of steps."""

import os
import tempfile

os.environ["MSWEA_SILENT_STARTUP"] = "1"
os.environ["MSWEA_COST_TRACKING"] = "ignore_errors"
os.environ["MSWEA_GLOBAL_CONFIG_DIR"] = tempfile.mkdtemp()

import minisweagent  # noqa: E402
from call_report import finish  # noqa: E402
from minisweagent.agents.default import DefaultAgent  # noqa: E402
from minisweagent.environments.local import LocalEnvironment  # noqa: E402
from minisweagent.models.litellm_model import LitellmModel  # noqa: E402

model = LitellmModel(
    model_name="openai/policy",
    model_kwargs={
        "api_base": os.environ["OPENAI_BASE_URL"],
        "api_key": os.environ["OPENAI_API_KEY"],
        "max_tokens": 24,
    },
)
# What a random model asks for must not be executed here.
environment = LocalEnvironment(cwd=tempfile.mkdtemp(), timeout=5, env={"PATH": ""})
agent = DefaultAgent(
    model,
    environment,
    system_template="You can execute commands.",
    instance_template="{{task}}",
    step_limit=3,
    cost_limit=0,
)
result = agent.run("List the files.")
assert agent.n_calls == 3, result
finish(minisweagent, calls=3, experiences=None, texts=[])
