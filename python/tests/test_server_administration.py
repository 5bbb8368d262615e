"""Servers that are added to a running scheduler and removed from it."""

import asyncio

import pytest

import rollway as rw


async def until_running(scheduler, servers):
    """Waits until a number of servers run."""
    while [it["state"] for it in scheduler.servers()] != ["running"] * servers:
        await asyncio.sleep(0.02)


async def chat(task, model):
    await model.chat([{"role": "user", "content": "hello"}], max_tokens=4)
    return 1.0


async def test_servers_are_added_and_removed_while_a_scheduler_runs(config, tmp_path):
    first, second = rw.models.MockServer(seed=1), rw.models.MockServer(seed=2)
    weights = tmp_path / "v3"
    weights.mkdir()
    async with rw.Scheduler(config, [first]) as scheduler:
        await until_running(scheduler, 1)
        report = await scheduler.update_weights(str(weights), 3)
        assert report["complete"], report
        number = scheduler.add_server(second)
        await until_running(scheduler, 2)
        states = {it["id"]: it for it in scheduler.servers()}
        assert states[number]["trained"] and states[number]["missing"] is None
        # It has the latest weights before it is used.
        assert [it["version"] for it in states.values()] == [3, 3]
        with pytest.raises(ValueError, match="has the server"):
            scheduler.add_server(second)

        assert await scheduler.remove_server(first.base_url) == 0
        assert [it["id"] for it in scheduler.servers()] == [number]
        scheduler.schedule([rw.Task(workflow=chat, repeat_times=2)], batch_id=1)
        (status,), experiences = await scheduler.get_results(1)
        assert status.ok and len(experiences) == 2
        assert {experience.info["model_version"] for experience in experiences} == {3}
        with pytest.raises(rw.Error, match="has no server"):
            await scheduler.remove_server(first.base_url)
