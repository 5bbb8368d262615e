"""Workers on a Ray cluster of three nodes: what is killed, what comes, and that nothing is lost."""

import asyncio
import collections
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
from ray_nodes import Nodes, is_alive, launchers, until
from test_examples import environment, rollway, run, summary

import rollway as rw
from rollway.ray import messages

# One Ray cluster per process, shared by the tests of this module.
pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture(scope="module")
def cluster():
    before = dict(os.environ)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    nodes = Nodes()
    yield nodes
    import ray

    ray.shutdown()
    nodes.close()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def config(config, cluster):
    config.cluster.backend = "ray"
    config.cluster.address = cluster.address
    config.explorer.runner_per_model = 8
    config.explorer.runner_per_worker = 4
    config.explorer.max_timeout = 120
    # A task fails the first time it is suspected of the loss of a runner.
    config.explorer.failures.poison_limit = 1
    return config


@rw.workflow
async def gated(task, model):
    """Says that it has begun, and ends when it may."""
    begun, gate = task.raw_task
    with open(begun, "a") as file:  # noqa: ASYNC230
        file.write(f"{task.task_id}\n")
    while not os.path.exists(gate):  # noqa: ASYNC240
        await asyncio.sleep(0.02)
    return [rw.Experience(tokens=[1, 2, 3], prompt_length=1, reward=float(task.task_id))]


def tasks(folder, number, name="gate"):
    folder.mkdir(exist_ok=True)
    row = [str(folder / f"{name}-begun"), str(folder / name)]
    return [rw.Task(workflow=gated, raw_task=row, repeat_times=2) for _ in range(number)]


def begun(folder, name="gate"):
    path = folder / f"{name}-begun"
    return path.read_text().split() if path.exists() else []


def serving(scheduler):
    states = scheduler.get_all_state().values()
    return sum(state["state"] in ("idle", "busy") for state in states)


def waits(scheduler):
    states = scheduler.get_all_state().values()
    return [state["waiting"] for state in states if state.get("waiting")]


def check(statuses, experiences, batch, number):
    """Every task has ended well, and every experience is there once."""
    assert [(one.completed_runs, one.failed_runs) for one in statuses] == [(2, {})] * number
    counts = collections.Counter(one.eid.rid for one in experiences)
    expected = {f"{batch}/{task}/{run}" for task in range(number) for run in range(2)}
    assert set(counts) == expected and set(counts.values()) == {1}


def test_nodes_and_placers_die_and_nothing_is_lost(config, cluster, tmp_path):
    # One on each node, so that nothing but a clear conscience keeps its task from suspicion.
    config.cluster.cpus_per_worker = 2
    config.explorer.runner_per_model = 2
    config.explorer.runner_per_worker = 1
    with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
        until(lambda: serving(scheduler) == 2, "all runners are there")
        scheduler.schedule(tasks(tmp_path, 8), 1)
        until(lambda: len(begun(tmp_path)) >= 2, "all runners are at something")
        cluster.kill(cluster.nodes.pop())
        until(lambda: any("all is in use" in why for why in waits(scheduler)), "words about room")
        (tmp_path / "gate").touch()
        check(*scheduler.get_results(1).result(), 1, 8)
        # What ran on the node was begun again, and nothing else.
        assert len(begun(tmp_path)) > 16
        assert serving(scheduler) == 1
        cluster.nodes.append(cluster.add())
        until(lambda: serving(scheduler) == 2, "the pool has its size again")

        scheduler.schedule(tasks(tmp_path, 8, "second"), 2)
        until(lambda: len(begun(tmp_path, "second")) >= 2, "all runners are at something")
        (launcher,) = launchers()
        os.kill(launcher, signal.SIGKILL)
        (tmp_path / "second").touch()
        check(*scheduler.get_results(2).result(), 2, 8)
        until(lambda: serving(scheduler) == 2, "a launcher has placed all workers again")
        assert launchers() != [launcher]


FLOW = """
import asyncio
import os

async def gated(task, model):
    row = task.raw_task
    with open(row["begun"], "a") as file:
        file.write(f"{task.batch_id}/{task.task_id} {os.getpid()}\\n")
    await model.chat([{"role": "user", "content": row["question"]}], max_tokens=4)
    while not os.path.exists(row["gate"]):
        await asyncio.sleep(0.02)
    return 1.0
"""


