"""The client of mode `serve` against the real command, in front of a simulated server."""

import asyncio
import signal
import subprocess

import pytest
from programs import program

import rollway as rw

# The servers of module fixtures start once.
pytestmark = pytest.mark.xdist_group("serve_client")

CONFIG = """
mode: serve
name: served
checkpoint_root_dir: {root}
explorer:
  proxy_port: 0
  rollout_model: {{base_url: {model}/v1, temperature: 0.5}}
buffer:
  trainer_input:
    experience_buffer: {{storage_type: sql}}
"""


def start(*arguments):
    """Starts the command and waits for the line that says where it is."""
    process = subprocess.Popen(
        [program("ROLLWAY_BIN"), *arguments], stdout=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        if " at http" in line:
            return process, "http" + line.split(" at http")[1].split()[0]
    raise AssertionError(f"{arguments} ended with {process.wait()}")


def end(process):
    process.send_signal(signal.SIGTERM)
    process.stdout.read()
    process.stdout.close()
    return process.wait(60)


@pytest.fixture(scope="module")
def model():
    options = ["--port", "0", "--first-token-seconds", "0", "--tokens-per-second", "0"]
    options += ["--completion-tokens", "3-9"]
    process, url = start("mock-server", "vllm", *options)
    yield url
    assert end(process) == 0


@pytest.fixture
def config(tmp_path, model):
    path = tmp_path / "serve.yaml"
    path.write_text(CONFIG.format(root=tmp_path / "jobs", model=model))
    return str(path)


@pytest.fixture
def job(tmp_path):
    return tmp_path / "jobs" / "Rollway" / "served"


def chat(client, text, **arguments):
    messages = [{"role": "user", "content": text}]
    return client.openai().chat.completions.create(
        model=client.model(), messages=messages, **arguments
    )


def test_agents_talk_judge_and_commit(config, job, tmp_path):
    process, url = start("run", config)
    client = rw.ServeClient.of_job(job)
    assert client.base_url == url
    client.wait()

    first = chat(client, "one", n=2)
    stream = list(chat(client, "two", stream=True))
    reply = client.feedback(0.5, [first.id, stream[0].id, "unknown"], run_id=3)
    assert (reply["accepted"], reply["already"], reply["unknown_ids"]) == (3, 0, ["unknown"])
    assert client.feedback(1.0, [f"{first.id}/1"])["already"] == 1
    with pytest.raises(rw.ServeError) as error:
        client.feedback(1.0, ["unknown"])
    assert error.value.status == 404
    with pytest.raises(rw.ServeError, match="reward"):
        client.feedback("good", [first.id])

    assert client.metrics()["ready_experience_count"] == 3
    done = client.commit()
    assert (done["step"], done["experiences"], done["status"]) == (1, 3, "committed")
    assert client.commit()["status"] == "empty"
    assert client.metrics()["explore_step_num"] == 1
    with pytest.raises(rw.ServeError) as error:
        rw.ServeClient(url, "wrong").commit()
    assert error.value.status == 401
    with pytest.raises(rw.ServeError) as error:
        rw.ServeClient(url, client.api_key).metrics()
    assert error.value.status == 403
    assert end(process) == 0
    assert not client.is_healthy()

    source = f"sqlite:///{job}/buffer/experience_buffer.db"
    with rw.ExperienceReader(source, batch_size=3, timeout=10) as reader:
        experiences = reader.read().experiences
    assert {one.reward for one in experiences} == {0.5}
    assert {(one.eid.batch, one.eid.task, one.eid.run) for one in experiences} == {
        (1, client.task_id, 3)
    }


def test_recorded_turns_survive_kill_9(config, job):
    process, _ = start("run", config)
    client = rw.ServeClient.of_job(job)

    async def talk():
        async with client.async_openai() as model:
            messages = [{"role": "user", "content": "hello"}]
            return await model.chat.completions.create(model="policy", messages=messages)

    answer = asyncio.run(talk())
    client.feedback(1.0, [answer.id])
    process.kill()
    process.wait()
    process.stdout.close()

    process, _ = start("run", config)
    again = rw.ServeClient.of_job(job)
    assert again.task_id != client.task_id and len(again.task_id) == 6
    assert again.feedback(0.0, [answer.id])["already"] == 1
    assert again.commit()["experiences"] == 1
    assert end(process) == 0
