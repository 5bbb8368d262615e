"""Model handles of the compatibility package: calls, images, scores, and what is not there."""

from __future__ import annotations

import asyncio
import http.server
import json
import pathlib
import threading
import urllib.request

import pytest

import rollway as rw
from rollway.trinity.common.experience import Experience
from rollway.trinity.common.models import mm_utils
from rollway.trinity.common.models.model import UNSUPPORTED, ModelWrapper
from rollway.trinity.common.workflows import Task, Workflow


def collect(config, task: rw.Task, model) -> list[rw.Experience]:
    """Runs one task in a worker process; returns its experiences."""
    with rw.Scheduler(config, [model]) as scheduler:
        scheduler.schedule([task], 1)
        (status,), experiences = scheduler.get_results(1).result()
    assert status.ok, status.message
    return experiences


def test_model_wrapper():
    async def use(model: ModelWrapper) -> None:
        hello = [{"role": "user", "content": "hello"}]
        (one,) = await model.chat_async(hello, top_k=-1, logprobs=None)
        assert isinstance(one, Experience) and one.response_text == "hello"
        assert [two.response_text for two in model.chat(hello, n=2)] == ["hello"] * 2
        assert [two.response_text for two in model.generate(["a", "b"])] == ["a", "b"]
        assert len(await model.generate_async(["a"])) == 1
        assert len(model.history) == 6 and model.enable_history
        assert len(model.extract_experience_from_history(clear_history=False)) == 6
        assert len(model.extract_experience_from_history()) == 6 and model.history == []
        client = model.get_openai_client()
        assert client is model.get_openai_client() and client.model_path == "echo"
        made = client.chat.completions.create(model=client.model_path, messages=hello)
        assert made.choices[0].message.content == "hello"
        other = model.get_openai_async_client()
        await other.chat.completions.create(model=other.model_path, messages=hello)
        assert len(model.extract_experience_from_history()) == 2
        await model.set_workflow_state({"stage": 1})
        model.set_workflow_state({"more": 2})
        assert await model.get_workflow_state() == {"stage": 1, "more": 2}
        await model.clean_workflow_state()
        assert model.get_workflow_state() == {}
        assert model.model_version == await model.model_version_async == 3
        assert model.model_path == model.model_name == "echo" and model.api_key == "echo"
        model.set_api_key(model.api_key)
        with pytest.raises(rw.Error, match="cannot be replaced"):
            model.set_api_key("another")
        with pytest.raises(rw.Error, match="no recorded turn"):
            model.convert_messages_to_experience([{"role": "assistant", "content": "never"}])

    asyncio.run(use(ModelWrapper(rw.models.Echo(model_version=3).bind(True))))


