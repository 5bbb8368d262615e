"""Behaviour of the API of Trinity-RFT's explorer. Signatures: test_seed_signatures.py."""

from __future__ import annotations

import asyncio
import importlib
import logging
import math
import queue
import threading
import time

import numpy as np
import pytest

import rollway as rw
from rollway.explorer import Explorer
from rollway.explorer.rollout_coordinator import (
    BatchLifecycleState,
    BatchState,
    RolloutCoordinator,
)
from rollway.explorer.scheduler import (
    CompletedTaskResult,
    RunnerWrapper,
    RunningTaskState,
    Scheduler,
    TaskWrapper,
    bootstrap_metric,
    calculate_task_level_metrics,
    sort_batch_id,
)
from rollway.explorer.workflow_runner import Status, WorkflowRunner

# Workflows of the tests.


def experience(reward: float = 1.0, **more) -> rw.Experience:
    return rw.Experience(tokens=[1, 2, 3], prompt_length=1, reward=reward, **more)


class Job(rw.Workflow):
    """Sleeps, fails or succeeds as its row says."""

    def run(self):
        row = self.task.raw_task or {}
        self.model.set_workflow_state({"seen": row.get("name", "")})
        time.sleep(row.get("sleep", 0))
        if row.get("fail"):
            raise ValueError("it failed")
        return [experience(metrics={"score": row.get("score", 1.0)})]


def job(repeat_times: int = 1, is_eval: bool = False, **row) -> rw.Task:
    return rw.Task(workflow=Job, raw_task=row, repeat_times=repeat_times, is_eval=is_eval)


@pytest.fixture
def config(config) -> rw.Config:
    config.explorer.max_timeout = 60
    return config


@pytest.fixture
def scheduler(config):
    with Scheduler(config, [rw.models.Echo()]) as one:
        yield one


def wait_until(condition, timeout: float = 20) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


# Data classes, filled from the core.


def test_task_wrapper_has_the_progress_of_a_task(config):
    config.explorer.max_repeat_times_per_runner = 1
    config.explorer.runner_per_model = 1
    with Scheduler(config, [rw.models.Echo()]) as scheduler:
        scheduler.schedule([job(2, sleep=0.8, score=0.5), job(fail=True)], 7)
        wait_until(lambda: scheduler.tasks(7)[0].completed_runs == 1)
        first = scheduler.tasks(7)[0]
        assert isinstance(first, TaskWrapper) and isinstance(first.task, rw.Task)
        assert first.task.workflow is Job and first.task.raw_task == {"sleep": 0.8, "score": 0.5}
        assert (first.batch_id, first.task.task_id) == (7, 0)
        assert (first.sub_task_num, first.finished_sub_task_num) == (2, 1)
        assert (first.completed_runs, first.total_runs, first.emitted) == (1, 2, False)
        assert [metrics["score"] for metrics in first.metrics] == [0.5]
        assert len(rw.Experience.deserialize_many(first.experience_payloads[0])) == 1
        assert first.first_error is None and first.repeat_times == 2 and first.run_id_base == 0
        scheduler.wait_all().result()
        first, second = scheduler.tasks(7)
        assert first.emitted and first.finished_sub_task_num == 2 and len(first.metrics) == 2
        assert second.emitted and "it failed" in second.first_error
        assert second.experience_payloads == []


def test_completed_task_results_stay_until_they_are_taken(scheduler):
    scheduler.schedule([job(2), job(fail=True)], "3/eval")
    scheduler.wait_all().result()
    good, bad = scheduler.completed_results("3/eval")
    assert isinstance(good, CompletedTaskResult)
    assert (good.batch_id, good.task_id, bad.task_id) == ("3/eval", 0, 1)
    assert good.status.ok and not bad.status.ok and bad.experience_payloads == []
    assert len(good.experience_payloads) == 2
    statuses, payloads = scheduler.get_payload_results("3/eval").result()
    assert [good.status, bad.status] == statuses and good.experience_payloads == payloads
    assert scheduler.completed_results("3/eval") == []


def test_running_task_state_names_task_and_runner(scheduler):
    assert scheduler.running_tasks() == []
    scheduler.schedule([job(sleep=30, name="long")], 1)
    wait_until(scheduler.running_tasks)
    (state,) = scheduler.running_tasks()
    assert isinstance(state, RunningTaskState) and isinstance(state.task, TaskWrapper)
    assert state.task.task.raw_task["name"] == "long" and state.restart_runner_on_cancel is True
    assert scheduler.get_runner_state(state.runner_id)["state"] == "busy"
    scheduler.abort_batch(1).result()


