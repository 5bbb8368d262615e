"""Operators in Python, from the configuration to the buffer."""

import asyncio
import sqlite3
import threading
from typing import ClassVar

import pytest

import rollway as rw


async def answers(task, model):
    reply = await model.chat([{"role": "user", "content": str(task.raw_task)}])
    return float(reply.text)


@pytest.fixture
def job(config, tmp_path):
    """A configuration that writes to SQLite, with the given operators."""

    def make(*operators):
        ours = config.buffer.trainer_input.experience_buffer
        ours.storage_type, ours.path = "sql", f"sqlite:///{tmp_path}/out.db"
        listed = [one if isinstance(one, dict) else {"name": one} for one in operators]
        config.data_processor.experience_pipeline.operators = listed
        return config

    return make


def stored(tmp_path):
    with sqlite3.connect(tmp_path / "out.db") as database:
        rows = database.execute("SELECT experience_bytes FROM experience").fetchall()
    return [experience for (row,) in rows for experience in rw.Experience.deserialize_many(row)]


async def train(coordinator, batch_id):
    many = [rw.Task(workflow=answers, raw_task=number) for number in range(4)]
    await coordinator.submit_batch(batch_id=batch_id, tasks=many, batch_type="train")
    return await coordinator.finalize_train_batch(batch_id)


class Keep:
    """Drops rewards below a limit, and says so."""

    def __init__(self, least):
        self.least = least

    def process(self, experiences):
        kept = [one for one in experiences if one.reward >= self.least]
        for one in kept:
            one.info["seen"] = True
        reasons = {"too_low": len(experiences) - len(kept)}
        return kept, {"filtered": reasons, "highest": max(one.reward for one in kept), "words": "x"}


@rw.operator("judge")
class Judge:
    """Waits, in an event loop of its own, with a model of its own."""

    seen: ClassVar[list[str]] = []

    def set_auxiliary_models(self, models):
        self.model = models[0][0]

    async def prepare(self):
        self.loop = asyncio.get_running_loop()

    async def process(self, experiences):
        assert asyncio.get_running_loop() is self.loop
        reply = await self.model.chat([{"role": "user", "content": "5"}])
        for one in experiences:
            one.reward += float(reply.text)
        self.seen.append(threading.current_thread().name)
        learned = {0: {"indices": [3, 4], "values": [0.25, 0.75]}}
        return experiences, {"selector_metric": learned}

    async def close(self):
        self.seen.append("closed")


@rw.operator("moody")
class Moody(rw.Operator):
    """Raises the first time."""

    calls = 0

    def process(self, experiences):
        type(self).calls += 1
        if self.calls == 1:
            experiences.clear()
            raise ValueError("not today")
        return experiences, {}


async def test_operators_are_named_in_the_configuration(job, tmp_path):
    name = f"{__name__}:Keep"
    config = job({"name": name, "args": {"least": 1.0}}, "judge")
    Judge.seen.clear()
    models = [rw.models.Echo()]
    async with rw.RolloutCoordinator(config, models, [models]) as coordinator:
        result = await train(coordinator, 1)
        metrics = result["metrics"]
        assert metrics["experience_pipeline/Keep/filtered/too_low"] == 1.0
        assert metrics["experience_pipeline/Keep/filtered_count"] == 1.0
        assert metrics["experience_pipeline/highest"] == 3.0
        assert "experience_pipeline/words" not in metrics
        assert metrics["time/experience_pipeline/Keep"] > 0.0
        assert metrics["time/experience_pipeline/judge"] > 0.0
        assert metrics["experience_pipeline/stored_count"] == 3.0
        learned = [{0: {"indices": [3, 4], "values": [0.25, 0.75]}}]
        assert coordinator.take_feedback() == learned and coordinator.take_feedback() == []
    assert len(Judge.seen) == 2 and Judge.seen[1] == "closed"
    found = stored(tmp_path)
    assert sorted(one.reward for one in found) == [6.0, 7.0, 8.0]
    assert all(one.info["seen"] and one.advantages is not None for one in found)


async def test_an_operator_that_raises_once_loses_nothing(job, tmp_path):
    Moody.calls = 0
    async with rw.RolloutCoordinator(job("moody"), [rw.models.Echo()]) as coordinator:
        with pytest.raises(rw.SinkFailed, match="`moody` failed: ValueError: not today") as caught:
            await train(coordinator, 1)
        assert "test_pipeline.py" in str(caught.value) and "raise ValueError" in str(caught.value)
        assert coordinator.batch_state(1) is rw.BatchLifecycleState.RUNNING
        assert stored(tmp_path) == []
        result = await coordinator.finalize_train_batch(1)
        assert result["metrics"]["experience_pipeline/stored_count"] == 4.0
        assert await coordinator.finalize_train_batch(1) == result
    assert Moody.calls == 2
    assert len(stored(tmp_path)) == 4


class Odd:
    def process(self, experiences):
        return experiences


class Twice:
    def process(self, experiences):
        return [*experiences, *experiences], {}


class Unready:
    ready = False

    def prepare(self):
        if not self.ready:
            raise ConnectionError("no judge")

    def process(self, experiences):
        return experiences, {}


async def test_errors_of_operators_are_reported(job):
    payload = rw.Experience(tokens=[1, 2], prompt_length=1, reward=0.5).serialize()
    for operator, words in [(Odd, "a pair of experiences and metrics"), (Twice, "twice")]:
        config = job(f"{__name__}:{operator.__name__}")
        async with rw.RolloutCoordinator(config, [rw.models.Echo()]) as coordinator:
            with pytest.raises(rw.PipelineFailed, match=words):
                await coordinator.process_experiences([payload])
    coordinator = rw.RolloutCoordinator(job(f"{__name__}:Unready"), [rw.models.Echo()])
    with pytest.raises(rw.PipelineFailed, match="ConnectionError: no judge"):
        await coordinator.prepare()
    Unready.ready = True
    async with coordinator:
        await coordinator.process_experiences([payload])


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        ("no_such_module:Name", "ModuleNotFoundError"),
        (f"{__name__}:answers", "a class with process"),
        ({"name": f"{__name__}:Keep", "args": {"leest": 1}}, "leest"),
        ("jugde", "did you mean `judge`"),
    ],
)
async def test_invalid_operators_are_refused_with_their_key(job, operator, words):
    with pytest.raises(rw.ConfigError, match=words) as caught:
        await rw.RolloutCoordinator(job(operator), [rw.models.Echo()]).prepare()
    assert "data_processor.experience_pipeline.operators[0]" in str(caught.value)
    if "did you" not in words:
        assert caught.value.__cause__ is not None
