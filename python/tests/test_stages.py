"""Deadlines of stages, in workflows and in the configuration."""

import asyncio

import pytest

import rollway as rw


def run(config, workflow):
    runner = rw.WorkflowRunner(config, rw.models.Echo())
    return runner.run_task(rw.Task(workflow=workflow, raw_task={}, is_eval=True))


async def test_a_stage_ends_at_its_deadline_with_its_name():
    with pytest.raises(
        rw.StageTimeout, match="`compile` exceeded its deadline of 0.01 s"
    ) as caught:
        async with rw.stage("compile", timeout=0.01):
            await asyncio.Event().wait()
    assert (caught.value.stage, caught.value.seconds) == ("compile", 0.01)
    async with rw.stage("compile", timeout=1000):
        pass
    # Nothing is left that could cancel later code.
    await asyncio.sleep(0.02)


async def test_other_errors_and_cancellations_pass_through():
    with pytest.raises(KeyError):
        async with rw.stage("compile", timeout=1000):
            raise KeyError("own")

    async def waits():
        async with rw.stage("compile", timeout=1000):
            await asyncio.Event().wait()

    task = asyncio.ensure_future(waits())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(rw.StageTimeout, match="inner"):
        async with rw.stage("outer", timeout=1000):
            async with rw.stage("inner", timeout=0.01):
                await asyncio.Event().wait()


@pytest.mark.parametrize("name", ["setup", "agent", "reward", "teardown"])
def test_configured_deadlines_fail_the_run_with_a_timeout(config, name):
    setattr(config.explorer.stages, f"{name}_timeout", 0.05)

    async def hangs(task, model):
        async with rw.stage(name):
            await asyncio.Event().wait()

    status, _ = run(config, hangs)
    assert status.failed_runs == {"timeout": 1}
    assert f"the stage `{name}` exceeded its deadline of 0.05 s" in status.message


def test_the_reward_function_of_a_built_in_workflow_has_a_deadline(config):
    config.explorer.stages.reward_timeout = 0.05

    async def hangs(response, truth):
        await asyncio.Event().wait()

    runner = rw.WorkflowRunner(config, rw.models.Echo())
    row = {"question": "?", "answer": "!"}
    format = {"prompt_key": "question", "response_key": "answer"}
    task = rw.Task(
        workflow="simple_workflow", reward_fn=hangs, raw_task=row, format_args=format, is_eval=True
    )
    status, _ = runner.run_task(task)
    assert status.failed_runs == {"timeout": 1}, status.message
    assert "the stage `rewarding` exceeded" in status.message
