"""Model calls through the gateway: recorded alike for all clients, and ended with their run."""

import asyncio
import json
import os
import pathlib
import signal
import subprocess
import sys
import urllib.request

import numpy as np
import pytest

import rollway as rw
from rollway.models import turns

QUESTION = [{"role": "user", "content": "what is it?"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string"}},
                "required": ["word"],
            },
        },
    }
]


def task(workflow, **fields):
    return rw.Task(workflow=workflow, **fields)


async def results(config, models, workflow, runs=1, auxiliary=None, **fields):
    """Returns the status and the experiences of one task."""
    async with rw.Scheduler(config, models, auxiliary) as scheduler:
        scheduler.schedule([task(workflow, repeat_times=runs, **fields)], batch_id=1)
        (status,), experiences = await scheduler.get_results(1)
        return status, experiences


def check(experience, request, choice=0):
    """Checks an experience of one turn against what the server knows."""
    sampled = request.choices[choice]
    assert experience.tokens.tolist() == [*request.prompt, *(token for token, _, _ in sampled)]
    assert experience.prompt_length == len(request.prompt)
    np.testing.assert_allclose(experience.logprobs, [one[1] for one in sampled], rtol=1e-6)
    versions = [version for version, count in experience.model_versions for _ in range(count)]
    assert versions == [version for _, _, version in sampled]


async def chat(task, model):
    await model.chat(QUESTION, max_tokens=12)
    return 0.5


def chat_blocking(task, model):
    model.chat(QUESTION, max_tokens=12)
    return 0.5


async def generate(task, model):
    await model.generate("what is it?", max_tokens=12)
    return 0.5


def generate_blocking(task, model):
    model.generate([5, 6, 7], max_tokens=12)
    return 0.5


async def client(task, model):
    api = model.async_openai_client()
    await api.chat.completions.create(model=model.name, messages=QUESTION, max_tokens=12)
    return 0.5


async def once(task, model):
    api = model.async_openai_client().with_options(max_retries=0)
    await api.chat.completions.create(model=model.name, messages=QUESTION)
    return 0.5


def client_blocking(task, model):
    api = model.openai_client()
    api.chat.completions.create(model=model.name, messages=QUESTION, max_tokens=12)
    return 0.5


async def stream(task, model):
    api = model.async_openai_client()
    events = await api.chat.completions.create(
        model=model.name, messages=QUESTION, max_tokens=12, stream=True
    )
    async for _ in events:
        pass
    return 0.5


def stream_blocking(task, model):
    api = model.openai_client()
    events = api.chat.completions.create(
        model=model.name, messages=QUESTION, max_tokens=12, stream=True
    )
    assert "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    return 0.5


async def tools(task, model):
    api = model.async_openai_client()
    answer = await api.chat.completions.create(
        model=model.name, messages=QUESTION, tools=TOOLS, tool_choice="required"
    )
    assert answer.choices[0].message.tool_calls[0].function.name == "look_up"
    return 0.5


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
async def test_all_ways_to_call_are_recorded_alike(config, engine):
    pytest.importorskip("openai")
    ways = [
        chat,
        chat_blocking,
        generate,
        generate_blocking,
        client,
        client_blocking,
        stream,
        stream_blocking,
        tools,
    ]
    model = rw.models.MockServer(engine, seed=3, version=4)
    async with rw.Scheduler(config, [model]) as scheduler:
        for step, way in enumerate(ways, 1):
            before = len(model.requests)
            scheduler.schedule([task(way)], batch_id=step)
            (status,), experiences = await scheduler.get_results(step)
            assert status.ok, (way.__name__, status.message)
            (experience,) = experiences
            (request,) = model.requests[before:]
            check(experience, request)
            assert experience.reward == 0.5, way.__name__
            assert (experience.eid.batch, experience.eid.run) == (step, 0)
            assert experience.info["model_version"] == 4
    assert model.counts["completed"] == len(ways)


