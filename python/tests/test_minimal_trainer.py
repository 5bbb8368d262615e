"""The shortest trainer of `docs/trainer.md`: it trains, its old weights are deleted, it resumes."""

import pathlib
import re
import subprocess
import sys

from test_mistakes import ROLLWAY, SMALL, Command

import rollway as rw

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "trainer.md"

#: The part that the page leaves to the reader.
MODEL = """
import json
import numpy as np

class Model:
    steps = 0

    def load(self, folder):
        print("loads", folder.name, flush=True)

    def state_dict(self):
        return {"w": np.zeros(1, dtype=np.float32)}

model = Model()

def learn(model, batch):
    model.steps += 1
"""


def shortest_trainer():
    _, section = PAGE.read_text().split("## The shortest trainer\n")
    return re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1)


def test_the_shortest_trainer_resumes(tmp_path):
    subprocess.run([*ROLLWAY, "init", "job"], cwd=tmp_path, check=True, capture_output=True)
    job = tmp_path / "job"
    (job / "my_model.py").write_text(MODEL)
    (job / "train.py").write_text(shortest_trainer())
    server = Command("mock-server", "--port", 0, "--tokens-per-second", 0, cwd=tmp_path)
    try:
        server.wait_for("(Ctrl-C stops it)")
        url = next(word for word in server.text.split() if word.startswith("http://"))
        keys = [
            *SMALL,
            f"explorer.rollout_model.base_url={url}/v1",
            "trainer.max_checkpoints_to_keep=2",
            "buffer.train_batch_size=4",
            "name=minimal",
        ]
        folder = job / "checkpoints" / "tutorial" / "minimal"
        for steps, loaded in ((4, None), (6, 4)):
            steps_key = f"buffer.total_steps={steps}"
            variables = {"ROLLWAY_PYTHON": sys.executable}
            run = Command("run", "server.yaml", *keys, steps_key, cwd=job, env=variables)
            assert run.end() == 0, run.text
            assert rw.latest_version(folder) == steps, run.text
            assert (f"loads global_step_{loaded}" in run.text) == (loaded is not None), run.text
            kept = sorted(path.name for path in folder.glob("global_step_*"))
            assert kept == [f"global_step_{steps - 1}", f"global_step_{steps}"], run.text
    finally:
        server.kill()
