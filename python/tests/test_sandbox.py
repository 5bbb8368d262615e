"""Sandboxes: what they isolate, their limits and leases, and that none is left behind."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import sandbox_backends
from sandbox_processes import leases, marked, wait

import rollway as rw
from rollway.sandbox import leases as lease_module

#: Longest time in seconds until the reaper has ended sandboxes, on a loaded machine.
REAPED = 60


@pytest.fixture
def settings(tmp_path):
    return rw.sandbox.SandboxSettings(
        folder=str(tmp_path / "leases"),
        check_interval=0.05,
        start_timeout=30,
        starts_per_second=1000,
    )


def changed(settings, **values):
    return rw.sandbox.SandboxSettings(**{**vars(settings), **values})


async def test_a_local_sandbox_has_its_own_folder_and_environment(settings, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret of the engine")
    files = {"a.txt": "one", "deep/b.bin": b"\x00\xff"}
    async with rw.sandbox.local(files, settings=settings, env={"MINE": "yes"}) as box:
        assert leases(settings.folder) == [box.id]
        shown = await box.exec(["env"])
        names = {line.partition("=")[0] for line in shown.stdout.splitlines()}
        assert {"MINE", "HOME", "PATH"} <= names and "OPENAI_API_KEY" not in names
        seen = await box.exec("cat a.txt; cat >copy; pwd", stdin="typed")
        assert seen.ok and seen.stdout == f"one{box.folder}\n"
        assert await box.read_text("copy") == "typed"
        assert await box.read_file("deep/b.bin") == b"\x00\xff"
        await box.write_file(f"{box.home}/.config/x", "home")
        assert (await box.exec("cat ~/.config/x")).stdout == "home"
        assert (await box.exec(["no-such-program"])).exit_code == 127
        for path in ("../../etc/passwd", "/etc/passwd"):
            with pytest.raises(ValueError, match="outside of the sandbox"):
                await box.read_file(path)
        await box.exec("ln -s /etc/passwd link; mkfifo pipe")
        with pytest.raises(ValueError, match="outside of the sandbox"):
            await box.write_file("link", "x")
        with pytest.raises(ValueError, match="not a regular file"):
            await box.read_file("pipe")
        with pytest.raises(FileNotFoundError):
            await box.read_file("missing")
        folder, name = box.folder, box.id
        started = await box.exec("setsid sleep 1000 >/dev/null 2>&1 & chmod 500 deep")
        assert started.ok and marked([name])
    assert not os.path.exists(folder) and not marked([name])
    assert leases(settings.folder) == []
    with pytest.raises(rw.SandboxError, match="closed"):
        await box.exec(["true"])


async def test_a_timeout_ends_the_command_and_all_that_it_started(settings):
    async with rw.sandbox.local(settings=settings) as box:
        await box.exec("setsid sleep 1000 >/dev/null 2>&1 &")
        (server,) = marked([box.id])
        ended = await box.exec("setsid sleep 1000 & echo begun; sleep 1000", timeout=0.3)
        assert ended.timed_out and not ended.ok and ended.stdout == "begun\n"
        # Processes of earlier commands stay.
        assert marked([box.id]) == [server]
        waiting = asyncio.ensure_future(box.exec("touch begun; sleep 1000"))
        while not (await box.exec("test -e begun")).ok:
            pass
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert marked([box.id]) == [server]


async def test_a_background_process_does_not_hold_up_the_command(settings):
    async with rw.sandbox.local(settings=settings) as box:
        # It keeps the pipes of the outputs open.
        ended = await box.exec("sleep 1000 & echo started")
        assert ended.ok and ended.stdout == "started\n" and len(marked([box.id])) == 1


async def test_the_middle_of_a_long_output_is_dropped_and_counted(settings):
    async with rw.sandbox.local(settings=settings) as box:
        program = "import sys; sys.stdout.write('a' * 50_000 + 'b' * 50_000)"
        ended = await box.exec([sys.executable, "-c", program], max_output_bytes=1000)
        assert ended.stdout_dropped == 99_000 and ended.stderr_dropped == 0
        head, note, tail = ended.stdout.split("\n")
        assert (head, tail) == ("a" * 500, "b" * 500) and "99000 bytes omitted" in note
        small = await box.exec("echo fits", max_output_bytes=5)
        assert small.stdout == "fits\n" and small.stdout_dropped == 0


async def test_limits_of_processes(settings):
    limits = {"file_bytes": 1000, "open_files": 20, "cpu_time": 1, "memory_bytes": 2**30}
    async with rw.sandbox.local(settings=settings, **limits) as box:
        assert not (await box.exec("head -c 5000 /dev/zero >large")).ok
        assert len(await box.read_file("large")) == 1000
        shown = (await box.exec("ulimit -n; ulimit -v")).stdout.split()
        assert shown == ["20", str(2**20)]
        ended = await box.exec("while :; do :; done")
        assert ended.exit_code == -signal.SIGXCPU and not ended.timed_out
    small = changed(settings, max_file_bytes=10)
    async with rw.sandbox.local(settings=small) as box:
        await box.exec("echo 0123456789 >large")
        with pytest.raises(ValueError, match="larger than 10 bytes"):
            await box.read_file("large")
        with pytest.raises(ValueError, match="max_file_bytes"):
            await box.write_file("large", "0123456789\n")


async def test_further_sandboxes_wait_for_a_free_place(settings):
    settings = changed(settings, max_sandboxes=2)
    boxes = [rw.sandbox.local(settings=settings) for _ in range(3)]
    await boxes[0].start()
    await boxes[1].start()
    with pytest.raises(rw.SandboxError, match="2 of at most 2 exist"):
        await rw.sandbox.local(settings=changed(settings, start_timeout=0.1)).start()
    third = asyncio.ensure_future(boxes[2].start())
    await boxes[0].close()
    await third
    assert leases(settings.folder) == sorted(box.id for box in boxes[1:])
    for box in boxes:
        await box.close()


def test_the_rate_of_starts_is_limited(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    with open(tmp_path / "admission", "a+") as file:
        take = lambda: lease_module._take_token(file, 4.0)  # noqa: E731
        assert [take() for _ in range(5)] == [True] * 4 + [False]
        now[0] += 0.5
        assert [take() for _ in range(3)] == [True, True, False]
        now[0] -= 100
        assert not take()
        now[0] += 0.25
        assert take()


async def test_a_sandbox_ends_with_its_lease(settings):
    async with rw.sandbox.local(settings=settings, lease=0.5) as box:
        with pytest.raises(rw.SandboxExpired, match=r"after 0\.5 s"):
            await box.exec(["sleep", "1000"])
        assert not marked([box.id])
    box = await rw.sandbox.local(settings=settings, lease=0.5).start()
    await box.exec("setsid sleep 1000 >/dev/null 2>&1 &")
    # Its owner lives and does nothing.
    await asyncio.to_thread(wait, lambda: not leases(settings.folder), REAPED)
    assert not marked([box.id]) and not os.path.exists(box.folder)


OWNER = """
    import asyncio, sys, rollway as rw
    sys.path.append(sys.argv[2])
    import sandbox_backends

    async def main():
        settings = rw.sandbox.SandboxSettings(
            folder=sys.argv[1], check_interval=0.05, starts_per_second=1000)
        for _ in range(3):
            box = await rw.sandbox.local(settings=settings).start()
            await box.exec("setsid sleep 1000 >/dev/null 2>&1 &")
        await rw.sandbox.Sandbox(sandbox_backends.Remote(sys.argv[3]), settings=settings).start()
        print("started", flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())
