"""Weight updates of a real vLLM: versions, failures, changes from outside, restarts, load.

The models are marked: every generated token shows the version of the weights that generated it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import statistics
import time

import calls
import openai
import pytest
import tiny_model
from calls import wait_for
from conftest import gateway_of
from vllm_server import Vllm

FAILING_UPDATES = int(os.environ.get("ROLLWAY_REAL_FAILURES", "200"))
OUTSIDE_CHANGES = int(os.environ.get("ROLLWAY_REAL_CHANGES", "50"))
UPDATES_UNDER_LOAD = int(os.environ.get("ROLLWAY_REAL_UPDATES", "40"))
#: Maximum seconds of the updates under load; the figure has the number that was reached.
SECONDS_UNDER_LOAD = float(os.environ.get("ROLLWAY_REAL_SECONDS", "inf"))
CONVERSATIONS = 64

# Many updates on a machine without a GPU: at most a minute for each.
pytestmark = pytest.mark.timeout(
    3600 + 60 * max(FAILING_UPDATES, OUTSIDE_CHANGES, UPDATES_UNDER_LOAD)
)

NO_END = {"logit_bias": {str(tiny_model.END): -100}}


class Versions:
    """Increasing versions, as the gateway refuses none but the server must change."""

    def __init__(self) -> None:
        self.last = 0

    def next(self) -> int:
        self.last += 1
        return self.last


@pytest.fixture(scope="module")
def versions():
    return Versions()


def update(gateway, folder: pathlib.Path, version: int, in_flight: str = "drain") -> dict:
    """Updates the server and returns its report."""
    body = {"version": version, "path": str(folder), "in_flight": in_flight}
    body |= {"timeout_seconds": 120, "drain_seconds": 120}
    return gateway.admin("POST", "/models/update", body)["servers"][0]


def added_latency(turns: list[tuple[float, float]], updates: list[tuple[float, float]]) -> str:
    """Compares the turns that overlap an update with the others."""
    slow, usual = [], []
    for begin, end in turns:
        overlaps = any(begin < till and since < end for since, till in updates)
        (slow if overlaps else usual).append(end - begin)
    if not slow or not usual:
        return f"{len(slow)} turns during updates, {len(usual)} between them"
    during, between = statistics.median(slow), statistics.median(usual)
    return f"a turn took {during:.2f} s during an update, {between:.2f} s otherwise (median)"


def ask(gateway, tokens: int = 8):
    """Makes one call and returns what was recorded."""
    key = gateway.key()
    calls.client(gateway, key).chat.completions.create(
        model="policy",
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=tokens,
        extra_body=NO_END,
    )
    (experience,) = gateway.experiences(key)
    return experience


@pytest.mark.capability("control endpoints found at the start")
def test_the_gateway_knows_the_endpoints(vllm_gateway):
    server = vllm_gateway.server()
    assert server["missing"] == [] and server["reports_version"] is True


@pytest.mark.capability("weights from a folder, version read back")
def test_weights_are_loaded_from_a_folder(vllm, vllm_gateway, weights, versions):
    for _ in range(3):
        version = versions.next()
        report = update(vllm_gateway, weights(version), version)
        assert report["outcome"] == "updated", report
        assert vllm.version() == str(version) and not vllm.is_paused()
        experience = ask(vllm_gateway)
        assert calls.labels(experience) == [version] * 8
        checked = calls.Labels()
        checked.check(experience)
        assert checked.right == 8, str(checked)


@pytest.mark.capability("updates while calls run: drain, keep, abort")
@pytest.mark.parametrize("in_flight", ["drain", "keep", "abort"])
def test_an_update_during_a_stream(vllm, vllm_gateway, weights, versions, in_flight, measured):
    first, second = versions.next(), versions.next()
    assert update(vllm_gateway, weights(first), first)["outcome"] == "updated"
    key = vllm_gateway.key()
    # Long enough to run when the update comes: on a busy machine vLLM is thousands of tokens ahead
    # of what its client has got.
    length = 300 if in_flight == "drain" else 16_000

    async def stream() -> int:
        client = calls.async_client(vllm_gateway, key)
        async with client:
            events = await client.chat.completions.create(
                model="policy",
                messages=[{"role": "user", "content": "hello"}],
                max_tokens=length,
                stream=True,
                extra_body=NO_END,
            )
            said, changing = "", None
            try:
                async for event in events:
                    said += event.choices[0].delta.content or "" if event.choices else ""
                    if changing is None and len(said) >= 10:
                        call = (vllm_gateway, weights(second), second, in_flight)
                        changing = asyncio.create_task(asyncio.to_thread(update, *call))
            except openai.APIError:
                assert in_flight == "abort"
            report = await changing
            assert report["outcome"] == "updated", report
            return len(said)

    said = asyncio.run(stream())
    (experience,) = vllm_gateway.experiences(key)
    checked = calls.Labels()
    checked.check(experience)
    assert checked.wrong == 0, checked.examples
    if in_flight == "drain":
        assert said == length and checked.unknown == 0
    elif in_flight == "keep":
        assert said == length
        shown = {tiny_model.VOCABULARY[token] for token in calls.response_tokens(experience)}
        assert shown & set(tiny_model.marks(second)), "the stream did not continue after the update"
    else:
        assert said < length
    assert vllm.version() == str(second) and not vllm.is_paused()
    measured(str(checked))


def broken_folders(root: pathlib.Path, version: int) -> dict[str, pathlib.Path]:
    """Returns folders that a server cannot load, by the reason."""
    folders = {"absent": root / "absent", "empty": root / "empty"}
    folders["empty"].mkdir(exist_ok=True)
    good = tiny_model.write(root / "good", version=version)
    content = (good / "model.safetensors").read_bytes()
    damages = {
        "cut": content[: len(content) // 2],
        "no header": content[:4],
        "garbage": b"\xff" * 64 + content[64:],
    }
    for name, damaged in damages.items():
        folders[name] = tiny_model.write(root / name.replace(" ", "-"), version=version)
        (folders[name] / "model.safetensors").write_bytes(damaged)
    return folders


@pytest.mark.capability("failing updates leave the server usable and not paused")
def test_failing_updates_leave_no_server_paused(
    vllm, vllm_gateway, weights, versions, tmp_path, measured
):
    good = versions.next()
    assert update(vllm_gateway, weights(good), good)["outcome"] == "updated"
    folders = broken_folders(tmp_path, 1 + good)
    outcomes: dict[str, int] = {}
    checked = calls.Labels()
    policies = ["drain", "keep", "abort"]
    for number in range(FAILING_UPDATES):
        kind = list(folders)[number % len(folders)]
        policy = policies[number // len(folders) % len(policies)]
        report = update(vllm_gateway, folders[kind], versions.next(), policy)
        outcome = report["outcome"]
        assert outcome in ("rolled_back", "broken"), (kind, policy, report)
        outcomes[f"{kind}: {outcome}"] = outcomes.get(f"{kind}: {outcome}", 0) + 1
        assert not vllm.is_paused(), (number, kind, policy, report)
        if outcome == "broken":
            good = versions.next()
            assert update(vllm_gateway, weights(good), good)["outcome"] == "updated"
        checked.check(ask(vllm_gateway, 4))
        assert checked.wrong == 0, (kind, policy, checked.examples)
    shown = ", ".join(f"{name} {count}" for name, count in sorted(outcomes.items()))
    measured(f"{FAILING_UPDATES} failing updates, none left paused; {shown}; {checked}")


@pytest.mark.capability("weights changed from outside: no token with a wrong version")
def test_weights_changed_from_outside(vllm, vllm_gateway, weights, versions, measured):
    """Calls run all the time, while another program changes the weights."""
    checked = calls.Labels()
    keys: list[str] = []

    async def caller(stop: asyncio.Event, stream: bool) -> None:
        while not stop.is_set():
            key = vllm_gateway.key()
            async with calls.async_client(vllm_gateway, key) as client:
                answer = await client.chat.completions.create(
                    model="policy",
                    messages=[{"role": "user", "content": "hello"}],
                    max_tokens=24,
                    stream=stream,
                    extra_body=NO_END,
                )
                if stream:
                    async for _ in answer:
                        pass
            keys.append(key)

    async def run() -> None:
        stop = asyncio.Event()
        callers = [asyncio.create_task(caller(stop, number % 2 == 0)) for number in range(6)]
        for _ in range(OUTSIDE_CHANGES):
            version = versions.next()
            await asyncio.to_thread(vllm.change_weights, weights(version), version)
            enough = len(keys) + 3
            while len(keys) < enough:
                await asyncio.sleep(0.01)
        stop.set()
        await asyncio.gather(*callers)

    asyncio.run(run())
    for key in keys:
        for experience in vllm_gateway.experiences(key):
            checked.check(experience)
    measured(f"{OUTSIDE_CHANGES} changes, {len(keys)} calls; {checked}")
    assert checked.wrong == 0, checked.examples[:10]
    assert checked.right > 0


@pytest.mark.capability("a version name that is no number")
def test_an_unknown_version_name_is_an_unknown_version(vllm, vllm_gateway, weights, versions):
    version = versions.next()
    vllm.change_weights(weights(version), "step-of-another-trainer")
    wait_for(lambda: vllm_gateway.server()["version"] is None)
    assert calls.labels(ask(vllm_gateway, 4)) == [None] * 4
    version = versions.next()
    assert update(vllm_gateway, weights(version), version)["outcome"] == "updated"
    assert calls.labels(ask(vllm_gateway, 4)) == [version] * 4


@pytest.mark.capability("pause from outside: not used until it is resumed")
def test_a_server_that_is_paused_from_outside_is_not_used(vllm, vllm_gateway):
    ask(vllm_gateway, 2)
    vllm.post("/pause?mode=keep")
    try:
        wait_for(lambda: vllm_gateway.server()["state"] == "unhealthy")
        assert "paused by another program" in vllm_gateway.server()["reason"]
    finally:
        vllm.post("/resume")
    wait_for(lambda: vllm_gateway.server()["state"] == "running")
    ask(vllm_gateway, 2)


@pytest.mark.capability("sleep: not used until it wakes up")
def test_a_server_that_sleeps_is_not_used(vllm, vllm_gateway):
    ask(vllm_gateway, 2)
    vllm.post("/sleep?level=1")
    try:
        wait_for(lambda: vllm_gateway.server()["state"] == "unhealthy")
        assert "/wake_up" in vllm_gateway.server()["reason"]
        # A gateway that starts now cannot tell whose pause it is, but leaves the server asleep.
        with contextlib.closing(gateway_of("vllm", vllm.url, state="unhealthy")) as another:
            assert "it sleeps" in another.server()["reason"]
        wait_for(lambda: "it sleeps" in vllm_gateway.server()["reason"])
    finally:
        vllm.post("/wake_up")
    wait_for(lambda: vllm_gateway.server()["state"] == "running")
    ask(vllm_gateway, 2)


@pytest.mark.capability("updates under 64 conversations: no request lost, no wrong version")
def test_updates_under_load(vllm, vllm_gateway, weights, versions, measured):
    checked = calls.Labels()
    seconds: list[float] = []
    keys: list[str] = []
    turns: list[tuple[float, float]] = []
    updates: list[tuple[float, float]] = []

    async def conversation(stop: asyncio.Event, number: int) -> None:
        while not stop.is_set():
            key = vllm_gateway.key()
            messages = [{"role": "user", "content": f"hello {number}"}]
            async with calls.async_client(vllm_gateway, key) as client:
                for _ in range(3):
                    began = time.monotonic()
                    # A lost request raises, and fails the test.
                    answer = await client.chat.completions.create(
                        model="policy", messages=messages, max_tokens=8, extra_body=NO_END
                    )
                    said = answer.choices[0].message.content
                    assert len(said) == 8
                    messages += [{"role": "assistant", "content": said}]
                    messages += [{"role": "user", "content": "and then?"}]
                    turns.append((began, time.monotonic()))
            keys.append(key)

    async def run() -> None:
        stop = asyncio.Event()
        every = [asyncio.create_task(conversation(stop, number)) for number in range(CONVERSATIONS)]
        deadline = time.monotonic() + SECONDS_UNDER_LOAD
        while len(updates) < UPDATES_UNDER_LOAD and time.monotonic() < deadline:
            number, version = len(updates), versions.next()
            policy = "keep" if number % 2 else "drain"
            call = (vllm_gateway, weights(version), version, policy)
            began = time.monotonic()
            report = await asyncio.to_thread(update, *call)
            assert report["outcome"] == "updated", str(report)
            updates.append((began, time.monotonic()))
            seconds.append(report["seconds"])
        stop.set()
        await asyncio.gather(*every)

    began = time.monotonic()
    asyncio.run(run())
    took = time.monotonic() - began
    for key in keys:
        for experience in vllm_gateway.experiences(key):
            checked.check(experience)
    latency = f"a server was away for {statistics.median(seconds):.2f} s (median), at most"
    measured(
        f"{len(updates)} updates in {took:.0f} s, {CONVERSATIONS} conversations at once, "
        f"{len(turns)} turns, none lost; {latency} {max(seconds):.2f} s; "
        f"{added_latency(turns, updates)}; {checked}"
    )
    assert checked.wrong == 0, checked.examples[:10]


@pytest.mark.capability("restart: the latest weights before the first call")
def test_a_restarted_server_gets_the_latest_weights(vllm, vllm_gateway, weights, versions):
    version = versions.next()
    assert update(vllm_gateway, weights(version), version)["outcome"] == "updated"
    vllm.kill()
    wait_for(lambda: vllm_gateway.server()["state"] == "unhealthy")
    vllm.start()
    assert vllm.version() in ("default", str(version))
    wait_for(lambda: vllm_gateway.server()["state"] == "running")
    experience = ask(vllm_gateway)
    assert calls.labels(experience) == [version] * 8
    checked = calls.Labels()
    checked.check(experience)
    assert checked.right == 8, checked.examples


@pytest.mark.capability("weights of other shapes: broken, not paused, usable after a restart")
def test_weights_of_other_shapes(vllm, vllm_gateway, weights, versions, tmp_path):
    """vLLM 0.32 can load no weights after it failed to load some of other shapes."""
    good = versions.next()
    assert update(vllm_gateway, weights(good), good)["outcome"] == "updated"
    other = tiny_model.write(tmp_path / "other", version=good + 1, hidden=64)
    report = update(vllm_gateway, other, versions.next(), "keep")
    assert report["outcome"] in ("broken", "rolled_back"), report
    assert not vllm.is_paused() and vllm.is_healthy()
    if report["outcome"] == "broken":
        assert vllm_gateway.server()["state"] == "broken"
    vllm.kill()
    wait_for(lambda: vllm_gateway.server()["state"] in ("unhealthy", "broken"))
    vllm.start()
    wait_for(lambda: vllm_gateway.server()["state"] == "running")
    experience = ask(vllm_gateway)
    assert calls.labels(experience) == [good] * 8
    checked = calls.Labels()
    checked.check(experience)
    assert checked.right == 8, checked.examples


@pytest.mark.capability("without `VLLM_SERVER_DEV_MODE=1`: calls work, missing endpoints are named")
def test_a_server_without_dev_mode(random_model):
    server = Vllm(random_model, dev_mode=False)
    try:
        gateway = gateway_of("vllm", server.url)
        missing = {it["endpoint"]: it["provided_by"] for it in gateway.server()["missing"]}
        assert "/collective_rpc" in missing
        assert "VLLM_SERVER_DEV_MODE=1" in missing["/collective_rpc"]
        # Its weights cannot change.
        assert calls.labels(ask(gateway, 4)) == [0] * 4
        report = update(gateway, random_model, 1)
        assert report["outcome"] == "skipped", report
        assert "VLLM_SERVER_DEV_MODE=1" in report["reason"], report
        assert calls.labels(ask(gateway, 4)) == [0] * 4
        gateway.close()
    finally:
        server.kill()