def plain(task, model):
    """Calls the gateway by the standard library, and by another process."""
    assert model.base_url.startswith("https://")
    headers = {"Authorization": f"Bearer {model.api_key}"}
    request = urllib.request.Request(f"{model.base_url}/models", headers=headers)
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200
    code = (
        "import sys, urllib.request as r; "
        "r.urlopen(r.Request(sys.argv[1], headers={'Authorization': sys.argv[2]})).read()"
    )
    command = [sys.executable, "-c", code, request.full_url, headers["Authorization"]]
    subprocess.run(command, check=True)
    return chat_blocking(task, model)


async def test_workers_trust_the_certificate_of_the_gateway(config):
    config.tls.mode = "required"
    async with rw.Scheduler(config, [rw.models.MockServer()]) as scheduler:
        for step, way in enumerate([generate, client, client_blocking, plain], 1):
            scheduler.schedule([task(way)], batch_id=step)
            (status,), _ = await scheduler.get_results(step)
            assert status.ok, (way.__name__, status.message)


async def test_replies_know_their_tokens(config):
    async def workflow(task, model):
        reply = await model.chat(QUESTION, n=2, max_tokens=9)
        whole = await model.generate([9, 8, 7], max_tokens=5)
        assert whole.prompt_tokens == [9, 8, 7]
        for one in (*reply, whole):
            turn = one.experience
            assert turn.tokens.tolist() == [*one.prompt_tokens, *one.tokens]
            np.testing.assert_allclose(turn.logprobs, one.logprobs)
            assert one.model_version == 6 and turn.model_versions == [(6, len(one.tokens))]
        assert model.model_version == 6
        assert model.base_url.startswith("http://127.0.0.1:") and model.base_url.endswith("/v1")
        reply[0].experience.reward = 1.0
        return [reply[0].experience]

    for engine in ("vllm", "sglang"):
        model = rw.models.MockServer(engine, version=6)
        status, (experience,) = await results(config, [model], workflow)
        assert status.ok, status.message
        check(experience, model.requests[0])
        assert experience.reward == 1.0


async def test_turns_of_one_conversation_become_one_experience(config):
    async def workflow(task, model):
        messages = list(QUESTION)
        for word in ("why?", "and then?"):
            reply = await model.chat(messages, max_tokens=6)
            messages = [*reply.messages, {"role": "user", "content": word}]
        last = await model.chat(messages, max_tokens=6)
        alone = last.experience
        assert alone.tokens.tolist() == [*last.prompt_tokens, *last.tokens]
        return 1.0

    model = rw.models.MockServer(seed=1)
    status, (experience,) = await results(config, [model], workflow)
    assert status.ok, status.message
    first, _, third = model.requests
    assert experience.kind == "multi_turn" and experience.prompt_length == len(first.prompt)
    sampled = [token for request in model.requests for token, _, _ in request.choices[0]]
    response = experience.tokens[experience.prompt_length :]
    assert response[experience.action_mask].tolist() == sampled
    assert experience.tokens.tolist()[: len(third.prompt)] == third.prompt
    assert experience.info["turns"] == 3


async def test_the_history_is_taken_bit_by_bit(config):
    async def workflow(task, model):
        await model.chat(QUESTION)
        assert len(model.history) == 1
        (first,) = model.extract_experience_from_history(clear_history=False)
        (again,) = await model.extract_experience_from_history_async()
        assert first.tokens.tolist() == again.tokens.tolist()
        assert model.extract_experience_from_history() == []
        await model.chat([{"role": "user", "content": "something else"}])
        return 2.0

    model = rw.models.MockServer()
    status, (experience,) = await results(config, [model], workflow)
    assert status.ok, status.message
    check(experience, model.requests[1])


