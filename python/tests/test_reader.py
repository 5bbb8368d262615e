"""The trainer's side: buffers read in this process, from another, through cuts and restarts."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import rollway as rw
from rollway import _rollway
from rollway.client._pending import PendingResult, identity


def experiences(numbers, version=None):
    return [
        rw.Experience(
            eid=rw.EID(1, number, 0, 0, suffix=f"{number:06x}"),
            tokens=list(range(2, 5 + number % 3)),
            prompt_length=2,
            logprobs=[-0.5] * (1 + number % 3),
            reward=float(number),
            info={} if version is None else {"model_version": version},
        )
        for number in numbers
    ]


def write(url, numbers, key=None, close=True, version=None):
    payload = rw.Experience.serialize_many(experiences(numbers, version))
    key = key or str(numbers)
    stored = PendingResult(
        "write", lambda: _rollway.write_batch(url, "explorer", key, payload), identity
    ).result()
    if close:
        finish(url)
    return stored


def finish(url):
    PendingResult("close", lambda: _rollway.close_writer(url, "explorer"), identity).result()


def numbers(batches):
    return [int(experience.reward) for batch in batches for experience in batch]


@pytest.fixture
def database(tmp_path):
    return f"sqlite:///{tmp_path}/experience.db"


@pytest.fixture(params=["x.db", "x.jsonl", "x.parquet"])
def storage(request, tmp_path):
    path = str(tmp_path / request.param)
    return f"sqlite:///{path}" if path.endswith(".db") else path


def test_reads_batches_to_the_end_of_data(storage):
    write(storage, range(10))
    with rw.ExperienceReader(storage, batch_size=4) as reader:
        batches = list(reader)
        with pytest.raises(StopIteration):
            reader.read()
    assert [len(batch) for batch in batches] == [4, 4, 2]
    # The end is told apart from a buffer without experiences.
    with rw.ExperienceReader(storage, batch_size=4) as reader:
        with pytest.raises(StopIteration, match="named 'trainer' have read all .* another `name`"):
            reader.read()
    assert batches[0].experiences == experiences(range(4))
    assert numbers(batches) == list(range(10))


def test_a_state_is_resumed_exactly(storage):
    write(storage, range(20))
    with rw.ExperienceReader(storage, batch_size=3) as reader:
        first = [reader.read(), reader.read()]
        state = json.loads(json.dumps(reader.state_dict()))
        after = [reader.read(5)]
    with rw.ExperienceReader(storage, batch_size=3) as reader:
        reader.load_state_dict(state)
        assert reader.position == state["position"]
        again = list(reader)
    assert numbers(first) == list(range(6))
    assert numbers(after) == list(range(6, 11))
    assert numbers(again) == list(range(6, 20))
    with pytest.raises(ValueError, match="position"):
        reader.load_state_dict({})


def test_short_reads_and_timeouts(database):
    write(database, range(3), close=False)
    reader = rw.ExperienceReader(database, batch_size=5, timeout=0.0)
    assert numbers([reader.read()]) == [0, 1, 2]
    with pytest.raises(TimeoutError, match="experience.db"):
        reader.read()
    reader.raise_on_timeout = False
    assert len(reader.read()) == 0
    finish(database)
    with pytest.raises(StopIteration):
        reader.read()
    reader.close()
    with pytest.raises(rw.Closed):
        reader.read()


def test_old_versions_are_passed_over(database):
    write(database, range(4), version=1, close=False)
    write(database, range(4, 8), version=7)
    with rw.ExperienceReader(database, min_model_version=5) as reader:
        batch = reader.read()
    assert numbers([batch]) == [4, 5, 6, 7]
    assert batch.versions.tolist() == [7] * 4
    assert (batch.stale, reader.stale) == (4, 4)


def test_numpy_dense(database):
    write(database, range(3))
    with rw.ExperienceReader(database) as reader:
        batch = reader.read()
    arrays = batch.to_numpy(pad=-1, length=6)
    assert arrays["tokens"].tolist() == [
        [2, 3, 4, -1, -1, -1],
        [2, 3, 4, 5, -1, -1],
        [2, 3, 4, 5, 6, -1],
    ]
    assert arrays["attention_mask"].sum(axis=1).tolist() == [3, 4, 5]
    assert arrays["action_mask"].tolist()[1] == [False, False, True, True, False, False]
    assert arrays["logprobs"].dtype == np.float32
    assert arrays["logprobs"].tolist()[0] == [0, 0, -0.5, 0, 0, 0]
    assert arrays["rewards"].tolist() == [0, 1, 2]
    assert "advantages" not in arrays
    with pytest.raises(ValueError, match="5 tokens"):
        batch.to_numpy(length=4)


def test_numpy_ragged(database):
    write(database, range(3))
    with rw.ExperienceReader(database) as reader:
        arrays = reader.read().to_numpy(pad=None)
    assert arrays["offsets"].tolist() == [0, 3, 7, 12]
    assert arrays["tokens"].tolist() == [2, 3, 4, 2, 3, 4, 5, 2, 3, 4, 5, 6]
    assert arrays["response_offsets"].tolist() == [0, 1, 3, 6]
    assert arrays["logprobs"].tolist() == [-0.5] * 6


def test_missing_values_are_not_taken_for_zeros():
    one = rw.Experience(tokens=[1, 2, 3], prompt_length=1, logprobs=[-1, -2], reward=1.0)
    two = rw.Experience(tokens=[1, 2], prompt_length=1)
    batch = rw.ExperienceBatch(rw.Experience.serialize_many([one, two]), [0, 0], 0)
    arrays = batch.to_numpy()
    assert np.isnan(arrays["logprobs"][1, 1]) and arrays["logprobs"][1, 2] == 0
    assert np.isnan(arrays["rewards"][1])
    assert (
        len(rw.ExperienceBatch(rw.Experience.serialize_many([]), [], 0).to_numpy()["tokens"]) == 0
    )


def test_arrow(database):
    try:
        import pyarrow
    except ImportError:
        write(database, range(3))
        with (
            rw.ExperienceReader(database) as reader,
            pytest.raises(rw.MissingPackage, match="pyarrow"),
        ):
            reader.read().arrow()
        return
    write(database, range(3))
    with rw.ExperienceReader(database, batch_size=2) as reader:
        batches = list(reader.arrow())
    table = pyarrow.Table.from_batches(batches)
    assert table["tokens"].to_pylist()[2] == [2, 3, 4, 5, 6]
    assert table["reward"].to_pylist() == [0.0, 1.0, 2.0]


def test_torch_is_named_when_it_is_missing(database):
    try:
        import torch
    except ImportError:
        write(database, range(3))
        with (
            rw.ExperienceReader(database) as reader,
            pytest.raises(rw.MissingPackage, match="torch"),
        ):
            next(reader.torch())
        return
    write(database, range(3))
    with rw.ExperienceReader(database) as reader:
        tensors = next(reader.torch())
    assert tensors["tokens"].shape == (3, 5) and tensors["tokens"].dtype == torch.int32


async def test_async_for(database):
    write(database, range(7))
    reader = rw.ExperienceReader(database, batch_size=3)
    batches = [batch async for batch in reader]
    assert numbers(batches) == list(range(7))
    reader.close()


async def test_a_read_that_was_cancelled_loses_nothing(database):
    write(database, range(2), close=False)
    reader = rw.ExperienceReader(database, batch_size=5)
    for patience in (0, 0.3):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(reader.aread(), patience)
    position = reader.position
    write(database, range(2, 4))
    assert numbers([batch async for batch in reader]) == [0, 1, 2, 3]
    assert reader.position != position
    reader.close()


@pytest.fixture(params=["tcp", "unix"])
def server(request, database, tmp_path):
    address = "rollway://127.0.0.1:0"
    if request.param == "unix":
        address = f"rollway+unix:{tmp_path}/reader.sock"
    with rw.ExperienceServer(database, address) as server:
        yield server


def test_over_sockets(server, database):
    write(database, range(9))
    with rw.ExperienceReader(server.url, 4, secret=server.secret) as reader:
        assert numbers(reader) == list(range(9))
        assert reader.name in repr(reader)


def test_a_wrong_secret_is_refused(server, monkeypatch, tmp_path):
    with pytest.raises(rw.BufferUnsupported, match="secret"):
        rw.ExperienceReader(server.url, secret="wrong")
    # The reader leaves after the challenge; the server counts it when it notices.
    while not server.refused:
        time.sleep(0.01)
    assert server.refused == {"bad_secret": 1}
    with pytest.raises(rw.BufferUnsupported, match="ROLLWAY_READER_SECRET"):
        rw.ExperienceReader(server.url)
    file = tmp_path / "secret"
    file.write_text(server.secret + "\n")
    rw.ExperienceReader(server.url, secret=file).close()
    monkeypatch.setenv("ROLLWAY_READER_SECRET_FILE", str(file))
    rw.ExperienceReader(server.url).close()
    monkeypatch.setenv("ROLLWAY_READER_SECRET", server.secret)
    rw.ExperienceReader(server.url).close()


def test_addresses_that_are_none():
    with pytest.raises(ValueError, match="ROLLWAY_READER_SECRET"):
        rw.ExperienceReader("rollway://127.0.0.1:1?secret=x")
    with pytest.raises(ValueError, match="mysql"):
        rw.ExperienceReader("mysql://somewhere/x")
    with pytest.raises(ValueError, match="batch_size"):
        rw.ExperienceReader("x.jsonl", batch_size=0)


def test_two_readers_of_one_name_share(server, database):
    write(database, range(40))
    found, lock = [], threading.Lock()

    def read():
        with rw.ExperienceReader(server.url, 3, secret=server.secret) as reader:
            for batch in reader:
                with lock:
                    found.extend(numbers([batch]))

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(40))


def test_unacknowledged_samples_are_served_again(server, database):
    write(database, range(6))
    with (
        pytest.raises(ZeroDivisionError),
        rw.ExperienceReader(server.url, 2, secret=server.secret) as reader,
    ):
        reader.read()
        reader.read()
        raise ZeroDivisionError
    with rw.ExperienceReader(server.url, 6, secret=server.secret) as reader:
        assert numbers(reader) == [2, 3, 4, 5]


def test_end_of_data_reaches_a_reader_that_waits(server, database):
    write(database, range(2), close=False)
    reader = rw.ExperienceReader(server.url, 5, secret=server.secret)
    found = []
    thread = threading.Thread(target=lambda: found.extend(reader))
    thread.start()
    finish(database)
    thread.join()
    assert numbers(found) == [0, 1]
    reader.close()


def test_a_damaged_experience_is_named_and_passed_over(database):
    write(database, range(4))
    connection = sqlite3.connect(database.removeprefix("sqlite:///"))
    with connection:
        row = connection.execute("SELECT experience_bytes FROM experience WHERE id = 3").fetchone()
        damaged = bytearray(row[0])
        damaged[-1] ^= 1
        connection.execute(
            "UPDATE experience SET experience_bytes = ? WHERE id = 3", (bytes(damaged),)
        )
    connection.close()
    with rw.ExperienceReader(database) as reader:
        assert numbers([reader.read()]) == [0, 1]
        with pytest.raises(rw.InvalidPayload, match="000002 is damaged"):
            reader.read()
        assert numbers(reader) == [3]


SERVE = """
import sys
import rollway as rw