def test_status_of_2026_and_2025():
    status = Status(1, 2, [{"reward": 1.0}], "1/2 runs")
    assert (status.completed_runs, status.total_runs, status.ok) == (1, 2, False)
    assert status.metrics == [{"reward": 1.0}] and status.message == "1/2 runs"
    assert status.metric == {"reward": 1.0}
    assert Status(2, 2, [{"a": 1.0}, {"a": 3.0}]).metric == {"a": 2.0}
    old = Status(ok=True, metric={"reward": 0.5})
    assert old.ok and old.metric == {"reward": 0.5} and old.message is None
    assert old.metrics == [{"reward": 0.5}] and (old.completed_runs, old.total_runs) == (1, 1)
    assert Status(False, {"a": 1.0}, "why") == Status(ok=False, metric={"a": 1.0}, message="why")
    assert not Status(ok=False, metric={}).ok
    for wrong in ({}, {"completed_runs": 1}, {"ok": True, "completed_runs": 1}):
        with pytest.raises(TypeError):
            Status(**wrong)


# Functions.


def test_bootstrap_metric_takes_any_data():
    (mean, std), (high, _) = bootstrap_metric([1, 2, 3, 4, 5], 3, [np.mean, np.max])
    assert mean == pytest.approx(3.0, abs=0.1) and 0 < std < 1 and 4 < high < 5
    assert bootstrap_metric([1, 2], 1, [np.mean]) == bootstrap_metric(
        [1, 2], 1, [np.mean], 1000, 42
    )
    pairs = [(1.0, "a"), (0.0, "b"), (2.0, "a")]
    got = bootstrap_metric(pairs, 2, [lambda drawn: float(np.mean([one for one, _ in drawn]))])
    # The positions that NumPy's legacy generator draws.
    draws = np.random.RandomState(42)
    means = [np.mean([pairs[at][0] for at in draws.choice(3, 2)]) for _ in range(1000)]
    assert got == [(pytest.approx(np.mean(means)), pytest.approx(np.std(means)))]
    rows = [{"right": True}, {"right": False}]
    share = bootstrap_metric(rows, 4, [lambda drawn: sum(row["right"] for row in drawn) / 4], 50, 1)
    assert 0.3 < share[0][0] < 0.7
    with pytest.raises(ValueError, match="mine"):
        bootstrap_metric(rows, 1, [lambda _: raise_error(ValueError("mine"))])


def raise_error(error):
    raise error


def test_calculate_task_level_metrics():
    runs = [{"reward": 1.0}, {"reward": 0.0}]
    assert calculate_task_level_metrics(runs, is_eval=False) == {"reward": 0.5}
    evaluated = calculate_task_level_metrics(runs, is_eval=True)
    assert evaluated["reward/mean@2"] == 0.5 and evaluated["reward/std@2"] == 0.5


def test_sort_batch_id():
    assert sorted(["z", "2/eval", 3, 2], key=sort_batch_id) == [2, "2/eval", 3, "z"]


# RunnerWrapper.


def test_runner_wrapper_of_its_own(config):
    async def use() -> None:
        runner = RunnerWrapper(3, rw.models.Echo(), [rw.models.Echo()], config)
        await runner.update_state()
        assert runner.state == {}
        assert await runner.prepare() is None
        assert await runner.update_state() is None
        assert runner.state["state"] == "idle"
        task = TaskWrapper(job(), "4/set")
        status, payload, runner_id, seconds = await runner.run_with_retry(task, 2, 5, 30.0, True)
        assert status.ok and status.total_runs == 2 and runner_id == 3 and 0 < seconds < 30
        got = rw.Experience.deserialize_many(payload)
        assert [(one.eid.batch, one.eid.run) for one in got] == [("4/set", 5), ("4/set", 6)]
        # The form of 2025.
        task = TaskWrapper(job(), 1, run_id_base=2, repeat_times=1)
        status, experiences, runner_id = await runner.run_with_retry(task)
        assert status.ok and [one.eid.run for one in experiences] == [2] and runner_id == 3
        # Failures end the other runs of an attempt only without `collect_partial_runs`.
        task = TaskWrapper(rw.Task(workflow=second_fails), 1)
        status, *_ = await runner.run_with_retry(task, 3, 0, 30.0, True)
        assert (status.completed_runs, status.failed_runs) == (2, {"workflow": 1})
        status, *_ = await runner.run_with_retry(task, 3, 0, 30.0, False)
        assert (status.completed_runs, status.failed_runs) == (1, {"workflow": 2})
        await runner.update_state()
        before = runner.state["location"]
        assert await runner.restart_runner() is None
        await runner.update_state()
        assert runner.state["location"] != before
        # The timeout is that of an attempt.
        status, *_ = await runner.run_with_retry(TaskWrapper(job(sleep=60), 1), 1, 0, 0.5, True)
        assert status.failed_runs == {"timeout": 1}
        await runner.close()

    config.explorer.failures.timeout.retries = 0
    asyncio.run(use())