@pytest.mark.parametrize("mode", ["sequential", "asynchronous", "multi-threading"])
async def test_every_run_has_its_own_turns(config, mode):
    config.explorer.concurrent_mode = mode

    async def workflow(task, model, auxiliary_models):
        mine = f"question of {model.api_key}"
        reply = await model.chat([{"role": "user", "content": mine}])
        # A judge is called with the same key, and is not recorded.
        (judge,) = auxiliary_models
        assert judge.api_key == model.api_key and judge.name == "judge"
        verdict = await judge.chat([{"role": "user", "content": reply.text}], max_tokens=3)
        assert verdict.text
        with pytest.raises(rw.Error, match="not recorded"):
            judge.extract_experience_from_history()
        return float(len(mine))

    model, judge = rw.models.MockServer(), rw.models.MockServer("openai", "judge", seed=2)
    status, experiences = await results(config, [model], workflow, runs=5, auxiliary=[[judge]])
    assert status.ok, status.message
    assert sorted(experience.eid.run for experience in experiences) == [0, 1, 2, 3, 4]
    prompts = {experience.messages[0]["content"] for experience in experiences}
    assert len(prompts) == 5 and model.counts["requests"] == judge.counts["requests"] == 5


class Kept(rw.Workflow):
    """Serves several tasks with one instance, and with clients that it made for the first."""

    can_reset = True
    made = 0

    def __init__(self, **arguments):
        super().__init__(**arguments)
        Kept.made += 1
        self.client = self.model.async_openai_client()

    async def run_async(self):
        await self.client.chat.completions.create(model=self.model.name, messages=QUESTION)
        assert Kept.made == 1
        return 1.0


async def test_a_kept_instance_takes_the_key_of_the_next_run(config):
    pytest.importorskip("openai")
    config.explorer.runner_per_model = 1
    status, experiences = await results(config, [rw.models.MockServer()], Kept, runs=3)
    assert status.ok, status.message
    assert sorted(experience.eid.run for experience in experiences) == [0, 1, 2]


class Many(rw.Workflow):
    """Performs all runs in one call."""

    can_repeat = True

    async def run_async(self):
        if self.task.raw_task == "one call":
            await self.model.chat(QUESTION, n=self.repeat_times)
        else:
            for number in range(self.repeat_times):
                await self.model.chat([{"role": "user", "content": f"{number}"}])
        return 1.0


async def test_runs_of_one_call_are_distinguished_or_refused(config):
    model = rw.models.MockServer()
    status, experiences = await results(config, [model], Many, runs=3, raw_task="one call")
    assert status.ok, status.message
    for run, experience in enumerate(sorted(experiences, key=lambda one: one.eid.run)):
        assert experience.eid.run == run
        check(experience, model.requests[0], run)
    status, experiences = await results(config, [model], Many, runs=3, raw_task="three calls")
    assert status.failed_runs == {"invalid_output": 3} and not experiences
    assert "cannot be assigned to runs" in status.message


async def test_a_plain_server_answers_and_records_nothing(config):
    model = rw.models.MockServer("openai", api_key="theirs")

    async def workflow(task, model):
        reply = await model.chat(QUESTION, temperature=0.5)
        assert reply.text and reply.tokens is None and model.api_key != "theirs"
        with pytest.raises(rw.Error, match="reports no token ids"):
            model.extract_experience_from_history()
        with pytest.raises(rw.Error, match="reports no token ids"):
            _ = reply.experience
        return 1.0

    status, experiences = await results(config, [model], workflow)
    assert status.failed_runs == {"invalid_output": 1} and not experiences
    assert "reports no token ids" in status.message
    status, _ = await results(config, [model], workflow, is_eval=True)
    assert status.ok, status.message


async def test_a_server_that_fails_is_tried_again_and_recorded_once(config):
    model = rw.models.MockServer(seed=5)
    model.fail(500, times=1)
    model.fail(0, times=1)
    status, experiences = await results(config, [model], chat)
    assert status.ok, status.message
    (experience,) = experiences
    check(experience, model.requests[-1])
    assert model.counts["completed"] == 1


