"""Cost of observability for a job with Python workers, compared with observability switched off.

    cargo xtask bench observe

Every round runs the same evaluation with three explorers: without observability, with the defaults
(history, dashboard, alarms, metrics), and with a trace file, spans to a collector, a dashboard
client and a Prometheus scraper in addition. The figure is the CPU time of the engine and its
workers per task; ratios compare neighbouring rounds. Observability costs CPU time only in the
engine, so its share is printed too and is less noisy. Observing processes are not counted.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import multiprocessing
import os
import pathlib
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import rollway as rw

TASKS = 4000
RUNNERS = 4
ROUNDS = 13
WARM = 2

#: Seconds for background writers to finish before the next explorer starts.
SETTLE = 0.6

OFF, DEFAULTS, ALL = "off", "defaults", "everything"


@rw.workflow
async def nothing(task, model):
    return 1.0


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes everything."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def collect(pipe: Any) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    pipe.send(server.server_port)
    server.serve_forever()


@contextlib.contextmanager
def beside(what: Any, *args: Any) -> Iterator[int]:
    """Has something done by a process of its own; gives its number."""
    process = multiprocessing.get_context("spawn").Process(target=what, args=args)
    process.start()
    try:
        yield process.pid or 0
    finally:
        process.terminate()
        process.join()


def explorer(folder: pathlib.Path, name: str, address: str) -> rw.Explorer:
    tasks = folder / "tasks.jsonl"
    tasks.write_text("".join(json.dumps({"prompt": str(n)}) + "\n" for n in range(TASKS)))
    config = rw.Config()
    config.mode = "bench"
    config.name = name.replace(", ", "-").replace(" ", "-")
    config.checkpoint_root_dir = str(folder)
    config.buffer.explorer_input = {
        "default_workflow_type": "nothing",
        "eval_tasksets": [{"name": "all", "path": str(tasks), "format": {"prompt_key": "prompt"}}],
    }
    config.explorer.rollout_model.engine_type = "tiny"
    config.explorer.runner_per_model = RUNNERS
    config.monitor.monitor_type = "none"
    if name == OFF:
        config.dashboard.history = config.dashboard.enable = False
        alarms = config.alarms
        alarms.no_progress = alarms.consecutive_failures = alarms.starvation = None
    if name == ALL:
        config.trace.file = True
        config.trace.otlp_endpoint = address
    return rw.Explorer(config)


def look(url: str) -> None:
    """Follows a dashboard as a browser does, and scrapes its metrics every five seconds."""
    address, _, token = url.partition("/?token=")
    ask = {"authorization": f"Bearer {token}"}

    def scrape() -> None:
        while True:
            request = urllib.request.Request(f"{address}/metrics", headers=ask)
            urllib.request.urlopen(request).read()
            time.sleep(5)

    threading.Thread(target=scrape, daemon=True).start()
    events = urllib.request.urlopen(urllib.request.Request(f"{address}/api/events", headers=ask))
    while events.readline():
        pass


def processor(but: set[int]) -> tuple[float, float]:
    """Seconds of processor time: of this process, and of its children, but some of them."""
    nanos = 0
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        # Processes and threads may end while they are looked at.
        with contextlib.suppress(OSError):
            parent = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == os.getpid() and int(process.name) not in but:
                threads = (process / "task").glob("*/schedstat")
                nanos += sum(int(thread.read_text().split()[0]) for thread in threads)
    return time.process_time(), nanos / 1e9


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def main() -> None:
    names = (OFF, DEFAULTS, ALL)
    rates: dict[str, list[float]] = {name: [] for name in names}
    costs: dict[str, list[float]] = {name: [] for name in names}
    engine: dict[str, list[float]] = {name: [] for name in names}
    with contextlib.ExitStack() as stack:
        place = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ours, its = multiprocessing.Pipe()
        other = {stack.enter_context(beside(collect, its))}
        address = f"http://127.0.0.1:{ours.recv()}"
        explorers = {name: stack.enter_context(explorer(place, name, address)) for name in names}
        other.add(stack.enter_context(beside(look, explorers[ALL].dashboard_url)))
        for _ in range(ROUNDS):
            for name, one in explorers.items():
                began, used = time.perf_counter(), processor(other)
                (row,) = one.eval().result()
                assert row["failed"] == 0
                rates[name].append(TASKS / (time.perf_counter() - began))
                time.sleep(SETTLE)
                own, children = (
                    (now - then) / TASKS for now, then in zip(processor(other), used, strict=True)
                )
                costs[name].append(own + children)
                engine[name].append(own)
    print(f"no-op tasks in Python, {RUNNERS} runners, {TASKS} tasks a round")
    for name in names:
        rate = statistics.median(rates[name][WARM:])
        cost = statistics.median(costs[name][WARM:]) * 1e6
        own = statistics.median(engine[name][WARM:]) * 1e6
        pairs = zip(rates[name][WARM:], rates[OFF][WARM:], strict=True)
        by_clock = spread([ours / first for ours, first in pairs])
        pairs = zip(costs[name][WARM:], costs[OFF][WARM:], strict=True)
        by_cost = spread([first / ours for ours, first in pairs])
        print(
            f"  {name:<20}{rate:>8,.0f} tasks per second, {by_clock} of the first;"
            f" {cost:.1f} µs of processor time each, {by_cost}; {own:.1f} of them the engine's"
        )


if __name__ == "__main__":
    main()
