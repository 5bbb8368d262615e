"""Workflows that do the worst: every task ends honestly, and every good run counts once."""

import asyncio
import collections
import os
import time

import rollway as rw

WAYS = ["good", "raise", "hang", "block", "exit", "rubbish", "leak"]


class Chaos(rw.Workflow):
    """Does what its task says."""

    async def run_async(self):
        way = self.task.raw_task["way"]
        if way == "raise":
            raise ValueError("as told")
        if way == "hang":
            await asyncio.Event().wait()
        if way == "block":
            time.sleep(600)
        if way == "exit":
            os._exit(3)
        if way == "rubbish":
            return [{"reward": 1}]
        if way == "leak":
            import resource

            resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
            hoard = []
            while True:
                hoard.append(bytearray(1 << 26))
        reply = await self.model.chat([{"role": "user", "content": "x"}])
        return [reply.experience]


EXPECTED = {
    "good": None,
    "raise": {"workflow"},
    "hang": {"timeout"},
    "block": {"timeout", "runner_lost"},
    "exit": {"runner_lost"},
    "rubbish": {"invalid_output"},
    # Out of memory is an exception or the end of the process, as the system likes, or takes long.
    "leak": {"workflow", "runner_lost", "timeout"},
}


async def test_every_task_ends_and_every_good_run_counts_once(config):
    config.explorer.runner_per_model = 4
    config.explorer.max_timeout = 1.0
    config.explorer.failures.poison_limit = 1
    ways = [WAYS[n % len(WAYS)] if n % 4 == 0 else "good" for n in range(84)]
    many = [rw.Task(workflow=Chaos, raw_task={"way": way}, repeat_times=1) for way in ways]
    async with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
        scheduler.schedule(many, 1)
        statuses, experiences = await scheduler.get_results(1, timeout=110)
        assert [status.task_id for status in statuses] == list(range(84))
        for status in statuses:
            way = ways[status.task_id]
            ended = status.completed_runs + sum(status.failed_runs.values())
            assert ended + sum(status.cancelled_runs.values()) == status.total_runs
            if EXPECTED[way] is None:
                assert status.ok, (way, status)
            else:
                assert not status.ok and set(status.failed_runs) <= EXPECTED[way], (way, status)
        seen = collections.Counter(one.eid.rid for one in experiences)
        good = {f"1/{task}/0" for task, way in enumerate(ways) if way == "good"}
        assert seen == dict.fromkeys(good, 1)
        # The pool is whole afterwards.
        scheduler.schedule([rw.Task(workflow=Chaos, raw_task={"way": "good"})] * 16, 2)
        assert all(status.ok for status in await scheduler.get_statuses(2, timeout=60))
        await asyncio.sleep(0)
        assert len(scheduler.get_all_state()) == 4
