"""Workflows of a notebook: cells of a `__main__` that has no file, in a loop that runs already."""

import subprocess
import sys
import textwrap

CELLS = [
    """
    import rollway as rw

    FACTOR = 3

    class Number:
        def __init__(self, value):
            self.value = value

    def scaled(number):
        return Number(number.value * FACTOR)

    async def solve(task, model):
        await model.chat([])
        return float(scaled(task.raw_task["number"]).value)

    class Solve(rw.Workflow):
        def run(self):
            reward = float(scaled(self.task.raw_task["number"]).value)
            return [rw.Experience(tokens=[1, 2], prompt_length=1, reward=reward)]

    class Model(rw.models.Echo):
        pass

    config = rw.Config()
    config.explorer.runner_per_model = 1

    def tasks():
        return [rw.Task(workflow=one, raw_task={"number": Number(5)}) for one in (solve, Solve)]
    """,
    """
    with rw.Scheduler(config, [Model()]) as scheduler:
        scheduler.schedule(tasks(), 1)
        statuses, experiences = scheduler.get_results(1, timeout=60).result()
        print([one.reward for one in experiences], [status.message for status in statuses])
    """,
    """
    scheduler = rw.Scheduler(config, [Model()])
    await scheduler.start()
    scheduler.schedule(tasks(), 1)
    print([one.reward for one in (await scheduler.get_results(1, timeout=60))[1]])
    """,
    # A cell is changed and executed again, while the workers stay.
    """
    FACTOR = 7

    async def solve(task, model):
        await model.chat([])
        return 1.0

    scheduler.schedule(tasks(), 2)
    print([one.reward for one in (await scheduler.get_results(2, timeout=60))[1]])
    await scheduler.stop()
    print(rw.WorkflowRunner(config, Model()).run_task(tasks()[0])[0].ok)
    """,
]

# As a kernel does it: one loop, one namespace, and cells that may await.
KERNEL = """
import ast, asyncio, inspect, sys

async def execute(cells):
    for number, cell in enumerate(cells):
        code = compile(cell, f"<cell {number}>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        coroutine = eval(code, vars(sys.modules["__main__"]))
        if inspect.isawaitable(coroutine):
            await coroutine

asyncio.run(execute(CELLS))
"""


def test_workflows_of_a_notebook_reach_workers(tmp_path):
    cells = [textwrap.dedent(cell) for cell in CELLS]
    kernel = KERNEL.replace("CELLS", repr(cells))
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run([sys.executable, "-"], input=kernel, **options)
    assert done.stdout.splitlines() == [
        "[15.0, 15.0] [None, None]",
        "[15.0, 15.0]",
        "[1.0, 35.0]",
        "True",
    ], done.stderr