server = rw.ExperienceServer(sys.argv[1], sys.argv[2], secret="between us")
print(server.url, flush=True)
sys.stdin.read()
"""

READ = """
import sys
import rollway as rw

with rw.ExperienceReader(sys.argv[1], 4) as reader:
    print("ready", flush=True)
    for batch in reader:
        print(*[int(experience.reward) for experience in batch], flush=True)
"""


def start(script, *arguments, **environment):
    """Starts a process and waits for its first line."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    return process, process.stdout.readline().strip()


def test_from_another_process(server, database):
    write(database, range(10))
    process, line = start(READ, server.url, ROLLWAY_READER_SECRET=server.secret)
    assert line == "ready"
    assert [int(n) for n in process.stdout.read().split()] == list(range(10))
    assert process.wait() == 0


def test_ctrl_c_ends_a_read_that_waits(server, database):
    write(database, range(2), close=False)
    for source in (database, server.url):
        process, line = start(READ, source, ROLLWAY_READER_SECRET=server.secret)
        assert line == "ready"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == -signal.SIGINT


def test_a_server_that_is_killed_and_started_again(database, tmp_path):
    write(database, range(60))
    address = f"rollway+unix:{tmp_path}/reader.sock"
    process, url = start(SERVE, database, address)
    reader = rw.ExperienceReader(url, 7, secret="between us")
    found, states = [], []
    for batch in reader:
        found.extend(numbers([batch]))
        states.append((len(found), reader.state_dict()))
        if len(states) in (2, 3, 6):
            process.kill()
            process.wait()
            process, url = start(SERVE, database, address)
    assert found == list(range(60))
    count, state = states[3]
    reader.load_state_dict(state)
    assert numbers(reader) == list(range(count, 60))
    reader.close()
    process.kill()
    process.wait()


def test_a_server_that_is_killed_while_a_reader_waits(database, tmp_path):
    write(database, range(3), close=False)
    address = f"rollway+unix:{tmp_path}/reader.sock"
    process, url = start(SERVE, database, address)
    reader = rw.ExperienceReader(url, 7, secret="between us")
    found = []
    thread = threading.Thread(target=lambda: found.extend(numbers(reader)))
    thread.start()
    process.kill()
    process.wait()
    write(database, range(3, 9), close=False)
    process, _ = start(SERVE, database, address)
    finish(database)
    thread.join()
    assert found == list(range(9))
    reader.close()
    process.kill()
    process.wait()
