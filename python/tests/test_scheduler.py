"""The scheduler with real worker processes."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import rollway as rw


@rw.workflow
async def answers(task, model):
    reply = await model.chat([{"role": "user", "content": str(task.raw_task)}])
    return float(reply.text)


async def hangs(task, model):
    await asyncio.Event().wait()


def tasks(workflow, count, **fields):
    return [rw.Task(workflow=workflow, raw_task=number, **fields) for number in range(count)]


def test_a_plain_script(config):
    with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
        scheduler.schedule(tasks(answers, 20, repeat_times=2), 1)
        assert scheduler.has_step(1)
        statuses, experiences = scheduler.get_results(1).result()
        assert [status.task_id for status in statuses] == list(range(20))
        assert all(status.ok and status.total_runs == 2 for status in statuses)
        assert statuses[3].metrics[0]["reward"] == 3.0
        assert "time/task_execution" in statuses[3].metrics[0]
        rewards = [(one.eid.task, one.eid.run, one.reward) for one in experiences]
        assert rewards == [(task, run, float(task)) for task in range(20) for run in range(2)]
        assert not scheduler.has_step(1)
        assert scheduler.dynamic_timeout() > 0


async def counts_far(task, model):
    return rw.Experience(tokens=np.arange(len(task.raw_task)), prompt_length=1)


def test_more_than_a_socket_holds_comes_through(config):
    with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
        rows = ["x" * (1_000_000 + number) for number in range(6)]
        scheduler.schedule([rw.Task(workflow=counts_far, raw_task=row) for row in rows], 1)
        statuses, experiences = scheduler.get_results(1).result()
    assert all(status.ok for status in statuses), statuses
    for row, one in zip(rows, experiences, strict=True):
        assert np.array_equal(one.tokens, np.arange(len(row)))


async def test_an_event_loop(config):
    async with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
        scheduler.schedule(tasks("answers", 3), 1)
        scheduler.schedule(tasks(answers, 2, is_eval=True, repeat_times=4), "1/eval")
        statuses, payloads = await scheduler.get_payload_results(1)
        assert len(statuses) == len(payloads) == 3
        evaluated = await scheduler.get_statuses("1/eval")
        assert evaluated[1].metrics[0]["reward/mean@4"] == 1.0
        scheduler.schedule(tasks(answers, 2), 2)
        await scheduler.wait_all(timeout=30)
        statuses, payloads = await scheduler.drain_batch_payload_results(2)
        assert len(statuses) == 2 and len(payloads) == 2
        scheduler.schedule(tasks(answers, 2), 3)
        await scheduler.wait_all()
        scheduler.discard_completed_results(3)
        assert not scheduler.has_step(3)


async def test_giving_up_takes_nothing(config):
    async with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
        scheduler.schedule([*tasks(answers, 3), rw.Task(workflow=hangs)], 1)
        waiting = asyncio.create_task(scheduler.get_statuses(1))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        # As late as can be: the answer is there, and its asker is cancelled before it is told.
        taken = []
        for _ in range(50):
            late = asyncio.create_task(scheduler.drain_batch_payload_results(1))
            await asyncio.sleep(0)
            time.sleep(0.002)
            if late.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await late
            else:
                taken += late.result()[1]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(scheduler.get_statuses(1), 0.05)
        statuses, payloads = await scheduler.get_payload_results(1, timeout=4.0)
        many = [rw.Experience.deserialize(payload) for payload in [*taken, *payloads]]
        assert sorted(one.eid.task for one in many) == [0, 1, 2]


async def test_time_is_up_and_partial_tasks(config):
    async def second_hangs(task, model):
        if task.raw_task == "hang" and model.history == [] and os.environ.pop("SEEN", None):
            await asyncio.Event().wait()
        os.environ["SEEN"] = "1"
        await model.chat([])

    async with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
        scheduler.schedule([rw.Task(workflow=second_hangs, raw_task="hang", repeat_times=2)], 1)
        statuses, payloads = await scheduler.get_payload_results(
            1, timeout=5.0, return_partial_tasks=True
        )
        assert [(s.completed_runs, s.cancelled_runs) for s in statuses] == [(1, {"timed_out": 1})]
        assert len(payloads) == 1 and not scheduler.has_step(1)
        scheduler.schedule(tasks(hangs, 1), 2)
        while not any(state.get("batch_id") == 2 for state in scheduler.get_all_state().values()):
            await asyncio.sleep(0.01)
        with pytest.raises(TimeoutError) as caught:
            await scheduler.wait_all(timeout=0.3)
        assert isinstance(caught.value, rw.WaitAllTimedOut) and caught.value.running == 1


async def test_an_abort_ends_waits(config):
    async with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
        scheduler.schedule([*tasks(hangs, 4), *tasks(answers, 1)], 1)
        waiting = asyncio.create_task(scheduler.get_statuses(1))
        while "busy" not in scheduler.get_key_state("state").values():
            await asyncio.sleep(0.02)
        began = time.monotonic()
        await scheduler.abort_batch(1)
        await waiting
        assert time.monotonic() - began < 5
        scheduler.schedule(tasks(answers, 4), 2)
        assert all(status.ok for status in await scheduler.get_statuses(2))


async def test_state_is_reported(config, caplog):
    async def tells(task, model):
        model.set_workflow_state({"stage": "thinking", "round": 3})
        await asyncio.Event().wait()

    async with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
        scheduler.schedule(tasks(tells, 1), 4)
        deadline = time.monotonic() + 20
        while "thinking" not in scheduler.get_key_state("stage").values():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        ((runner, stage),) = scheduler.get_key_state("stage").items()
        state = scheduler.get_runner_state(runner)
        assert stage == "thinking" and state["round"] == 3
        assert state["workflow_id"] == "4/0/0" and state["state"] == "busy"
        assert state["model_version"] == 0 and state["terminate_time"] is None
        assert set(scheduler.get_all_state()) == {0, 1}
        assert scheduler.get_runner_state(99) == {}
        with caplog.at_level("INFO", "rollway"):
            scheduler.print_all_state()
        header, *rows = caplog.records[-1].getMessage().strip().splitlines()
        assert header.split()[0] == "runner_id" and "stage" in header and len(rows) == 2
        # Those that work come first.
        assert rows[0].split()[0] == str(runner) and "-" in rows[1].split()
        await scheduler.abort_batch(4)


def test_bad_requests_leave_nothing_behind(config):
    with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
        with pytest.raises(ValueError, match="repeat_times"):
            scheduler.schedule([*tasks(answers, 1), rw.Task(workflow=answers, repeat_times=0)], 1)
        with pytest.raises(ValueError, match="repeat_times"):
            scheduler.schedule([rw.Task(workflow=answers, repeat_times=None)], 1)
        with pytest.raises(rw.UnknownWorkflow, match="did you mean `answers`"):
            scheduler.schedule(tasks("answer", 1), 1)
        with pytest.raises(TypeError, match="must be a rollway.Task"):
            scheduler.schedule([{"workflow": "answers"}], 1)
        with pytest.raises(TypeError, match="int or a str"):
            scheduler.schedule(tasks(answers, 1), 1.5)
        scheduler.schedule([], 1)
        assert not scheduler.has_step(1)
        assert scheduler.get_statuses(1, timeout=0.1).result() == []


@pytest.mark.parametrize("given", ["http://host:8000/v1", ["http://host:8000/v1"], [None]])
def test_addresses_are_no_models(config, given):
    for make in (rw.Scheduler, rw.RolloutCoordinator, rw.Explorer):
        with pytest.raises(TypeError, match="is no model: pass an object such as rw.models.OpenAI"):
            make(config, given)


def test_environment_and_output(config, caplog):
    config.explorer.env_vars["FLAVOUR"] = "vanilla"

    async def prints(task, model):
        print("flavour is", os.environ["FLAVOUR"])
        print("oh no", file=sys.stderr)
        assert not [key for key in os.environ if key.startswith("ROLLWAY_WORKER")]
        return model.history

    with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
        scheduler.schedule(tasks(prints, 1, is_eval=True), 1)
        (status,) = scheduler.get_statuses(1).result()
        assert status.ok, status.message
        deadline = time.monotonic() + 10
        while "flavour is vanilla" not in caplog.text or "oh no" not in caplog.text:
            assert time.monotonic() < deadline, caplog.text
            time.sleep(0.02)


def test_requests_of_http_clients_are_not_in_the_log(config, caplog):
    async def calls(task, model):
        for name in ("httpx", "httpx2", "openai", "urllib3"):
            logging.getLogger(name).info("HTTP Request: POST by %s", name)
            logging.getLogger(name).warning("retry by %s", name)
        logging.getLogger("flows").info("all calls are made")
        return model.history

    with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
        scheduler.schedule(tasks(calls, 1, is_eval=True), 1)
        (status,) = scheduler.get_statuses(1).result()
        assert status.ok, status.message
        deadline = time.monotonic() + 10
        while "all calls are made" not in caplog.text:
            assert time.monotonic() < deadline, caplog.text
            time.sleep(0.02)
    assert "retry by httpx2" in caplog.text
    assert "HTTP Request" not in caplog.text


async def test_it_can_be_stopped_and_started_again(config, caplog):
    config.explorer.runner_state_report_interval = 0.05
    scheduler = rw.Scheduler(config, [rw.models.Echo()])
    for batch in (1, 2):
        await scheduler.start()
        scheduler.schedule(tasks(answers, 4), batch)
        assert all(status.ok for status in await scheduler.get_statuses(batch))
        deadline = time.monotonic() + 10
        while "runner_id" not in caplog.text:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        caplog.clear()
        left = await scheduler.stop(timeout=5)
        assert left["running_runs"] == left["pending_runs"] == 0
        with pytest.raises(rw.Stopped):
            scheduler.schedule(tasks(answers, 1), 9)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
async def test_a_dropped_engine_stops_its_workers(config):
    scheduler = rw.Scheduler(config, [rw.models.Echo()])
    before = set(children_of(os.getpid()))
    await scheduler.start()
    workers = set(children_of(os.getpid())) - before
    # Two runners share a process; a guard ends what their workflows started.
    assert len(workers) == 2
    del scheduler
    assert await asyncio.to_thread(gone, workers)


SCRIPT = """
    import asyncio, os, sys
    import rollway as rw

    OFFSET = 100

    def helper(value):
        return value + OFFSET

    class InScript(rw.Workflow):
        async def run_async(self):
            assert os.getpid() != int(os.environ["PARENT"])
            reply = await self.model.chat([{"role": "user", "content": str(self.task.raw_task)}])
            experience = reply.experience
            experience.reward = helper(float(reply.text))
            return [experience]

    def closure(bonus):
        async def by_closure(task, model):
            await model.chat([])
            return bonus
        return by_closure

    def plain(task, model):
        print("plain was here")
        model.chat([])
        return 7

    if __name__ == "__main__":
        os.environ["PARENT"] = str(os.getpid())
        config = rw.Config()
        config.explorer.runner_per_model = 2
        with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
            workflows = [InScript, closure(3), plain, "beside:imported"]
            scheduler.schedule([rw.Task(workflow=w, raw_task=5) for w in workflows], 1)
            statuses, experiences = scheduler.get_results(1).result()
            print([status.message for status in statuses if not status.ok])
            print([experience.reward for experience in experiences])
            DONE