class CountsRuns(rw.Workflow):
    def run(self):
        if self.run_number() == 1:
            raise ValueError("the second run fails")
        return [experience()]

    def run_number(self) -> int:
        stage = importlib.import_module("rollway.stages").current()
        return stage.run


second_fails = CountsRuns


def test_runner_wrapper_of_a_pool(scheduler):
    assert sorted(scheduler.runners) == [0, 1]
    runner = scheduler.runners[1]
    scheduler.schedule([job(sleep=0.5) for _ in range(4)], 1)

    async def restart() -> None:
        await runner.update_state()
        before = runner.state["incarnation"]
        assert await runner.restart_runner() is None
        await runner.update_state()
        assert runner.state["incarnation"] > before
        status, *_ = await runner.run_with_retry(TaskWrapper(job(), 9), 1, 0, 30.0, True)
        assert status.ok
        await runner.close()

    asyncio.run(restart())
    statuses = scheduler.get_statuses(1).result()
    assert len(statuses) == 4 and all(status.ok for status in statuses), "no run is lost"
    with pytest.raises(rw.Error, match="runner 17"):
        asyncio.run(scheduler.runner(17).restart_runner())


# Scheduler.


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_task_done_callback_is_called_for_every_task(config):
    done = []
    called = threading.Event()

    class Observing(Scheduler):
        def task_done_callback(self, async_task):
            done.append(async_task)
            called.set()
            raise RuntimeError("an error of the hook has no effect")

    with Observing(config, [rw.models.Echo()]) as scheduler:
        scheduler.schedule([job(2)], 1)
        assert scheduler.get_statuses(1).result()[0].ok
        assert called.wait(10)
    (one,) = done
    status, payload, runner_id, seconds = one.result()
    assert one.done() and one.exception() is None and not one.cancelled()
    assert (one.batch_id, one.task_id, one.get_name()) == (1, 0, "1/0")
    assert status.ok and len(rw.Experience.deserialize_many(payload)) == 2
    assert runner_id in (0, 1) and 0 < seconds < 60
    assert Scheduler(config, [rw.models.Echo()]).task_done_callback(one) is None


@pytest.mark.parametrize("batch_type", ["train", "eval"])
def test_task_done_callback_of_a_coordinators_scheduler(config, batch_type):
    done = queue.Queue()
    with RolloutCoordinator(config, [rw.models.Echo()], sink=rw.MemorySink()) as one:
        tasks = [job(2, is_eval=batch_type == "eval", name="a")]
        one.submit_batch(batch_id="1/a", tasks=tasks, batch_type=batch_type).result()
        finalize = {"train": one.finalize_train_batch, "eval": one.finalize_eval_batch}[batch_type]
        finalize("1/a").result()
        # Tasks that ended before are not reported.
        one.scheduler.task_done_callback = done.put
        one.submit_batch(batch_id="2/b", tasks=tasks, batch_type=batch_type).result()
        ended = done.get(timeout=20)
        finalize("2/b").result()
        one.scheduler.task_done_callback = lambda task: done.put("replaced")
        one.submit_batch(batch_id="3/c", tasks=tasks, batch_type=batch_type).result()
        assert done.get(timeout=20) == "replaced" and done.empty()
    status, payload, runner_id, seconds = ended.result()
    assert (ended.batch_id, ended.task_id, status.ok) == ("2/b", 0, True)
    # Evaluations keep metrics, no experiences.
    stored = 2 if batch_type == "train" else 0
    assert len(rw.Experience.deserialize_many(payload)) == stored
    assert runner_id in (0, 1) and 0 < seconds < 60