@pytest.fixture
def job(cluster, tmp_path):
    """A job of three steps with four tasks each; those of the second wait at a gate."""
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "open").touch()
    rows = [
        {
            "question": f"{number:02}+01=",
            "begun": str(tmp_path / "begun"),
            "gate": str(tmp_path / ("gate" if 4 <= number < 8 else "open")),
        }
        for number in range(12)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "mode": "both",
        "project": "ray",
        "name": "loss",
        "checkpoint_root_dir": str(tmp_path / "jobs"),
        "algorithm": {"repeat_times": 2},
        "buffer": {
            "batch_size": 4,
            "total_steps": 3,
            "explorer_input": {
                "default_workflow_type": "flow:gated",
                "taskset": {
                    "path": str(tmp_path / "rows.jsonl"),
                    "format": {"prompt_key": "question"},
                },
            },
            "trainer_input": {"experience_buffer": {"storage_type": "sql"}},
        },
        # One runner on each node. A task fails the first time it is suspected of the loss of a
        # runner; a run that would be retried for its own fault counts as failed.
        "explorer": {
            "python": sys.executable,
            "rollout_model": {"engine_type": "tiny"},
            "runner_per_model": 2,
            "runner_per_worker": 1,
            "max_timeout": 300,
            "max_retry_times": 0,
            "failures": {"poison_limit": 1},
        },
        "cluster": {"backend": "ray", "address": cluster.address, "cpus_per_worker": 2},
        "synchronizer": {"sync_method": "checkpoint"},
    }
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(config))
    return path


def test_a_job_loses_a_node_in_the_middle_gets_another_and_loses_nothing_else(
    cluster, job, tmp_path
):
    def waiting():
        """Returns which tasks of the second step have begun, and in which processes."""
        path = tmp_path / "begun"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split() for line in lines if line.startswith("2/")]

    def begins(task):
        return sum(begun == task for begun, _ in waiting())

    command = rollway("run", str(job))
    process = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    output = []
    reading = threading.Thread(target=lambda: output.extend(process.stdout))
    reading.start()
    try:
        until(lambda: len({pid for _, pid in waiting()}) == 2, "both runners are at something")
        killed = cluster.kill(cluster.nodes.pop())
        (lost,) = {task for task, pid in waiting() if int(pid) in killed}
        before = begins(lost)
        # The other node is full; work goes on in a third process only when another has come.
        cluster.nodes.append(cluster.add())
        until(lambda: len({pid for _, pid in waiting()}) == 3, "a new runner is at something")
        (tmp_path / "gate").touch()
        process.wait(120)
    finally:
        process.kill()
        reading.join()
    assert process.returncode == 0, output
    assert begins(lost) > before

    folder = tmp_path / "jobs" / "ray" / "loss"
    final = json.loads((folder / "summary.json").read_text())
    assert (final["state"], final["steps"], final["tasks_submitted"]) == ("finished", 3, 12)
    assert final["trained_steps"] == 3
    assert (final["tasks_finished"], final["tasks_failed"], final["tasks_cancelled"]) == (12, 0, 0)
    assert (final["failed_runs"], final["experiences_delivered"]) == ({}, 24)
    assert delivered(folder) == dict.fromkeys(runs({1: 4, 2: 4, 3: 4}), 1)


def runs(sizes):
    """Returns the names of all runs of batches, of which the sizes are given."""
    return [f"{b}/{t}/{r}" for b, size in sizes.items() for t in range(size) for r in (0, 1)]


def delivered(folder):
    """Returns how often the experience of each run is in the buffer of a job."""
    database = next(folder.rglob("experience_buffer.db"))
    reader = rw.ExperienceReader(f"sqlite:///{database}", batch_size=1000, name="check", timeout=1)
    return collections.Counter(one.eid.rid for batch in reader for one in batch.experiences)


def test_a_worker_waits_until_a_node_has_its_resources(config, cluster, tmp_path):
    config.cluster.resources_per_worker = {"rare": 1}
    config.explorer.runner_per_model = 2
    (tmp_path / "gate").touch()
    scheduler = rw.Scheduler(config, [rw.models.Echo()])
    starting = threading.Thread(target=lambda: scheduler.start().result())
    starting.start()
    expected = "no node of the cluster has 1 CPU, 1 rare, of 3 nodes; the nearest lacks rare"
    until(lambda: waits(scheduler) == [expected] * 2, "the message about the missing resource")
    assert serving(scheduler) == 0 and starting.is_alive()
    node = cluster.add(rare=1)
    starting.join()
    scheduler.schedule(tasks(tmp_path, 4), 1)
    check(*scheduler.get_results(1).result(), 1, 4)
    scheduler.stop().result()
    cluster.kill(node)


SCRIPT = """
    import sys
    import rollway as rw

    async def solve(task, model):
        print("at work", flush=True)
        return 1.0

    config = rw.Config.from_dict({
        "cluster": {"backend": "ray", "address": sys.argv[1]},
        "explorer": {"runner_per_model": 2},
    })
    with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
        scheduler.schedule([rw.Task(workflow=solve, is_eval=True) for _ in range(4)], 1)
        assert all(status.ok for status in scheduler.get_statuses(1).result())
        states = scheduler.get_all_state().values()
        print("pids", *{state["location"].split()[-1] for state in states}, flush=True)
        sys.stdin.read()
"""