async def test_a_retry_of_a_client_is_no_second_sample(config):
    pytest.importorskip("openai")

    async def impatient(task, model):
        api = model.async_openai_client().with_options(timeout=5.0, max_retries=1)
        await api.chat.completions.create(model=model.name, messages=QUESTION)
        return 1.0

    model = rw.models.MockServer()
    model.hold(2)
    async with rw.Scheduler(config, [model]) as scheduler:
        scheduler.schedule([task(impatient)], batch_id=1)
        # The client has lost patience, and asks again.
        await model.wait_for("given_up", 1)
        model.release()
        (status,), experiences = await scheduler.get_results(1)
    assert status.ok, status.message
    (experience,) = experiences
    check(experience, model.requests[-1])
    assert len(model.requests) == 2


async def test_a_server_that_keeps_failing_is_no_fault_of_the_workflow(config):
    pytest.importorskip("openai")
    config.explorer.failures.model_unavailable.retries = 0
    for workflow in (chat, once):
        model = rw.models.MockServer()
        model.fail(500, times=50)
        status, experiences = await results(config, [model], workflow)
        assert status.failed_runs == {"model_unavailable": 1}, status.message
        assert not experiences


async def test_a_stream_that_breaks_off_is_no_fault_of_the_workflow(config):
    pytest.importorskip("openai")
    config.explorer.failures.model_unavailable.retries = 0

    async def streams(task, model):
        api = model.async_openai_client()
        async for _ in await api.chat.completions.create(
            model=model.name, messages=QUESTION, stream=True
        ):
            pass
        return 1.0

    model = rw.models.MockServer()
    model.hold(4)
    async with rw.Scheduler(config, [model]) as scheduler:
        scheduler.schedule([task(streams)], batch_id=1)
        await model.wait_for("frozen", 1)
        # The client has the first tokens.
        await asyncio.to_thread(model.stop)
        (status,), experiences = await scheduler.get_results(1)
    assert status.failed_runs == {"model_unavailable": 1}, status.message
    assert "sent an incomplete response" in status.message and not experiences


async def test_an_answer_that_cannot_be_recorded_fails_the_run(config):
    async def careless(task, model):
        try:
            await model.chat(QUESTION)
        except rw.Error:
            pass
        return 1.0

    model = rw.models.MockServer()
    model.omit_token_ids()
    status, experiences = await results(config, [model], careless)
    assert not experiences and not status.ok
    assert set(status.failed_runs) <= {"invalid_output", "model_unavailable"}, status.message


async def test_a_wrong_call_is_an_error_of_the_workflow(config):
    async def workflow(task, model):
        with pytest.raises(rw.ModelError) as caught:
            await model.chat(["no message"], n=0)
        assert caught.value.status == 400
        await model.chat(QUESTION, n="many")

    status, _ = await results(config, [rw.models.MockServer()], workflow)
    assert status.failed_runs == {"workflow": 1}
    assert "ModelError" in status.message and "refused the call" in status.message


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_cancelled_run_ends_its_calls_in_the_server(config, blocking):
    model = rw.models.MockServer()
    model.hold(2)
    workflow = chat_blocking if blocking else chat
    async with rw.Scheduler(config, [model]) as scheduler:
        scheduler.schedule([task(workflow)], batch_id=1)
        await model.wait_for("frozen", 1)
        await scheduler.abort_batch(1)
        counts = await model.wait_for("given_up", 1)
        assert counts["completed"] == 0
        model.release()
        scheduler.schedule([task(workflow)], batch_id=2)
        (status,), experiences = await scheduler.get_results(2)
        assert status.ok and len(experiences) == 1, status.message