def test_scheduling_before_start_queues(config):
    scheduler = Scheduler(config, [rw.models.Echo()])
    assert scheduler.schedule([job(), job()], 1) is None
    assert scheduler.has_step(1) and len(scheduler.tasks(1)) == 2
    assert scheduler.start().result() is None
    assert len(scheduler.get_statuses(1).result()) == 2
    assert isinstance(scheduler.stop().result(), dict)


def test_methods_that_return_none(scheduler):
    scheduler.schedule([job()], 1)
    assert scheduler.wait_all(timeout=30, clear_timeout_tasks=True).result() is None
    assert scheduler.discard_completed_results(1) is None
    assert scheduler.has_step(1) is False
    scheduler.schedule([job(sleep=30)], 2)
    aborted = scheduler.abort_batch(2, return_partial_tasks=False, restart_runners=True)
    assert aborted.result() is None
    assert scheduler.print_all_state() is None


def test_collecting(scheduler):
    scheduler.schedule([job(2), job()], 1)
    statuses, experiences = scheduler.get_results(1).result()
    assert [status.task_id for status in statuses] == [0, 1] and len(experiences) == 3
    assert scheduler.get_payload_results(1).result() == ([], [])
    scheduler.schedule([job(), job(sleep=30)], 2)
    statuses = scheduler.get_statuses(2, min_num=1, timeout=30).result()
    assert len([status for status in statuses if status.ok]) == 1
    scheduler.schedule([job()], 3)
    scheduler.wait_all().result()
    statuses, payloads = scheduler.drain_batch_payload_results(3).result()
    assert len(statuses) == len(payloads) == 1


def test_timeout_zero_does_not_wait(scheduler):
    scheduler.schedule([job(sleep=30)], 1)
    began = time.monotonic()
    assert scheduler.get_statuses(1, timeout=0, clear_timeout_tasks=False).result() == []
    assert scheduler.get_payload_results(1, timeout=0, clear_timeout_tasks=False).result()[0] == []
    with pytest.raises(TimeoutError):
        scheduler.wait_all(timeout=0, clear_timeout_tasks=False).result()
    assert time.monotonic() - began < 5 and scheduler.has_step(1)
    assert scheduler.dynamic_timeout(0) == 0
    scheduler.abort_batch(1).result()


def test_dynamic_timeout_after_one_small_batch(config):
    config.explorer.max_timeout = 20
    config.explorer.dynamic_timeout.enable = True
    config.explorer.dynamic_timeout.ratio = 3
    config.explorer.dynamic_timeout.warmup_min_steps = 1
    with Scheduler(config, [rw.models.Echo()]) as scheduler:
        assert scheduler.dynamic_timeout() == 20
        scheduler.schedule([job(sleep=0.3) for _ in range(4)], 1)
        scheduler.get_statuses(1).result()
        assert 0.9 <= scheduler.dynamic_timeout() < 5
        assert scheduler.dynamic_timeout(0.5) == 0.5


def test_states(scheduler, caplog):
    scheduler.schedule([job(2, name="a")], 1)
    scheduler.get_statuses(1).result()
    assert set(scheduler.get_all_state()) == {0, 1}
    # Entries of a workflow stay visible after its run, with the next heartbeat at the latest.
    wait_until(lambda: "a" in scheduler.get_key_state("seen").values())
    assert scheduler.get_runner_state(99) == {}
    with caplog.at_level(logging.INFO, logger="rollway"):
        scheduler.print_all_state()
    assert "runner_id" in caplog.text


# WorkflowRunner.


def test_workflow_runner(config):
    runner = WorkflowRunner(config, rw.models.Echo(), [rw.models.Echo()], 5)
    assert runner.runner_id == 5 and len(runner.auxiliary_models) == 1
    status, experiences = runner.run_task(job(), repeat_times=2, run_id_base=3)
    assert status.ok and [one.eid.run for one in experiences] == [3, 4]
    assert runner.state["seen"] == "", "workflow state stays visible after the run"


