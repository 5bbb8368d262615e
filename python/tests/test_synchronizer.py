"""Weights from trainers in Python: into a folder, and to a synchronizer over HTTP."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

import rollway as rw
from rollway.client import safetensors, transfer


def read(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + length])
    arrays = {}
    for name, about in head.items():
        begin, end = (8 + length + offset for offset in about["data_offsets"])
        dtype = {"F32": np.float32, "I64": np.int64}[about["dtype"]]
        arrays[name] = np.frombuffer(data[begin:end], dtype).reshape(about["shape"])
    return arrays


def latest(folder):
    return int((folder / "latest_state_dict_iteration.txt").read_text())


STATE = {"w": np.arange(6, dtype=np.float32).reshape(2, 3).T, "n": np.array([7], dtype=np.int64)}


def test_a_state_dict_is_published_into_a_folder(tmp_path):
    rw.publish_weights(tmp_path, STATE, version=3)
    assert latest(tmp_path) == 3
    arrays = read(tmp_path / "global_step_3" / "model.safetensors")
    assert np.array_equal(arrays["w"], STATE["w"]) and arrays["n"].tolist() == [7]
    assert rw.latest_version(tmp_path) == 3 and rw.latest_version(tmp_path / "other") == 0
    with pytest.raises(rw.SynchronizerError, match="backwards"):
        rw.publish_weights(tmp_path, STATE, version=2)
    rw.publish_weights(tmp_path, tmp_path / "global_step_3", version=4)
    assert latest(tmp_path) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "global_step_3",
        "global_step_4",
        "latest_state_dict_iteration.txt",
    ]


def test_invalid_weights_leave_no_file(tmp_path):
    with pytest.raises(TypeError, match="'w' is a list"):
        rw.publish_weights(tmp_path, {"w": [1.0]}, version=1)
    (tmp_path / "torn.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    with pytest.raises(rw.SynchronizerError, match="not complete"):
        rw.publish_weights(tmp_path / "job", tmp_path / "torn.safetensors", version=1)
    with pytest.raises(rw.SynchronizerError, match="does not exist"):
        rw.publish_weights(tmp_path / "job", tmp_path / "nowhere", version=1)
    assert not (tmp_path / "latest_state_dict_iteration.txt").exists()
    assert not (tmp_path / "job" / "latest_state_dict_iteration.txt").exists()


def test_a_missing_synchronizer_is_reported_in_time(tmp_path):
    with pytest.raises(rw.SynchronizerError, match="see whether the job is running"):
        rw.Synchronizer(tmp_path, timeout=0.05)


class Host(BaseHTTPRequestHandler):
    """As much of a synchronizer as a trainer calls."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def record(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        assert self.headers["authorization"] == "Bearer open sesame"
        self.server.requests.append((self.path, body))
        return body

    def do_GET(self):
        self.record()
        if self.path == "/v1/job":
            self.answer({"job": "a/b", "method": "memory"})
        else:
            waits = {"wait": 5, "waiting": 1, "demanded": 2}
            explorers = [{"name": "one", "state": "waiting"}]
            view = {"newest": None, "explorers": explorers, "trainer": None, "loading": []}
            self.answer({**view, "waits": waits})

    def do_POST(self):
        self.record()
        self.answer(
            {
                "/v1/join": {"member": 9, "heartbeat_timeout": 60.0},
                "/v1/heartbeat": "known",
                "/v1/waits": {"wait": 5, "waiting": 1, "demanded": 2},
                "/v1/trainer": True,
            }.get(self.path)
        )

    def do_PUT(self):
        self.record()
        self.answer(None)


@pytest.fixture
def host(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Host)
    server.requests = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.url = f"http://127.0.0.1:{server.server_port}"
    card = {"url": server.url, "secret": "open sesame", "job": "a/b", "method": "memory"}
    (tmp_path / "synchronizer.json").write_text(json.dumps(card))
    yield server
    server.shutdown()


def bodies(host, path):
    return [json.loads(body) for requested, body in host.requests if requested == path]