"""


def script(tmp_path, ending=()):
    (tmp_path / "beside.py").write_text(
        "async def imported(task, model):\n    await model.chat([])\n    return 9\n"
    )
    path = tmp_path / "job.py"
    path.write_text(textwrap.dedent(SCRIPT).replace("DONE", "\n        ".join(ending)))
    return [sys.executable, str(path)]


def test_workflows_of_a_script_reach_workers(tmp_path):
    # What lies where the job is started is none of the workers' business.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "rollway.py").write_text("raise ImportError('not me')")
    options = {"cwd": elsewhere, "capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run(script(tmp_path), **options)
    assert done.stdout.splitlines() == ["[]", "[105.0, 3.0, 7.0, 9.0]"], done.stderr
    # The program has not set up logging, so that what workers print is shown.
    assert "stream=stdout] plain was here" in done.stderr


def children_of(pid):
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/stat") as file:
                if entry.isdigit() and file.read().rpartition(")")[2].split()[1] == str(pid):
                    found.append(int(entry))
        except OSError:
            pass
    return found


def gone(pids, seconds=20):
    deadline = time.monotonic() + seconds
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_ctrl_c_interrupts_a_wait_and_no_worker_outlives_its_parent(tmp_path):
    ending = [
        "async def hangs(task, model): await asyncio.Event().wait()",
        "scheduler.schedule([rw.Task(workflow=hangs)] * 2, 2)",
        "try: print('waiting', flush=True); scheduler.get_statuses(2).result()",
        "except KeyboardInterrupt: print('interrupted', flush=True)",
        "scheduler.get_statuses(2).result()",
    ]
    command = script(tmp_path, ending)
    options = {"stdout": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen(command, **options) as process:
        for line in process.stdout:
            if line == "waiting\n":
                break
        # To the process group, as a terminal does.
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        workers = children_of(process.pid)
        assert workers
        process.kill()
    assert gone(workers)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_use_after_a_fork_is_refused(config):
    code = """
        import os, warnings, rollway as rw
        warnings.simplefilter("ignore")
        config = rw.Config()
        config.explorer.runner_per_model = 1
        with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
            child = os.fork()
            if child == 0:
                try:
                    scheduler.has_step(1)
                except rw.ForkError as error:
                    print(error.code, flush=True)
                os._exit(0)
            os.waitpid(child, 0)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "forked\n", done.stderr


async def fails(task, model):
    raise KeyError("anwser")


def run_failing(config, through):
    """Runs failing tasks by a scheduler, or by a coordinator."""
    if through == "scheduler":
        with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
            scheduler.schedule(tasks(fails, 3), 1)
            scheduler.get_statuses(1).result()
        return
    with rw.RolloutCoordinator(config, [rw.models.Echo()], sink=rw.MemorySink()) as coordinator:
        many = tasks(fails, 3)
        coordinator.submit_batch(batch_id=1, tasks=many, batch_type="train").result()
        coordinator.finalize_train_batch(1).result()


@pytest.mark.parametrize("through", ["scheduler", "coordinator"])
def test_the_first_failure_of_a_kind_is_logged_in_full(config, caplog, through):
    caplog.set_level("WARNING", "rollway")
    run_failing(config, through)
    messages = [one.getMessage() for one in caplog.records]
    (found,) = [message for message in messages if "run failed: KeyError: 'anwser'" in message]
    assert "in fails" in found and "further ones with this message are counted" in found