@pytest.mark.parametrize("mode", ["sequential", "asynchronous", "multi-threading"])
def test_workflow_runner_stops_at_the_first_failure(config, mode):
    config.explorer.concurrent_mode = mode
    begun = []

    async def second_fails(task, model):
        run = importlib.import_module("rollway.stages").current().run
        begun.append(run)
        if run == 1:
            raise ValueError("no")
        await asyncio.sleep(0 if run == 0 else 0.5)
        return experience()

    async def first_is_ended(task, model):
        if importlib.import_module("rollway.stages").current().run == 1:
            raise ValueError("no")
        await asyncio.sleep(0.5)

    runner = WorkflowRunner(config, rw.models.Echo())
    if mode != "sequential":
        # The message is that of the run that failed, not of a run that was ended for it.
        status, _ = runner.run_task(rw.Task(workflow=first_is_ended), 3, collect_partial_runs=False)
        assert "First error: workflow: ValueError: no" in status.message
    task = rw.Task(workflow=second_fails)
    status, experiences = runner.run_task(task, 3, collect_partial_runs=False)
    # Threads may fail the second run before the first one has returned.
    completed = {0, 1} if mode == "multi-threading" else {1}
    assert status.completed_runs == len(experiences) in completed
    assert status.total_runs == 3
    assert "First error: workflow: ValueError: no" in status.message
    assert begun == [0, 1] or mode != "sequential"
    status, experiences = runner.run_task(task, 3, collect_partial_runs=True)
    assert (status.completed_runs, len(experiences)) == (2, 2)


def test_begin_time_is_per_run(config):
    runner = WorkflowRunner(config, rw.models.Echo())
    seen = []

    def note(task, model):
        seen.append(runner.state["begin_time"])
        time.sleep(0.01)
        return experience()

    runner.run_task(rw.Task(workflow=note), 3)
    assert len(set(seen)) == 3


def test_metrics_that_are_no_numbers_are_ignored(config, caplog):
    runner = WorkflowRunner(config, rw.models.Echo())
    odd = {"good": 1, "name": "text", "list": [1], "array": np.float32(0.5), "none": None}
    odd["speed"] = float("nan")

    def workflow(task, model):
        return [experience(metrics=odd)]

    status, (one,) = runner.run_task(rw.Task(workflow=workflow))
    assert status.ok and one.metrics == {"good": 1.0, "array": 0.5}
    assert status.metric["good"] == 1.0 and "metric `name` is ignored" in caplog.text
    assert "metric `speed` is ignored: nan is not finite" in caplog.text


# Coordinator.


@pytest.fixture
def coordinator(config):
    with RolloutCoordinator(config, [rw.models.Echo()], sink=rw.MemorySink()) as one:
        yield one


def test_coordinator_attributes(config):
    config.monitor.detailed_stats = True
    models = [rw.models.Echo()]
    one = RolloutCoordinator(config, models)
    assert one.config is config and one.rollout_model is models and one.auxiliary_models == []
    assert one.detailed_stats is True and isinstance(one.logger, logging.Logger)
    assert one.running is False and one.scheduler is None and one.experience_pipeline is None
    assert one.pending_batches == {}
    assert config.ray_namespace == f"{config.project}/{config.name}"
    config.ray_namespace = "mine"
    assert config.cluster.namespace == "mine" == config.ray_namespace
    assert config.explorer.name and config.mode
    assert config.explorer.over_rollout.return_partial_tasks is False


def test_prepare_and_shutdown_can_be_repeated(config):
    one = RolloutCoordinator(config, [rw.models.Echo()])
    for step in (1, 2):
        assert one.prepare().result() is None
        assert one.prepare().result() is None
        assert one.running and isinstance(one.scheduler, Scheduler)
        one.submit_batch(batch_id=step, tasks=[job()], batch_type="train").result()
        result = one.finalize_train_batch(step).result()
        assert result["metrics"]["experience_pipeline/experience_count"] == 1
        payload = experience().serialize()
        stored = one.experience_pipeline.process_serialized_chunks([payload]).result()
        assert stored["experience_pipeline/experience_count"] == 1
        one.shutdown().result()
        assert not one.running and one.scheduler is None and one.experience_pipeline is None
        one.shutdown().result()


