"""Traces: what a collector gets, and what a viewer finds in the file."""

import asyncio
import hashlib
import http.server
import json
import logging
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
from opentelemetry.proto.trace.v1 import trace_pb2
from test_examples import environment, rollway

import rollway as rw


@rw.workflow
async def stumble(task, model):
    """Asks, and fails the first time that it is asked about a task with a stone in its way."""
    stone = Path(task.raw_task["stone"])
    reply = await model.chat([{"role": "user", "content": task.raw_task["question"]}], max_tokens=5)
    if stone.exists():
        stone.unlink()
        raise RuntimeError("stumbled")
    return float(len(reply.text) > 0)


@pytest.fixture
def config(config, tmp_path):
    """A small job whose third task fails once."""
    rows = []
    for number in range(6):
        stone = tmp_path / f"stone-{number}"
        if number == 3:
            stone.touch()
        rows.append({"question": f"0{number}+01=", "answer": "001", "stone": str(stone)})
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = {"prompt_key": "question", "response_key": "answer"}
    config.mode = "bench"
    config.project = "tests"
    config.name = "traced"
    config.buffer.explorer_input = {
        "default_workflow_type": "stumble",
        "eval_tasksets": [
            {"name": "sums", "path": str(path), "format": columns, "repeat_times": 2}
        ],
    }
    config.explorer.rollout_model.engine_type = "tiny"
    config.explorer.max_retry_times = 1
    return config


class Collector:
    """Takes OTLP over HTTP, at first with bad grace."""

    def __init__(self):
        self.refusals = [(503, {"Retry-After": "0"}), (429, {})]
        self.headers = []
        self.requests = []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/traces"
                collector.headers.append(dict(self.headers))
                if collector.refusals:
                    status, headers = collector.refusals.pop(0)
                    return self.answer(status, headers, b"")
                request = service.ExportTraceServiceRequest.FromString(body)
                collector.requests.append(request)
                answer = service.ExportTraceServiceResponse().SerializeToString()
                return self.answer(200, {"Content-Type": "application/x-protobuf"}, answer)

            def answer(self, status, headers, body):
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def spans(self):
        for request in self.requests:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    yield from scope.spans

    def resource(self):
        return values(self.requests[0].resource_spans[0].resource.attributes)

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def collector():
    collector = Collector()
    yield collector
    collector.close()


def values(attributes):
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


def digest(text, size):
    return hashlib.sha256(text.encode()).digest()[:size]


def run(config):
    with rw.Explorer(config) as explorer:
        (row,) = explorer.benchmark().result()
    assert row["failed"] == 0


def test_a_collector_gets_every_task_whole(config, collector, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "rollouts")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=lab")
    config.trace.otlp_endpoint = collector.url
    config.trace.otlp_headers = {"x-team": "blue"}
    run(config)

    assert collector.refusals == [], "it was tried again"
    assert {headers["x-team"] for headers in collector.headers} == {"blue"}
    assert {headers["content-type"] for headers in collector.headers} == {"application/x-protobuf"}
    resource = collector.resource()
    assert resource["service.name"] == "rollouts"
    assert resource["deployment.environment"] == "lab"
    assert resource["rollway.job"] == "tests/traced"

    spans = list(collector.spans())
    ids = {span.span_id for span in spans}
    assert len(ids) == len(spans), "no span comes twice"
    by_name = defaultdict(list)
    for span in spans:
        by_name[span.name].append(span)
    counts = {name: len(them) for name, them in by_name.items()}
    # Six tasks of two runs; one run needed a second attempt, with one more call.
    assert counts == {"eval": 1, "batch": 1, "task": 6, "run": 12, "attempt": 13, "call": 13}

    parents = {"batch": "eval", "run": "task", "attempt": "run", "call": "attempt"}
    known = {span.span_id: span for span in spans}
    for span in spans:
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        if span.name in parents:
            parent = known[span.parent_span_id]
            assert parent.name == parents[span.name]
            assert parent.trace_id == span.trace_id
            assert parent.start_time_unix_nano <= span.start_time_unix_nano
        else:
            assert span.parent_span_id == b""
    (batch,) = by_name["batch"]
    for task in by_name["task"]:
        (link,) = task.links
        assert (link.trace_id, link.span_id) == (batch.trace_id, batch.span_id)

    check_the_one_that_stumbled(by_name, known)
    for call in by_name["call"]:
        attributes = values(call.attributes)
        assert call.kind == trace_pb2.Span.SPAN_KIND_CLIENT
        assert attributes["http.response.status_code"] == 200
        assert attributes["gen_ai.usage.input_tokens"] > 0
        assert attributes["gen_ai.usage.output_tokens"] > 0
        assert attributes["server.address"].startswith("http://")
        assert [event.name for event in call.events] == ["sent"]


