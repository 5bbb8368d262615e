"""Ten tasks, four runs each, on four runners, with the package `rollway` alone:

    python examples/hello.py
"""

import rollway as rw


@rw.workflow
async def add(task: rw.Task, model: rw.Model) -> float:
    """Asks the model for a sum; the echo model repeats the question, so the reward is 0 or 1."""
    a, b = task.raw_task["a"], task.raw_task["b"]
    reply = await model.chat([{"role": "user", "content": f"{a} + {b} = {a + b}"}])
    return float(str(a + b) in reply.text)


def main() -> None:
    """Runs the tasks and prints their results."""
    config = rw.Config()
    config.explorer.runner_per_model = 4
    tasks = [
        rw.Task(workflow=add, repeat_times=4, raw_task={"a": a, "b": a + 1}) for a in range(10)
    ]
    with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
        scheduler.schedule(tasks, batch_id=1)
        statuses, experiences = scheduler.get_results(1).result()
    print(f"{sum(status.ok for status in statuses)} of {len(tasks)} tasks ended well")
    print(f"{len(experiences)} experiences, first reward {experiences[0].reward}")


if __name__ == "__main__":
    main()