async def test_a_worker_that_dies_takes_its_calls_with_it(config):
    config.explorer.max_retry_times = 0

    async def workflow(task, model):
        call = asyncio.ensure_future(model.chat(QUESTION))
        await asyncio.sleep(0)
        while not os.path.exists(task.raw_task):
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
        await call

    model = rw.models.MockServer()
    model.hold(2)
    flag = os.path.join(config.checkpoint_root_dir, "now")
    os.makedirs(config.checkpoint_root_dir, exist_ok=True)
    async with rw.Scheduler(config, [model]) as scheduler:
        scheduler.schedule([task(workflow, raw_task=flag)], batch_id=1)
        await model.wait_for("frozen", 1)
        pathlib.Path(flag).touch()
        await model.wait_for("given_up", 1)
        (status,), _ = await scheduler.get_results(1)
        assert status.failed_runs == {"runner_lost": 1}, status.message


async def test_an_abandoned_wait_ends_the_call(config):
    model = rw.models.MockServer()
    model.hold(2)

    async def workflow(task, model):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(model.chat(QUESTION), 0.3)
        return []

    async with rw.Scheduler(config, [model]) as scheduler:
        scheduler.schedule([task(workflow)], batch_id=1)
        await model.wait_for("given_up", 1)


def test_a_runner_by_hand_has_a_gateway_of_its_own():
    model = rw.models.MockServer(version=2)
    runner = rw.WorkflowRunner(rw.Config(), model, [rw.models.MockServer("openai", "judge")])

    async def workflow(task, model, auxiliary_models):
        await auxiliary_models[0].chat(QUESTION)
        await model.chat(QUESTION)
        return 1.0

    status, experiences = runner.run_task(task(workflow), repeat_times=2, run_id_base=3)
    assert status.ok, status.message
    assert [experience.eid.run for experience in experiences] == [3, 4]
    for experience, request in zip(experiences, model.requests, strict=True):
        check(experience, request)
    runner.close()
    status, experiences = runner.run_task(task(chat_blocking))
    assert status.ok and len(experiences) == 1, status.message


def test_several_servers_are_one_model():
    first, second = rw.models.MockServer(model="a"), rw.models.MockServer(model="b", seed=1)
    config = rw.Config()
    config.explorer.runner_per_model = 2
    config.explorer.concurrent_mode = "asynchronous"

    async def workflow(task, model):
        assert model.name == "a"
        await model.chat([{"role": "user", "content": model.api_key}])
        return 1.0

    with rw.Scheduler(config, [first, second]) as scheduler:
        scheduler.schedule([task(workflow, repeat_times=8) for _ in range(4)], batch_id=1)
        statuses, experiences = scheduler.get_results(1).result()
    assert all(status.ok for status in statuses), statuses
    assert len(experiences) == 32
    assert first.counts["completed"] + second.counts["completed"] == 32
    assert first.counts["completed"] and second.counts["completed"]


def test_servers_that_record_by_chance_are_refused():
    models = [rw.models.MockServer("vllm"), rw.models.MockServer("openai")]
    with pytest.raises(rw.Error, match="servers of one kind"):
        rw.Scheduler(rw.Config(), models)


def test_an_unassigned_model_is_reported():
    with pytest.raises(rw.Error, match="give it to a Scheduler"):
        rw.models.OpenAI("http://127.0.0.1:9/v1").bind(is_async=False)
    with pytest.raises(ValueError, match="engine is one of"):
        rw.models.OpenAI("http://127.0.0.1:9/v1", engine="triton")


def weights(folder, version):
    """Returns a folder with weights, as the simulated server reads them."""
    path = folder / f"step-{version}"
    path.mkdir()
    (path / "weights.json").write_text(json.dumps({"version": version}))
    return str(path)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
