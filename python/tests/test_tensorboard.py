"""TensorBoard event files of a job, read by TensorBoard itself, compared number by number.

The writer is an example binary, so that this test needs no built wheel.
"""

import json
import logging
import math
import random
import struct
import subprocess

import pytest
from programs import program
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util import tensor_util

# More than any of the curves has: the accumulator would draw a sample otherwise.
EVERYTHING = {"scalars": 0, "tensors": 0}


@pytest.fixture
def write(tmp_path):
    """Returns a function that writes lines in a process of their own, and the curves' folder."""
    binary = program("ROLLWAY_MONITOR_BIN")

    def write(*lines):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        subprocess.run([binary, str(tmp_path)], input=text, text=True, check=True, timeout=60)
        (folder,) = tmp_path.glob("**/monitor/tensorboard")
        return folder

    return write


def load(folder):
    curves = EventAccumulator(str(folder), size_guidance=EVERYTHING)
    curves.Reload()
    return curves


def points(curves, tag):
    return [(event.step, event.value) for event in curves.Scalars(tag)]


def single(value):
    """Returns a number as files have it, in single precision."""
    return struct.unpack("f", struct.pack("f", value))[0]


def test_every_number_is_read_back(write):
    dice = random.Random(7)
    tags = ["rollout/reward/mean", "rollout/time/run_execution/max", "eval/a b/reward/mean@8", "π"]
    expected = {tag: [] for tag in tags}
    expected_loss = []
    lines = [{"began": 0}]
    for step in range(1, 600):
        metrics = {tag: dice.choice([0.0, -1.5, 1e30, dice.random()]) for tag in tags}
        lines.append({dice.choice(["step", "eval"]): step, "metrics": metrics})
        for tag, value in metrics.items():
            expected[tag].append((step, single(value)))
        if step % 7 == 0:
            lines.append({"trained": step // 7, "metrics": {"trainer/loss": 1 / step}})
            expected_loss.append((step // 7, single(1 / step)))
    folder = write(*lines)

    explorer = load(folder / "explorer")
    assert sorted(explorer.Tags()["scalars"]) == sorted(tags)
    for tag in tags:
        assert points(explorer, tag) == expected[tag]
    trainer = load(folder / "trainer")
    assert trainer.Tags()["scalars"] == ["trainer/loss"]
    assert points(trainer, "trainer/loss") == expected_loss


def test_a_new_process_continues_the_curves(write, caplog):
    reward = "rollout/reward/mean"

    def steps(life, first, last):
        begun = [{"began": first - 1}]
        return begun + [
            {"step": step, "metrics": {reward: life + step / 100}}
            for step in range(first, last + 1)
        ]

    write(*steps(1, 1, 5))
    # The first process was killed when steps 4 and 5 were told, but not kept: they come again.
    write(*steps(2, 4, 6))
    folder = write(*steps(3, 7, 9))
    explorer = folder / "explorer"
    assert len(list(explorer.iterdir())) == 3
    with caplog.at_level(logging.ERROR):
        curves = load(explorer)
    lives = [1, 1, 1, 2, 2, 2, 3, 3, 3]
    expected = [(step, single(life + step / 100)) for step, life in enumerate(lives, start=1)]
    assert points(curves, reward) == expected


def test_the_configuration_is_logged_as_text(write):
    curves = load(write({"began": 3}) / "explorer")
    assert curves.SummaryMetadata("config").plugin_data.plugin_name == "text"
    (event,) = curves.Tensors("config")
    text = tensor_util.make_ndarray(event.tensor_proto).item().decode()
    assert event.step == 3
    assert all(line.startswith("    ") for line in text.splitlines())
    assert json.loads(text)["monitor"]["monitor_type"] == ["tensorboard"]


def test_the_loader_of_the_web_application_takes_them_as_scalars(write):
    folder = write({"began": 0}, {"step": 1, "metrics": {"a": 0.5, "b": 0.0}})
    (file,) = (folder / "explorer").iterdir()
    values = [
        value
        for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value
        if value.tag != "config"
    ]
    assert [value.metadata.plugin_data.plugin_name for value in values] == ["scalars", "scalars"]
    numbers = [tensor_util.make_ndarray(value.tensor).item() for value in values]
    assert numbers == [0.5, 0.0]


def test_a_torn_end_hides_nothing_before_it(write):
    lines = [{"step": step, "metrics": {"a": step}} for step in range(1, 20)]
    folder = write({"began": 0}, *lines)
    (file,) = (folder / "explorer").iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])
    assert points(load(folder / "explorer"), "a") == [(step, step) for step in range(1, 19)]
    # A process that was killed in the middle of a write does not hide what comes after it.
    write({"began": 18}, {"step": 19, "metrics": {"a": math.pi}})
    last = points(load(folder / "explorer"), "a")[-1]
    assert last == (19, single(math.pi))
