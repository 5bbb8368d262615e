"""Status of hanging runs, and their cancellation."""

import asyncio
import http.server
import json
import math
import os
import threading
import time

import pytest

import rollway as rw
from rollway.client._runner_states import span, table


@pytest.fixture
def mute():
    """The address of a server that is well, and never answers a call."""
    over = threading.Event()

    class Mute(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps({"object": "list", "data": [{"id": "mute"}]}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            over.wait()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mute)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    over.set()
    server.shutdown()
    server.server_close()


def blocks(task, model):
    rw.stage("compiling the tests")
    time.sleep(1000)


async def awaits(task, model):
    async def deep():
        await asyncio.gather(asyncio.Event().wait(), return_exceptions=True)

    with rw.stage("looking around"):
        pass
    await asyncio.wait_for(deep(), 1000)


async def asks(task, model):
    client = model.async_openai_client()
    messages = [{"role": "user", "content": "?"}]
    await client.chat.completions.create(model=model.name, messages=messages)


async def until(look, states):
    """Looks at states until there is what is looked for; the test as a whole has a limit."""
    while not look(found := states()):
        await asyncio.sleep(0.1)
    return found


async def test_runs_that_hang_are_shown_with_stage_and_place(config, mute):
    config.explorer.runner_per_model = 3
    config.explorer.max_timeout = 1000
    model = rw.models.OpenAI(base_url=mute, model="mute", api_key="none")
    async with rw.RolloutCoordinator(config, [model], sink=rw.MemorySink()) as coordinator:
        hanging = [blocks, awaits, asks]
        tasks = [rw.Task(workflow=workflow, repeat_times=1) for workflow in hanging]
        await coordinator.submit_batch(batch_id=3, tasks=tasks, batch_type="train")

        def hang(states):
            placed = sum("code_location" in state for state in states.values())
            return placed == len(hanging) and any("server" in state for state in states.values())

        states = await until(hang, coordinator.get_all_state)
        by_task = {state["task_id"]: state for state in states.values() if "task_id" in state}
        assert [by_task[task]["stage"] for task in range(3)] == [
            "compiling the tests",
            "running",
            "waiting for model mute",
        ]
        for task, function in enumerate(("blocks", "deep", "asks")):
            state = by_task[task]
            file, _, place = state["code_location"].partition(":")
            assert file.endswith("test_runner_status.py"), state
            assert place.split()[1].endswith(function), state
            assert (state["batch_id"], state["run_id"]) == (3, 0)
            assert state["workflow_id"] == f"3/{task}/0" and state["state"] == "busy"
            assert state["stage_seconds"] >= 0 and state["age"] >= 0
        assert by_task[2]["server"].startswith("http://127.0.0.1")
        lines = table(states, 100).splitlines()
        assert len(lines) == 4 and all(len(line) <= 100 for line in lines)
        assert "compiling the" in "".join(lines)

        assert await coordinator.cancel_run(3, 1, 0, reason="it hangs")
        assert not await coordinator.cancel_run(3, 1, 0, reason="again")
        assert not await coordinator.cancel_run(3, 99, 0, reason="never was")
        # A blocking one cannot be stopped but with its process.
        for task in (0, 2):
            assert await coordinator.cancel_run(3, task, 0, reason="it hangs")
        result = await coordinator.finalize_train_batch(3)
        assert result["metrics"]["rollout/cancelled_run_count/requested"] == 3
        await until(
            lambda states: all(state["state"] == "idle" for state in states.values()),
            coordinator.get_all_state,
        )


async def patient(task, model):
    """Takes long, and is at one thing all the time."""
    while time.time() < task.raw_task["until"] and not os.path.exists(task.raw_task["gate"]):
        await asyncio.sleep(0.02)
    return rw.Experience(tokens=[1, 2, 3], prompt_length=1, reward=1.0)


async def several(task, model):
    """Is quick, or hangs in a stage, or without a word."""
    stage = task.raw_task["hangs"]
    if stage == "running":
        await awaits(task, model)
    if stage is not None:
        with rw.stage(stage):
            await asyncio.Event().wait()
    return rw.Experience(tokens=[1, 2, 3], prompt_length=1, reward=1.0)


async def test_three_that_hang_stand_before_all_that_work(config, tmp_path):
    config.explorer.runner_per_model = 8
    config.explorer.runner_per_worker = 2
    config.explorer.max_timeout = 1000
    gate = tmp_path / "gate"

    def patiently(number, until):
        row = {"until": until, "gate": str(gate)}
        return [rw.Task(workflow=patient, raw_task=row, repeat_times=1) for _ in range(number)]

    def quick(hangs):
        return rw.Task(workflow=several, raw_task={"hangs": hangs}, repeat_times=1)

    async with rw.RolloutCoordinator(
        config, [rw.models.Echo()], sink=rw.MemorySink()
    ) as coordinator:
        # It is known what each takes: one some seconds, the other next to nothing.
        known = [*patiently(3, time.time() + 3), *[quick(None)] * 40]
        await coordinator.submit_batch(batch_id=1, tasks=known, batch_type="train")
        assert (await coordinator.finalize_train_batch(1))["ok_task_count"] == 43
        # Those who take long begin first, and work is done all the time.
        await coordinator.submit_batch(batch_id=2, tasks=patiently(3, math.inf), batch_type="train")

        def at_it(states):
            begun = [state for state in states.values() if state.get("stage") == "running"]
            return sum(state["batch_id"] == 2 for state in begun) == 3

        await until(at_it, coordinator.get_all_state)
        stages = ["compiling the tests", "running", "waiting for the sandbox"]
        hanging = [quick(stage) for stage in stages]
        await coordinator.submit_batch(batch_id=3, tasks=hanging, batch_type="train")
        more = [quick(None)] * 400
        await coordinator.submit_batch(batch_id=4, tasks=more, batch_type="train")

        def on_top(states):
            first = list(states.values())[:3]
            return {(one.get("batch_id"), one.get("stage")) for one in first} == {
                (3, stage) for stage in stages
            }

        states = list((await until(on_top, coordinator.get_all_state)).values())
        # No runner is stuck by that. Working runners are listed too, with a typical duration.
        assert not any(state["stuck"] and state["stage_seconds"] < 30 for state in states)
        working = [state for state in states if state.get("batch_id") == 2]
        assert len(working) == 3 and all(state["typical_seconds"] > 1 for state in working)
        assert min(one["age"] for one in working) > max(one["age"] for one in states[:3])
        gate.touch()
        for task in range(3):
            assert await coordinator.cancel_run(3, task, 0, reason="it hangs")
        assert (await coordinator.finalize_train_batch(2))["ok_task_count"] == 3
        assert (await coordinator.finalize_train_batch(4))["ok_task_count"] == 400


async def test_a_cancelled_run_leaves_other_runs_alone(config):
    async def some(task, model):
        if task.raw_task["hangs"]:
            await asyncio.Event().wait()
        return rw.Experience(tokens=[1, 2, 3], prompt_length=1, reward=1.0)

    config.explorer.concurrent_mode = "sequential"
    async with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
        tasks = [
            rw.Task(workflow=some, repeat_times=1, raw_task={"hangs": task == 1})
            for task in range(3)
        ]
        scheduler.schedule(tasks, 1)
        await until(
            lambda states: [state for state in states.values() if state.get("task_id") == 1],
            scheduler.get_all_state,
        )
        assert await scheduler.cancel_run(1, 1, 0, reason="it hangs")
        statuses, experiences = await scheduler.get_results(1)
        assert [status.ok for status in statuses] == [True, False, True]
        assert len(experiences) == 2


def test_stages_of_runs_are_set_from_their_threads():
    seen = {}

    def look(task, model):
        with rw.stage("outer"):
            with rw.stage("inner"):
                seen["inner"] = runner.state["stage"]
            seen["outer"] = runner.state["stage"]
            context = __import__("contextvars").copy_context()
            thread = threading.Thread(target=context.run, args=(rw.stage, "thread"))
            thread.start()
            thread.join()
            seen["thread"] = runner.state["stage"]
        return 1.0

    rw.stage("outside")
    runner = rw.WorkflowRunner(rw.Config(), rw.models.Echo())
    task = rw.Task(workflow=look, is_eval=True)
    status, _ = runner.run_task(task)
    assert status.ok, status.message
    assert seen == {"inner": "inner", "outer": "outer", "thread": "thread"}
    assert "stage" not in runner.state


def test_the_table_fits_and_has_human_readable_ages():
    spans = "0.4s 59s 1m01s 2h02m 1d01h".split()
    assert [span(value) for value in (0.44, 59.9, 61, 7322, 90000, None)] == [*spans, ""]
    hangs = {
        "state": "busy",
        "stuck": True,
        "age": 4000.0,
        "stage_seconds": 3999.0,
        "silent_for": 0.2,
    }
    hangs |= {"batch_id": "12/eval", "task_id": 3, "run_id": 1, "run_ids": [1, 2]}
    hangs |= {"stage": "waiting for model policy" * 3, "place": "flow.py:12 solve"}
    idle = {"state": "idle", "stuck": False, "age": 1.0, "silent_for": 0.1}
    states = {7: hangs, 1: idle}
    for width in (60, 80, 120):
        lines = table(states, width).splitlines()
        assert len(lines) == 3 and all(len(line) <= width for line in lines), lines
    for words in ("7 !", "1h06m", "…", "12/eval/3/1+1"):
        assert words in lines[1]
    assert table({}) == "no runners"