class Scoring(Workflow):
    """Scores the tokens of a response; the call is no turn of the run."""

    is_async = True

    async def run_async(self):
        (response,) = await self.model.chat_async([{"role": "user", "content": "hello"}])
        tokens = [int(token) for token in response.tokens]
        scores = await self.model.logprobs_async(tokens, temperature=0.5)
        assert list(self.model.logprobs(tokens)) == list(scores)
        turns = self.model.extract_experience_from_history()
        response.reward = float(len(turns))
        response.info = {"scores": [float(score) for score in scores]}
        return [response]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_log_probabilities_of_given_tokens(config, engine):
    server = rw.models.MockServer(engine)
    (one,) = collect(config, Task(workflow=Scoring), server)
    body = {"model": server.name, "prompt": one.tokens.tolist(), "logprobs": 0}
    request = urllib.request.Request(
        f"{server.base_url}/completions",
        json.dumps({**body, "echo": True, "max_tokens": 0}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        expected = json.load(answer)["choices"][0]["logprobs"]["token_logprobs"]
    assert expected[0] is None and one.info["scores"] == expected[1:]
    assert len(one.info["scores"]) == len(one.tokens) - 1
    assert one.reward == 1.0, "one turn, from chat"


def test_log_probabilities_need_a_server_that_reports_them():
    model = ModelWrapper(rw.models.Echo().bind(False))
    with pytest.raises(rw.Unsupported, match="Echo reports no log-probabilities"):
        model.logprobs([1, 2, 3])


class Seeing(Workflow):
    """Asks about an image and a video."""

    def run(self):
        question = "Is <image> in <video>?"
        (response,) = self.model.chat_mm(
            [{"role": "user", "content": question}],
            images=[self.task.raw_task["image"]],
            videos=["https://example.com/a.mp4"],
        )
        pathlib.Path(self.task.raw_task["sent"]).write_text(response.response_text)
        response.reward = 1.0
        return [response]


class SeeingServer(http.server.BaseHTTPRequestHandler):
    """An OpenAI-compatible server that accepts images, and returns the messages as text."""

    def do_GET(self):
        self.respond({"object": "list", "data": [{"id": "sees", "object": "model"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = {"role": "assistant", "content": json.dumps(body["messages"])}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        self.respond({"id": "1", "object": "chat.completion", "model": "sees", "choices": [choice]})

    def respond(self, answer):
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def seeing():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), SeeingServer) as server:
        threading.Thread(target=server.serve_forever).start()
        yield rw.models.OpenAI(f"http://127.0.0.1:{server.server_port}/v1", "sees")
        server.shutdown()


def test_messages_with_images_and_videos(config, tmp_path, seeing):
    path = tmp_path / "point.png"
    path.write_bytes(b"not a real image")
    row = {"image": str(path), "sent": str(tmp_path / "sent")}
    config.explorer.gateway.remote_media = True
    collect(config, Task(workflow=Seeing, raw_task=row, is_eval=True), seeing)
    (sent,) = json.loads((tmp_path / "sent").read_text())
    assert sent["content"] == [
        {"type": "text", "text": "Is "},
        {
            "type": "image_url",
            "image_url": {"url": "data:image/png;base64,bm90IGEgcmVhbCBpbWFnZQ=="},
        },
        {"type": "text", "text": " in "},
        {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}},
        {"type": "text", "text": "?"},
    ]


class Image:
    """Stands for an image of Pillow."""

    def save(self, file, format):
        file.write(format.encode())


def test_media_of_messages():
    message = mm_utils.build_mm_message("See <image>.", [Image(), "http://a/b.png"], [])
    assert [part["type"] for part in message["content"]] == ["image", "text", "image", "text"]
    sent = mm_utils.openai_messages([message])[0]["content"]
    assert sent[0] == {"type": "image_url", "image_url": {"url": "http://a/b.png"}}
    assert sent[2]["image_url"]["url"] == "data:image/png;base64,UE5H"
    assert mm_utils.build_mm_message("Hi", [], []) == {"role": "user", "content": "Hi"}
    with pytest.raises(ValueError, match="more <image> tags"):
        mm_utils.build_mm_message("<image>", [], [])
    with pytest.raises(ValueError, match="1 videos have no <video> tag"):
        mm_utils.mm_messages([{"role": "user", "content": "Hi"}], [], ["a.mp4"])
    for wrong, kind in (("notes.txt", ValueError), (7, TypeError)):
        parts = [{"type": "image", "image": wrong}]
        with pytest.raises(kind, match="image"):
            mm_utils.openai_messages([{"role": "user", "content": parts}])


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_methods_without_a_counterpart_tell_the_reason(name):
    model = ModelWrapper(rw.models.Echo().bind(False))
    with pytest.raises(rw.Unsupported, match=f"ModelWrapper.{name} is not available: ") as raised:
        getattr(model, name)("anything", more=1)
    assert raised.value.name == name and isinstance(raised.value, NotImplementedError)
    page = pathlib.Path(__file__).parents[2] / "docs" / "trinity.md"
    assert f"`{name}`" in page.read_text(), "docs/trinity.md must list it"