async def test_weights_are_updated_and_answers_labelled(config, tmp_path, engine):
    model = rw.models.MockServer(engine)
    async with rw.Scheduler(config, [model]) as scheduler:
        for version in (3, 5):
            report = await scheduler.update_weights(weights(tmp_path, version), version)
            assert report["complete"] and report["version"] == version, report
            (server,) = report["servers"]
            assert server["outcome"] == "updated" and server["aborted"] == 0
            scheduler.schedule([task(chat)], batch_id=version)
            (status,), (experience,) = await scheduler.get_results(version)
            assert status.ok, status.message
            check(experience, model.requests[-1])
            assert experience.info["model_version"] == version
        again = await scheduler.update_weights(weights(tmp_path, 50), 5)
        assert again["servers"][0]["outcome"] == "already_current"
        with pytest.raises(ValueError, match="in_flight"):
            await scheduler.update_weights(str(tmp_path), 6, "later")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("way", [chat, stream])
async def test_an_answer_across_an_update_is_not_mislabelled(config, tmp_path, engine, way):
    pytest.importorskip("openai")
    model = rw.models.MockServer(engine, lengths=(20, 20))
    model.hold(7)
    async with rw.Scheduler(config, [model]) as scheduler:
        scheduler.schedule([task(way)], batch_id=1)
        await model.wait_for("frozen", 1)
        report = await scheduler.update_weights(weights(tmp_path, 2), 2, "keep")
        assert report["complete"], report
        model.release()
        (status,), (experience,) = await scheduler.get_results(1)
    assert status.ok, status.message
    made = [version for _, _, version in model.requests[0].choices[0]]
    assert made == [0] * 7 + [2] * 5
    labelled = [version for version, count in experience.model_versions for _ in range(count)]
    # A version that the server does not report is unknown, never the version of a neighbour.
    assert all(one in (None, other) for one, other in zip(labelled, made, strict=True)), labelled
    assert experience.info.get("model_version") in (None, 0)
    if (engine, way) == ("vllm", stream):
        assert labelled[:7] == [0] * 7


async def test_a_coordinator_notes_the_version_that_servers_have(config, tmp_path):
    async def prepared():
        coordinator = rw.RolloutCoordinator(config, [rw.models.MockServer()])
        await coordinator.prepare()
        return coordinator

    coordinator = await prepared()
    report = await coordinator.update_weights(weights(tmp_path, 9), 9)
    assert report["complete"], report
    await coordinator.submit_batch(batch_id=1, tasks=[task(chat)], batch_type="train")
    result = await coordinator.finalize_train_batch(1)
    assert result["ok_task_count"] == 1, result["statuses"]
    await coordinator.shutdown()
    coordinator = await prepared()
    assert coordinator.restored.version == 9
    await coordinator.shutdown()


async def test_without_servers_there_are_no_weights_to_update(config):
    async with rw.Scheduler(config, [rw.models.Echo()]) as scheduler:
        with pytest.raises(rw.Error, match="no gateway"):
            await scheduler.update_weights("somewhere", 1)


def test_a_turn_is_found_in_its_conversation():
    whole = rw.Experience(
        tokens=list(range(20)),
        prompt_length=4,
        action_mask=[1, 1, 1, 0, 0, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1],
        logprobs=[-float(number) for number in range(16)],
        model_versions=[(1, 3), (None, 3), (2, 1), (3, 1), (None, 1), (3, 7)],
        info={"message_ids": ["a", "b/1", "c"], "turns": 3, "model_version": 1},
    )
    known = rw.models.Reply("said", tokens=[10, 11], prompt_tokens=list(range(10)))
    # A server that tells no prompt: the mask says where the turn is.
    unknown = rw.models.Reply("said", tokens=[10, 11])
    for reply in (known, unknown):
        turn = turns.find([whole], "b/1", reply)
        assert turn.tokens.tolist() == list(range(12)) and turn.prompt_length == 10
        assert turn.logprobs.tolist() == [-6.0, -7.0] and turn.kind == "single_turn"
        assert turn.model_versions == [(2, 1), (3, 1)] and turn.info["model_version"] == 2
        assert turn.info["message_ids"] == ["b/1"]
    assert turns.find([whole], "b", known) is None
