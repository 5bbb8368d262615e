"""The coordinator with real worker processes."""

import asyncio

import pytest

import rollway as rw


async def answers(task, model):
    reply = await model.chat([{"role": "user", "content": str(task.raw_task)}])
    return float(reply.text)


async def hangs(task, model):
    await asyncio.Event().wait()


async def raises(task, model):
    raise ValueError("no good")


def tasks(workflow, count, **fields):
    return [rw.Task(workflow=workflow, raw_task=number, **fields) for number in range(count)]


async def test_a_batch_from_submit_to_finalize(config):
    sink = rw.MemorySink()
    async with rw.RolloutCoordinator(config, [rw.models.Echo()], sink=sink) as coordinator:
        await coordinator.submit_batch(batch_id=1, tasks=tasks(answers, 4), batch_type="train")
        with pytest.raises(ValueError, match="already active") as caught:
            await coordinator.submit_batch(batch_id=1, tasks=[], batch_type="train")
        assert caught.value.batch_id == 1
        with pytest.raises(ValueError, match="expected eval") as caught:
            await coordinator.finalize_eval_batch(1)
        assert (caught.value.batch_type, caught.value.expected) == ("train", "eval")
        result = await coordinator.finalize_train_batch(1)
        assert result["batch_id"] == 1 and result["batch_type"] == "train"
        assert result["finished_task_count"] == 4 and result["complete"] is True
        assert result["metrics"]["rollout/reward/mean"] == 1.5
        assert result["metrics"]["rollout/finished_task_count"] == 4.0
        assert result["metrics"]["pipeline/payload_count"] == 4.0
        assert result["statuses"][2].metrics[0]["reward"] == 2.0
        assert sorted(one.reward for one in coordinator.sink.take()) == [0.0, 1.0, 2.0, 3.0]
        assert await coordinator.finalize_train_batch(1) == result
        assert coordinator.batch_state(1) is rw.BatchLifecycleState.FINALIZED
        with pytest.raises(KeyError, match="not registered"):
            await coordinator.finalize_train_batch(2)


async def test_evaluation(config):
    config.monitor.detailed_stats = True
    sink = rw.MemorySink()
    async with rw.RolloutCoordinator(config, [rw.models.Echo()], sink=sink) as coordinator:
        many = tasks(answers, 2, is_eval=True, repeat_times=2)
        await coordinator.submit_batch(batch_id="4/math", tasks=many, batch_type="eval")
        result = await coordinator.finalize_eval_batch("4/math", timeout=60)
        assert result["metrics"]["eval/math/reward/mean@2/mean"] == 0.5
        assert coordinator.sink.take() == []


async def test_a_timeout_loses_nothing(config):
    sink = rw.MemorySink()
    async with rw.RolloutCoordinator(config, [rw.models.Echo()], sink=sink) as coordinator:
        mixed = [*tasks(answers, 2), *tasks(hangs, 1)]
        await coordinator.submit_batch(batch_id=1, tasks=mixed, batch_type="train")
        finished = 0
        while finished < 2:
            with pytest.raises(TimeoutError, match=r"^Timeout waiting for batch 1\. ") as caught:
                await coordinator.finalize_train_batch(1, timeout=0.3)
            finished = caught.value.finished
        assert finished == 2 and caught.value.expected == 3
        result = await coordinator.abort_batch(1, reason="enough", keep_partial_results=True)
        assert result["state"] == "aborted" and result["reason"] == "enough"
        assert len(coordinator.sink.take()) == 2
        assert await coordinator.abort_batch(77, reason="unknown") is None


async def test_a_sink_that_fails_is_asked_again(config):
    calls = []

    def sink(batch_id, payloads):
        calls.append((batch_id, len(payloads)))
        if len(calls) == 1:
            raise OSError("disk full")
        return {"stored": len(payloads)}

    async with rw.RolloutCoordinator(config, [rw.models.Echo()], sink=sink) as coordinator:
        await coordinator.submit_batch(batch_id=3, tasks=tasks(answers, 2), batch_type="train")
        with pytest.raises(rw.SinkFailed, match="disk full"):
            await coordinator.finalize_train_batch(3)
        result = await coordinator.finalize_train_batch(3)
        assert result["metrics"]["stored"] == 2.0
        assert calls == [(3, 2), (3, 2)]
        payload = rw.Experience.serialize_many([])
        assert await coordinator.process_experiences([payload]) == {"stored": 1.0}
        assert calls[-1] == (None, 1)


async def test_failed_tasks_are_reported_as_failed(config):
    async with rw.RolloutCoordinator(config, [rw.models.Echo()]) as coordinator:
        mixed = [*tasks(answers, 1), *tasks(raises, 2)]
        await coordinator.submit_batch(batch_id=1, tasks=mixed, batch_type="train")
        result = await coordinator.finalize_train_batch(1)
        assert result["metrics"]["rollout/failed_task_count"] == 2.0
        assert result["metrics"]["rollout/failed_run_count/workflow"] == 2.0
        assert (result["ok_task_count"], result["failed_task_count"]) == (1, 2)
        assert result["failed_run_count"] == {"workflow": 2}
        assert result["dropped_payload_count"] == {} and result["cancelled_task_count"] == 0
        assert "ValueError: no good" in result["statuses"][1].message


def test_a_job_that_only_evaluates_has_no_pipeline(config):
    config.mode = "bench"
    with rw.RolloutCoordinator(config, [rw.models.Echo()]) as coordinator:
        with pytest.raises(RuntimeError, match="not initialized"):
            coordinator.process_experiences([]).result()
        assert coordinator.shutdown(timeout=5).result()["running_runs"] == 0


def test_states_are_texts():
    assert rw.BatchLifecycleState.PENDING == "pending"
    assert [state.name for state in rw.BatchLifecycleState] == [
        "PENDING",
        "RUNNING",
        "FINALIZING",
        "FINALIZED",
        "ABORTED",
    ]


def test_a_full_memory_refuses_instead_of_dropping():
    sink = rw.MemorySink(max_bytes=10)
    assert sink(1, [b"x" * 8]) == {"pipeline/payload_count": 1.0}
    with pytest.raises(BufferError, match="remove them"):
        sink(2, [b"x" * 8])