def test_nothing_outlives_a_script_that_is_killed(cluster, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    process = subprocess.Popen(
        [sys.executable, str(path), cluster.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        output = next(line for line in process.stdout if line.startswith("pids"))
        (launcher,), workers = launchers(process.pid), [int(pid) for pid in output.split()[1:]]
        assert workers and all(map(is_alive, [launcher, *workers]))
        process.kill()
    until(lambda: not any(map(is_alive, [launcher, *workers])), "all processes are gone")


def test_a_killed_actor_is_replaced_and_resumes(config, cluster, tmp_path):
    import ray

    ray.init(address=cluster.address, logging_level="WARNING")
    config.cluster.address = None
    config.explorer.runner_per_model = 4
    config.buffer.trainer_input.experience_buffer.storage_type = "sql"
    actor = rw.RolloutCoordinator.get_actor(config, [rw.models.Echo()], None)
    ray.get(actor.prepare.remote())
    ray.get(actor.submit_batch.remote(batch_id=1, tasks=tasks(tmp_path, 4), batch_type="train"))
    results = [actor.finalize_train_batch.remote(1)]
    # One caller waits, and others are not blocked.
    more = tasks(tmp_path, 4, "second")
    ray.get(actor.submit_batch.remote(batch_id=2, tasks=more, batch_type="train"))
    with pytest.raises(rw.errors.AlreadyActive) as refused:
        ray.get(actor.submit_batch.remote(batch_id=2, tasks=more, batch_type="train"))
    assert refused.value.batch_id == 2
    until(lambda: len(begun(tmp_path)) >= 4, "all runners are at something")

    first = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
    (tmp_path / "second").touch()
    os.kill(first, signal.SIGKILL)
    (tmp_path / "gate").touch()
    results.append(actor.finalize_train_batch.remote(2))
    for batch, result in enumerate(ray.get(results), 1):
        assert (result["batch_id"], result["ok_task_count"]) == (batch, 4)
        assert result["delivered_payload_count"] == 8
    assert list(ray.get(actor.restored.remote()).batches) == [1, 2]

    def armed(actor):
        submit = actor._coordinator.submit_batch

        async def last(**given):
            await submit(**given)
            os._exit(1)

        actor._coordinator.submit_batch = last

    # The batch is safe, the answer is not: Ray makes the call again, which is no second batch.
    ray.get(actor.__ray_call__.remote(armed))
    more = tasks(tmp_path, 2)
    ray.get(actor.submit_batch.remote(batch_id=4, tasks=more, batch_type="train"))
    assert ray.get(actor.finalize_train_batch.remote(4))["ok_task_count"] == 2
    with pytest.raises(rw.errors.NotRegistered):
        ray.get(actor.finalize_train_batch.remote(3))

    again = rw.RolloutCoordinator.get_actor(config, [rw.models.Echo()], None)
    second = ray.get(again.__ray_call__.remote(lambda _: os.getpid()))
    assert again == actor and second != first
    ray.get(actor.shutdown.remote())
    counts = delivered(pathlib.Path(config.checkpoint_root_dir))
    assert counts == dict.fromkeys(runs({1: 4, 2: 4, 4: 2}), 1)
    ray.kill(actor)


def test_the_example(cluster, tmp_path):
    run(
        *rollway("run", "examples/ray.yaml", f"checkpoint_root_dir={tmp_path}"),
        f"cluster.address={cluster.address}",
        "buffer.total_steps=2",
        "buffer.batch_size=4",
        "explorer.eval_interval=2",
    )
    final = summary(tmp_path, "ray")
    assert (final["mode"], final["steps"], final["tasks_failed"]) == ("both", 2, 0)
    assert final["experiences_delivered"] >= 2 * 4 * 8 * 2


def test_missing_ray_is_reported_with_the_install_command():
    without = "import sys; sys.modules['ray'] = None"
    without += "; from rollway.ray.launcher import main; main()"
    launcher = subprocess.Popen(
        [sys.executable, "-c", without], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with launcher:
        order = {"order": "open", "namespace": "a/b", "version": rw.__version__}
        launcher.stdin.write(json.dumps(order) + "\n")
        launcher.stdin.flush()
        output = json.loads(launcher.stdout.readline())
        assert launcher.wait() == 1
    assert output["event"] == "failed"
    assert "has no package `ray`" in output["message"]
    assert output["hint"] == "pip install rollway[ray]"


NODES = [
    {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 1.0}},
    {"Alive": True, "Resources": {"CPU": 8.0}},
    {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
]


@pytest.mark.parametrize(
    ("demand", "free", "why"),
    [
        ({"CPU": 1}, {"CPU": 12.0}, None),
        ({"CPU": 6, "GPU": 0}, {"CPU": 6.0}, None),
        (
            {"CPU": 6, "GPU": 1},
            {"CPU": 12.0},
            "no node of the cluster has 6 CPU, 1 GPU, of 2 nodes; the nearest lacks CPU",
        ),
        (
            {"CPU": 2, "GPU": 0.5},
            {"CPU": 7.0, "GPU": 0.25},
            "1 node of the cluster could give 2 CPU, 0.5 GPU, but all is in use: "
            "7 CPU, 0.25 GPU left",
        ),
    ],
)
def test_messages_have_the_reason_of_a_waiting_worker(demand, free, why):
    placing = "it is being placed, or the environment for it is being set up"
    assert (
        messages.cluster_too_small(demand, NODES) or messages.resources_in_use(demand, NODES, free)
    ) == (why or placing)