def test_batch_state_is_filled_from_the_core(coordinator):
    assert BatchState(1, "train", 0).completed_task_count == 0
    assert isinstance(BatchState(1, "train", 0).finalize_lock, asyncio.Lock)
    tasks = [job(), job(sleep=30)]
    submitted = coordinator.submit_batch(
        batch_id=4, tasks=tasks, batch_type="train", min_wait_num=1
    )
    assert submitted.result() is None
    wait_until(lambda: coordinator.pending_batches[4].completed_task_count == 1)
    state = coordinator.pending_batches[4]
    assert isinstance(state, BatchState) and state.state is BatchLifecycleState.RUNNING
    assert (state.batch_id, state.batch_type, state.expected_task_count) == (4, "train", 2)
    assert (state.min_wait_num, state.final_result) == (1, None)
    assert list(state.statuses) == [0] and state.statuses[0].ok
    assert len(coordinator.scheduler.running_tasks()) == 1
    result = coordinator.finalize_train_batch(4).result()
    assert result["finished_task_count"] == 1 and coordinator.pending_batches == {}


def test_result_of_a_train_batch(coordinator):
    coordinator.submit_batch(batch_id=1, tasks=[job(), job()], batch_type="train").result()
    result = coordinator.finalize_train_batch(1, timeout=30).result()
    assert {"batch_id", "batch_type", "finished_task_count", "metrics"} <= set(result)
    assert (result["batch_id"], result["batch_type"], result["finished_task_count"]) == (
        1,
        "train",
        2,
    )
    assert result["metrics"]["rollout/finished_task_count"] == 2.0
    assert result["metrics"]["rollout/score/mean"] == 1.0


def test_result_of_an_eval_batch(coordinator):
    task = job(2, is_eval=True)
    coordinator.submit_batch(batch_id="2/set", tasks=[task], batch_type="eval").result()
    result = coordinator.finalize_eval_batch("2/set", timeout=30).result()
    assert result["metrics"]["eval/set/finished_task_count"] == 1.0
    assert result["metrics"]["eval/set/score/mean@2"] == 1.0


def test_errors_have_the_types_of_the_seed(coordinator, config):
    other = RolloutCoordinator(config, [rw.models.Echo()])
    with pytest.raises(RuntimeError, match=r"prepare\(\) must be called first"):
        other.submit_batch(batch_id=1, tasks=[], batch_type="train").result()
    with pytest.raises(RuntimeError, match=r"prepare\(\) must be called first"):
        other.abort_batch(1, reason="none").result()
    with pytest.raises(RuntimeError, match="xperience pipeline is not initialized"):
        other.process_experiences([]).result()
    coordinator.submit_batch(batch_id=7, tasks=[job(sleep=30)], batch_type="train").result()
    with pytest.raises(ValueError, match="atch 7 is already active"):
        coordinator.submit_batch(batch_id=7, tasks=[], batch_type="train").result()
    with pytest.raises(KeyError, match="atch 9 is not registered"):
        coordinator.finalize_train_batch(9).result()
    with pytest.raises(ValueError, match="atch 7 is train, expected eval"):
        coordinator.finalize_eval_batch(7).result()
    with pytest.raises(TimeoutError, match=r"^Timeout waiting for batch 7\."):
        coordinator.finalize_train_batch(7, timeout=0).result()
    assert 7 in coordinator.pending_batches, "nothing is lost"
    coordinator.abort_batch(7, reason="enough", keep_partial_results=False).result()
    assert coordinator.batch_state(7) is BatchLifecycleState.ABORTED
    assert coordinator.abort_batch(99, reason="unknown").result() is None


def test_batches_without_tasks_and_ids_that_are_used_again(coordinator, caplog):
    for number in (1, 2):
        submitted = coordinator.submit_batch(batch_id=5, tasks=[], batch_type="train")
        assert submitted.result() is None and list(coordinator.pending_batches) == [5], number
        result = coordinator.finalize_train_batch(5).result()
        assert result["finished_task_count"] == 0 and coordinator.pending_batches == {}
        assert result["metrics"]["rollout/finished_task_count"] == 0.0
    assert coordinator.process_experiences([]).result() == {}
    coordinator.submit_batch(batch_id=6, tasks=[job(sleep=30)], batch_type="train").result()
    with caplog.at_level(logging.WARNING, logger=coordinator.logger.name):
        coordinator.abort_batch(6, reason="enough").result()
    assert "batch 6 is aborted: enough" in caplog.text


