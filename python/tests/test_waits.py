"""Every class that waits logs after five seconds: for what, how long, what to do."""

import asyncio
import json

import pytest

import rollway as rw


@rw.workflow
async def asks(task, model):
    """Asks the model."""
    await model.chat([{"role": "user", "content": "1+1="}])
    return 1.0


async def hangs(task, model):
    """Waits in a stage."""
    with rw.stage("waiting for the sandbox"):
        await asyncio.Event().wait()


async def stuck_scheduler(config):
    """Waits for a server that was never started."""
    dead = rw.models.OpenAI("http://127.0.0.1:9/v1", model="m", engine="vllm")
    async with rw.Scheduler(config, [dead]) as scheduler:
        scheduler.schedule([rw.Task(workflow=asks, raw_task={})], batch_id="dead")
        await scheduler.get_results("dead")


async def stuck_start(config):
    """Waits for workers that are not started."""
    config = rw.Config.from_dict(config.to_dict())
    config.cluster.backend, config.name = "manual", "manual"
    async with rw.Scheduler(config, [rw.models.Echo()]):
        pass


async def stuck_coordinator(config):
    """Waits for a straggler."""
    models, sink = [rw.models.Echo()], rw.MemorySink()
    async with rw.RolloutCoordinator(config, models, sink=sink) as coordinator:
        task = rw.Task(workflow=hangs, raw_task={})
        await coordinator.submit_batch(batch_id="slow", tasks=[task], batch_type="train")
        await coordinator.finalize_train_batch("slow")


async def stuck_explorer(config, path):
    """Waits for the weights of a trainer that is not there."""
    config = rw.Config.from_dict(config.to_dict())
    config.mode, config.name = "both", "alone"
    config.algorithm.repeat_times = 2
    config.buffer.batch_size, config.buffer.total_steps = 1, 2
    config.buffer.explorer_input = {
        "default_workflow_type": "asks",
        "taskset": {"path": str(path)},
    }
    async with rw.Explorer(config, rw.models.Echo()) as explorer:
        await explorer.explore()


async def stuck_reader(path):
    """Waits for experiences."""
    with rw.ExperienceReader(f"sqlite:///{path}", batch_size=64, timeout=60) as reader:
        await reader.aread()


#: Parts of the lines, in order.
LINES = (
    ("url=http://127.0.0.1:9", "server has not been reachable yet"),
    ("waits for a server of model m: http://127.0.0.1:9 is", "hint: start the server"),
    ("waits for its first runners", "hint: start the workers", "cluster: manual"),
    ("batch slow waits for 1 of 1 runs", "in stage `waiting for the sandbox`", "hint: "),
    ("no trainer is configured (trainer.command)",),
    ("waits after step 1 for weights of version 1; for 5", "synchronizer.sync_timeout", "hint: "),
    ("the reader waits for 64 experiences; for 5", "(`timeout`)", "hint: "),
)


def is_in(text, parts):
    """Tells whether a text has all parts, in order."""
    place = 0
    for part in parts:
        place = text.find(part, place)
        if place < 0:
            return False
    return True


async def test_every_class_says_what_it_waits_for(config, tmp_path, caplog):
    caplog.set_level("INFO", "rollway")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(4)))
    stuck = [
        asyncio.ensure_future(waiting)
        for waiting in (
            stuck_scheduler(config),
            stuck_start(config),
            stuck_coordinator(config),
            stuck_explorer(config, rows),
            stuck_reader(tmp_path / "empty.db"),
        )
    ]

    def missing():
        text = [record.getMessage() for record in caplog.records]
        return [parts for parts in LINES if not any(is_in(line, parts) for line in text)]

    async def all_lines():
        while missing():
            assert not any(one.done() for one in stuck), stuck
            await asyncio.sleep(0.1)

    try:
        await asyncio.wait_for(all_lines(), 60)
    except (TimeoutError, asyncio.TimeoutError):
        pytest.fail(f"not logged: {missing()}\n{caplog.text}")
    finally:
        for one in stuck:
            one.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)