"""


def owner(settings, remote):
    """Starts a process that owns three local sandboxes and a remote one."""
    tests = os.path.dirname(__file__)
    command = [sys.executable, "-c", textwrap.dedent(OWNER), settings.folder, tests, str(remote)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "started\n"
    return process


def reaper_of(folder):
    """Returns the process that holds the lock of the reaper."""
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/cmdline") as file:
                arguments = file.read().split("\0")
        except OSError:
            continue
        if any("rollway.sandbox.reaper" in one for one in arguments) and folder in arguments[-2]:
            return int(entry)
    return None


def test_nothing_is_left_after_the_owner_is_killed(settings, tmp_path):
    remote = tmp_path / "remote"
    remote.mkdir()
    process = owner(settings, remote)
    ids = leases(settings.folder)
    folders = [f"{os.environ.get('TMPDIR', '/tmp')}/rollway-sandbox-{one}" for one in ids]
    assert len(ids) == 4 and len(marked(ids)) == 3 and len(os.listdir(remote)) == 1
    assert sum(map(os.path.exists, folders)) == 3
    reaper = wait(lambda: reaper_of(settings.folder))
    process.kill()
    process.wait()
    wait(lambda: not leases(settings.folder), REAPED)
    assert not marked(ids) and not os.listdir(remote)
    assert not any(map(os.path.exists, folders))
    # It ends when nothing is left to do.
    wait(lambda: not os.path.exists(f"/proc/{reaper}"), REAPED)


def test_a_later_process_ends_what_a_killed_reaper_has_left(settings, tmp_path):
    remote = tmp_path / "remote"
    remote.mkdir()
    process = owner(settings, remote)
    ids = leases(settings.folder)
    os.kill(wait(lambda: reaper_of(settings.folder)), signal.SIGKILL)
    process.kill()
    process.wait()
    assert leases(settings.folder) == ids and len(marked(ids)) == 3
    lease_module.recover(settings)
    wait(lambda: not leases(settings.folder), REAPED)
    assert not marked(ids) and not os.listdir(remote)


async def test_a_sandbox_that_cannot_be_closed_is_left_to_the_reaper(settings, tmp_path):
    backend = sandbox_backends.Remote(tmp_path, fails_at="close")
    box = await rw.sandbox.Sandbox(backend, settings=settings).start()
    await box.close()
    await asyncio.to_thread(wait, lambda: not leases(settings.folder), REAPED)
    assert not (tmp_path / box.id).exists()


def test_an_unsafe_folder_of_leases_is_refused(settings, tmp_path):
    (tmp_path / "leases").mkdir(mode=0o777)
    machine = tmp_path / "leases" / lease_module._machine()
    machine.mkdir()
    machine.chmod(0o777)
    with pytest.raises(rw.SandboxError, match="can be changed by other users"):
        lease_module.LeaseFolder(settings)


def test_sandboxes_are_created_by_name(settings, tmp_path):
    rw.sandbox.register("remote", sandbox_backends.Remote)
    box = rw.sandbox.create("remote", where=tmp_path)
    assert isinstance(box.backend, sandbox_backends.Remote)
    assert rw.sandbox.create("sandbox_backends:Remote", where=tmp_path).folder == "/work"
    with pytest.raises(rw.UnknownSandbox, match="did you mean `remote`"):
        rw.sandbox.create("remot")

    class Inner(sandbox_backends.Remote):
        pass

    with pytest.raises(TypeError, match="must be defined in a module"):
        rw.sandbox.Sandbox(Inner(tmp_path))


def run(config, workflow, **options):
    runner = rw.WorkflowRunner(config, rw.models.Echo())
    return runner.run_task(rw.Task(workflow=workflow, raw_task={}, **options))


@pytest.mark.parametrize("stage", ["start", "exec"])
def test_failures_of_sandboxes_are_a_kind_of_their_own(config, tmp_path, stage):
    config.explorer.sandbox.folder = str(tmp_path / "leases")

    async def uses(task, model):
        backend = sandbox_backends.Remote(tmp_path, fails_at=stage)
        async with rw.sandbox.Sandbox(backend) as box:
            await box.exec(["true"])

    status, _ = run(config, uses)
    assert status.failed_runs == {"sandbox": 1}, status.message
    assert "SandboxError" in status.message
    assert leases(config.explorer.sandbox.folder) == []


def test_the_end_of_a_run_ends_its_sandboxes(config, tmp_path):
    config.explorer.sandbox.folder = str(tmp_path / "leases")
    config.explorer.sandbox.lease = 100
    opened = []

    async def forgets(task, model):
        box = await rw.sandbox.local().start()
        opened.append(box)
        await box.exec("setsid sleep 1000 >/dev/null 2>&1 &")
        return 1.0

    run(config, forgets, is_eval=True)
    (box,) = opened
    assert box.settings.lease == 100
    assert leases(config.explorer.sandbox.folder) == [] and not marked([box.id])


JOB = """
    import json, sys, rollway as rw

    async def holds(task, model):
        async with rw.sandbox.local() as box:
            await box.exec("setsid sleep 1000 >/dev/null 2>&1 & sleep 1000")

    config = rw.Config.from_dict(json.loads(sys.argv[1]))
    with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
        scheduler.schedule([rw.Task(workflow=holds)] * int(sys.argv[2]), 1)
        scheduler.get_statuses(1).result()