def check_the_one_that_stumbled(by_name, known):
    failed = [span for span in by_name["attempt"] if span.status.code == 2]
    (attempt,) = failed
    attributes = values(attempt.attributes)
    assert attributes["error.type"] == "workflow"
    assert attributes["rollway.outcome"] == "failed"
    assert "stumbled" in attempt.status.message
    run = known[attempt.parent_span_id]
    assert run.status.code == 1 and values(run.attributes)["rollway.attempts"] == 2
    # Ids are derived from the names.
    batch, task = attributes["rollway.batch"], attributes["rollway.task"]
    number, of = attributes["rollway.attempt"], attributes["rollway.run"]
    assert (batch, task) == ("0/sums", 3)
    assert attempt.trace_id == digest(f"rollway:tests/traced:task:{batch}:{task}", 16)
    assert attempt.span_id == digest(f"rollway:tests/traced:attempt:{number}:{of}", 8)
    workflow = values(known[run.parent_span_id].attributes)["rollway.workflow"]
    assert workflow == "stumble"


def test_a_sample_has_whole_tasks(config, collector):
    collector.refusals = []
    config.trace.otlp_endpoint = collector.url
    config.trace.sample = 0.5
    run(config)
    traced = defaultdict(set)
    for span in collector.spans():
        if span.name in ("task", "run", "attempt", "call"):
            traced[span.trace_id].add(span.name)
    assert 0 < len(traced) < 6
    assert all(names == {"task", "run", "attempt", "call"} for names in traced.values())


def test_an_unreachable_collector_does_not_affect_the_job(config, collector):
    collector.close()
    config.trace.otlp_endpoint = collector.url
    run(config)


class Viewer:
    """Reads the Trace Event Format as viewers do, and holds it to its rules."""

    def __init__(self, text):
        text = text.rstrip()
        if not text.endswith("]"):
            # The array may lack its end, and the last event its whole.
            text = text[: text.rindex("\n")].rstrip().rstrip(",") + "]"
        self.events = json.loads(text)
        self.names = {}
        self.slices = []
        self.flows = defaultdict(dict)
        self.counters = defaultdict(list)
        self.open = defaultdict(list)
        last = defaultdict(float)
        for event in self.events:
            track = event["pid"], event["tid"]
            if event["ph"] == "M":
                if event["name"] in ("process_name", "thread_name"):
                    self.names[(event["name"], *track)] = event["args"]["name"]
                continue
            key = track if event["ph"] != "C" else (event["name"], event["pid"])
            assert event["ts"] >= last[key], f"time goes backwards: {event}"
            last[key] = event["ts"]
            getattr(self, event["ph"])(track, event)

    def B(self, track, event):
        assert event["name"]
        assert ("thread_name", *track) in self.names and isinstance(event["args"], dict)
        self.open[track].append(event)

    def E(self, track, event):
        begin = self.open[track].pop()
        path = tuple(above["name"] for above in self.open[track])
        self.slices.append((track, path, begin, event))

    def i(self, track, event):
        assert event["s"] == "t" and event["name"]

    def C(self, track, event):
        for name, value in event["args"].items():
            assert isinstance(value, (int, float))
            self.counters[event["name"], name].append(value)

    def s(self, track, event):
        assert self.open[track], "an arrow begins in a slice"
        self.flows[event["id"]]["from"] = self.open[track][-1]["name"]

    def f(self, track, event):
        assert event["bp"] == "e" and self.open[track], "an arrow ends in a slice"
        self.flows[event["id"]]["to"] = self.open[track][-1]["name"]

    def named(self, track):
        return self.names["process_name", track[0], 0], self.names[("thread_name", *track)]


def test_a_viewer_reads_the_file(config, tmp_path):
    config.trace.file = True
    run(config)
    (path,) = tmp_path.glob("**/trace.json")
    json.loads(path.read_text())
    viewer = Viewer(path.read_text())
    assert not any(viewer.open.values()), "everything has ended"

    depths = defaultdict(int)
    for track, path_to, begin, end in viewer.slices:
        process, thread = viewer.named(track)
        if process == "runners":
            assert thread.startswith("runner ")
            depths[len(path_to)] += 1
            if begin["name"] == "call":
                assert path_to[-1].startswith("run ") and end["args"]["status"] == 200
        else:
            assert (process, thread) in [("job", "evaluations"), ("job", "batches")]
    # Seven attempts: six tasks, and one more; in them thirteen runs with a call each.
    assert depths == {0: 7, 1: 13, 2: 13}
    assert sum("stumbled" in str(event.get("args")) for event in viewer.events) == 1
    assert len(viewer.flows) == 7
    assert {flow["from"] for flow in viewer.flows.values()} == {"batch 0/sums"}
    assert all(flow["to"].startswith("stumble 0/sums/") for flow in viewer.flows.values())
    assert ("runs", "in flight") in viewer.counters and ("runs", "pending") in viewer.counters