def test_mode_bench_has_no_pipeline(config):
    config.mode = "bench"
    with RolloutCoordinator(config, [rw.models.Echo()]) as one:
        assert one.experience_pipeline is None and one.scheduler is not None
        with pytest.raises(RuntimeError, match="not initialized"):
            one.process_experiences([]).result()
        one.submit_batch(batch_id="1/s", tasks=[job(is_eval=True)], batch_type="eval").result()
        assert one.finalize_eval_batch("1/s").result()["finished_task_count"] == 1


def test_mode_serve_has_no_scheduler(config):
    config.mode = "serve"
    sink = rw.MemorySink()
    with RolloutCoordinator(config, [rw.models.Echo()], sink=sink) as one:
        assert one.running and one.scheduler is None and one.experience_pipeline is not None
        assert one.get_all_state() == {}, "no runner is started"
        one.process_experiences([experience().serialize()]).result()
        assert len(sink.take()) == 1
        for call in (
            one.submit_batch(batch_id=1, tasks=[job()], batch_type="train"),
            one.finalize_train_batch(1),
            one.finalize_eval_batch("1/a"),
            one.abort_batch(1, reason="none"),
        ):
            with pytest.raises(RuntimeError, match="mode serve has no scheduler"):
                call.result()


# Explorer.


@pytest.fixture
def job_config(config, tmp_path):
    """A job of one step with built-in workflow, reward function and model."""
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"question": "01+01=", "answer": "002"}\n')
    config.mode = "explore"
    config.buffer.batch_size = config.buffer.train_batch_size = config.buffer.total_steps = 1
    config.buffer.explorer_input = {
        "default_workflow_type": "simple_workflow",
        "default_reward_fn_type": "exact_match",
        "taskset": {
            "path": str(path),
            "format": {"prompt_key": "question", "response_key": "answer"},
        },
    }
    config.explorer.rollout_model.engine_type = "tiny"
    config.synchronizer.sync_method = "checkpoint"
    config.synchronizer.sync_timeout = 60
    return config


def test_explorer_explores_beside_a_trainer(job_config, tmp_path):
    weights = tmp_path / "weights.safetensors"
    rw.models.Tiny.export(weights)

    def train(job_dir: str) -> None:
        with rw.Synchronizer(job_dir) as synchronizer:
            synchronizer.publish(weights, version=1)

    with Explorer(job_config) as explorer:
        trainer = threading.Thread(target=train, args=(explorer.job_dir,))
        trainer.start()
        assert explorer.explore().result(timeout=90) == job_config.explorer.name
        trainer.join()
        assert explorer.sync_weight().result() == 1
        tensor = explorer.get_weight("positions").result()
        assert isinstance(tensor, np.ndarray) and tensor.size > 0
        with pytest.raises(rw.WeightsError, match="no_such"):
            explorer.get_weight(name="no_such").result()


def test_explorer_sets_up_a_weight_sync_group(job_config):
    meta = [("lm_head.weight", "torch.bfloat16", (2, 2))]
    with Explorer(job_config, [rw.models.MockServer()]) as explorer:
        group = explorer.setup_weight_sync_group(
            master_address="127.0.0.1", master_port=29500, state_dict_meta=meta
        )
        assert group.result() == 2, "the trainer and one server"


def test_results_up_to_the_byte_limit_pass(config):
    """The limit is `explorer.limits.payload_bytes_per_run`, not that of one protocol message."""

    def large(task, model):
        tokens = np.zeros(20_000_000, dtype=np.int32)
        return [rw.Experience(tokens=tokens, prompt_length=1, reward=1.0)]

    with Scheduler(config, [rw.models.Echo()]) as scheduler:
        scheduler.schedule([rw.Task(workflow=large)], 1)
        (status,), (payload,) = scheduler.get_payload_results(1).result()
    assert status.ok, status.message
    assert len(payload) > 80_000_000


def test_a_long_line_without_an_end_takes_linear_time(config):
    def talkative(task, model):
        print("x" * 20_000_000, end="")
        return experience()

    with Scheduler(config, [rw.models.Echo()]) as scheduler:
        scheduler.schedule([rw.Task(workflow=talkative)], 1)
        (status,) = scheduler.get_statuses(1, timeout=60).result()
    assert status.ok and math.isfinite(status.metric["time/run_execution"])
    assert status.metric["time/run_execution"] < 20