"""

#: Number of sandboxes of the killed job; by hand 100.
SANDBOXES = int(os.environ.get("ROLLWAY_TEST_SANDBOXES", "8"))


@pytest.mark.parametrize("what", ["worker", "job"])
def test_kill_9_leaves_no_sandbox(tmp_path, what):
    folder = str(tmp_path / "leases")
    sandbox = {"folder": folder, "check_interval": 0.1, "starts_per_second": 1000}
    explorer = {"runner_per_model": SANDBOXES, "runner_per_worker": 25, "max_retry_times": 0}
    explorer |= {"sandbox": sandbox, "failures": {"runner_lost": {"retries": 0}}}
    config = {"explorer": explorer, "checkpoint_root_dir": str(tmp_path / "jobs")}
    arguments = [json.dumps(config), str(SANDBOXES)]
    command = [sys.executable, "-c", textwrap.dedent(JOB), *arguments]
    with subprocess.Popen(command, start_new_session=True) as job:
        # Two commands each: the shell that waits, and a session of its own.
        wait(lambda: len(marked(leases(folder))) >= 3 * SANDBOXES, 120)
        ids = leases(folder)
        assert len(ids) == SANDBOXES
        if what == "job":
            for pid in (*children(job.pid), job.pid):
                os.kill(pid, signal.SIGKILL)
        else:
            workers = [pid for pid in children(job.pid) if "rollway.worker" in command_line(pid)]
            assert workers
            for pid in workers:
                os.kill(pid, signal.SIGKILL)
        wait(lambda: not set(ids) & set(leases(folder)), REAPED)
        assert not marked(ids)
        assert not [one for one in ids if os.path.exists(f"/tmp/rollway-sandbox-{one}")]
        job.kill()
    wait(lambda: not leases(folder), REAPED)


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        found = [int(one) for one in file.read().split()]
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            found += [int(one) for one in file.read().split()]
    return sorted({*found})


def command_line(pid):
    with open(f"/proc/{pid}/cmdline") as file:
        return file.read()