def command(*arguments):
    """Runs `rollway trace`; returns its exit code and what it said."""
    done = subprocess.run(
        rollway("trace", *arguments),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout


def test_the_command_makes_the_same_file_afterwards(config, tmp_path):
    config.trace.file = True
    run(config)
    (live,) = tmp_path.glob("**/trace.json")
    code, output = command(str(live.parent))
    path = live.parent / "trace-from-history.json"
    assert (code, output.splitlines()[0].split(";")[0]) == (0, f"{path}: 12 runs")
    viewer, seen = Viewer(path.read_text()), Viewer(live.read_text())
    assert not any(viewer.open.values()), "everything has ended"

    def slices(viewer):
        """Returns how often each thing was done, by whom and within what."""
        counts = defaultdict(int)
        for track, path_to, begin, _ in viewer.slices:
            counts[viewer.named(track)[0], len(path_to), begin["name"]] += 1
        return counts

    assert slices(viewer) == slices(seen)
    assert len(viewer.flows) == len(seen.flows) == 7
    assert sum("stumbled" in str(event.get("args")) for event in viewer.events) == 1

    # What does not fit is said, and what there is can still be read.
    short = tmp_path / "short.json"
    code, output = command(str(live.parent), "-o", str(short), "--max-bytes", "4000")
    assert code == 0 and "raise --max-bytes to include them" in output
    assert short.stat().st_size <= 4000 and Viewer(short.read_text()).events
    code, output = command(str(tmp_path / "nowhere"))
    assert code == 2 and str(tmp_path / "nowhere") in output


def test_a_torn_file_is_read_and_gone_on_with(config, tmp_path):
    config.trace.file = True
    run(config)
    (path,) = tmp_path.glob("**/trace.json")
    text = path.read_bytes()
    # As a process leaves it that is killed while it writes.
    path.write_bytes(text[: len(text) * 2 // 3])
    assert Viewer(path.read_text()).slices
    run(config)
    viewer = Viewer(path.read_text())
    names = [name for key, name in viewer.names.items() if key[0] == "process_name"]
    assert sorted(names) == ["job", "job (process 2)", "runners", "runners (process 2)"]
    second = {key[1] for key, name in viewer.names.items() if name.endswith("(process 2)")}
    assert not any(open for track, open in viewer.open.items() if track[0] in second)
    assert sum(1 for track, _, _, _ in viewer.slices if track[0] in second) == 6 + 12 + 12 + 2


@rw.workflow
async def talk(task, model):
    """Says something in every way there is."""
    await model.chat([{"role": "user", "content": task.raw_task["question"]}], max_tokens=5)
    word = task.raw_task["question"]
    print("printed", end=" ")
    await asyncio.sleep(0)
    print(word)
    logging.getLogger("games").warning("logged %s\nin two lines", word)
    return 1.0


@rw.workflow
def talk_in_a_thread(task, model):
    """As above, without an event loop."""
    word = task.raw_task["question"]
    print("printed", word, file=sys.stderr)
    logging.getLogger("games").warning("logged %s\nin two lines", word)
    return 1.0


@pytest.mark.parametrize(
    ("workflow", "mode"),
    [("talk", "asynchronous"), ("talk_in_a_thread", "sequential")],
)
def test_log_lines_have_the_ids_of_their_run(config, caplog, workflow, mode):
    config.buffer.explorer_input.default_workflow_type = workflow
    config.explorer.concurrent_mode = mode
    run(config)
    output = [record for record in caplog.records if record.name == "rollway.worker"]
    for kind, level in (("printed", logging.INFO), ("logged", logging.WARNING)):
        of_kind = [record for record in output if f"{kind} 0" in record.getMessage()]
        assert len(of_kind) == 12, "each of six tasks is run twice"
        runs = set()
        for record in of_kind:
            word = f"0{record.rollway_task}+01="
            assert f"{kind} {word}" in record.getMessage()
            assert record.levelno == level and record.rollway_batch == "0/sums"
            assert int(record.rollway_attempt) >= 0
            if kind == "logged":
                assert record.rollway_logger == "games"
                assert record.getMessage().endswith(f"{word}\nin two lines")
            runs.add((record.rollway_task, record.rollway_run))
        assert runs == {(str(task), str(run)) for task in range(6) for run in range(2)}