def test_a_trainer_joins_publishes_and_leaves(host, tmp_path):
    with rw.Synchronizer(tmp_path) as sync:
        assert (sync.url, sync.method) == (host.url, "memory")
        assert sync.wait_for_demand(step=2) and not sync.wait_for_demand(step=1)
        assert sync.explorers() == {"one": "waiting"}
        sync.set_training()
        sync.report(2, {"loss": np.float32(0.5), "tokens": 12, "gradient": float("nan")})
        sync.publish(STATE, version=2)
        sync.set_idle(sync.last_wait())
    pushed = dict(host.requests)["/v1/weights/2"]
    (tmp_path / "pushed").write_bytes(pushed)
    assert np.array_equal(read(tmp_path / "pushed")["w"], STATE["w"])
    assert bodies(host, "/v1/join") == [{"role": "trainer", "name": "trainer"}]
    states = [call["state"] for call in bodies(host, "/v1/trainer")]
    assert states == ["training", {"idle": {"seen": 5}}]
    metrics = {"loss": 0.5, "tokens": 12.0}
    assert bodies(host, "/v1/metrics") == [{"step": 2, "metrics": metrics}]
    assert [call["reason"] for call in bodies(host, "/v1/leave")] == ["done"]


def test_an_exception_of_the_trainer_reaches_explorers(host, tmp_path):
    with pytest.raises(ValueError), rw.Synchronizer(tmp_path, name="mine"):
        raise ValueError("loss is not finite")
    [left] = bodies(host, "/v1/leave")
    assert (left["reason"], left["message"]) == ("failed", "ValueError: loss is not finite")


def test_weights_go_to_the_synchronizer_that_runs_for_a_folder(host, tmp_path):
    rw.publish_weights(tmp_path, STATE, version=1)
    rw.publish_weights(host.url, STATE, version=2, secret="open sesame")
    paths = [path for path, _ in host.requests if path.startswith("/v1/weights")]
    assert paths == ["/v1/weights/1", "/v1/weights/2"]
    assert not (tmp_path / "global_step_1").exists()


def test_kinds_without_a_name_are_refused(tmp_path):
    with (tmp_path / "x").open("wb") as file, pytest.raises(TypeError, match="complex64"):
        safetensors.write(file, {"w": np.zeros(1, dtype=np.complex64)})


def test_weights_that_cannot_be_sent_are_written_to_the_folder(tmp_path, caplog):
    (tmp_path / "synchronizer.json").write_text('{"method": "nccl"}')
    assert rw.publish_weights(tmp_path, STATE, version=1, timeout=0.1) == "checkpoint"
    assert rw.latest_version(tmp_path) == 1
    assert "weights of version 1 cannot be sent over nccl" in caplog.text
    with pytest.raises(ValueError, match="'carrier pigeon', expected one of 'checkpoint'"):
        rw.publish_weights(tmp_path, STATE, version=2, method="carrier pigeon")


def test_the_synchronizer_learns_where_weights_are_that_could_not_be_sent(host, tmp_path):
    # It has been told of a group that sends this version, and would not look into the folder.
    assert rw.publish_weights(tmp_path, STATE, version=1, method="gloo") == "checkpoint"
    location = {"folder": str(tmp_path / "global_step_1")}
    assert bodies(host, "/v1/publish") == [{"version": 1, "location": location}]


def test_a_method_of_a_newer_job_is_refused(tmp_path):
    (tmp_path / "synchronizer.json").write_text('{"method": "carrier pigeon"}')
    with pytest.raises(rw.SynchronizerError, match="by 'carrier pigeon', which this version"):
        rw.publish_weights(tmp_path, STATE, version=1)
    assert rw.latest_version(tmp_path) == 0


def test_a_model_has_a_state_dict(tmp_path):
    class Model:
        def state_dict(self):
            return STATE

    assert rw.publish_weights(tmp_path, Model(), version=1) == "checkpoint"
    assert (tmp_path / "global_step_1" / "model.safetensors").is_file()
    with pytest.raises(TypeError, match="a int is not a state dict"):
        rw.publish_weights(tmp_path, 3, version=2)


def fleet(**changes):
    report = {"engine": "vllm", "servers": 2, "ranks_per_server": 4, "version": None}
    explorer = {"name": "one", "state": "waiting", "servers": report | changes}
    return {"explorers": [explorer]}


def test_a_transfer_needs_servers_that_can_take_it():
    found = transfer.read_fleet(fleet())
    assert (found.engine, found.world_size) == ("vllm", 9)
    with pytest.raises(transfer.TransferError, match="no server that is running"):
        transfer.read_fleet(fleet(servers=0))
    with pytest.raises(transfer.TransferError, match="has reported its servers"):
        transfer.read_fleet({"explorers": [{"name": "one", "state": "present"}]})
    two = fleet()["explorers"] * 2
    with pytest.raises(transfer.TransferError, match="several explorers"):
        transfer.read_fleet({"explorers": two})
    # Explorers that have left do not count.
    left = fleet()["explorers"][0] | {"state": "done"}
    assert transfer.read_fleet({"explorers": [*fleet()["explorers"], left]}).servers == 2
