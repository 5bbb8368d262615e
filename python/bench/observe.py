"""What it costs a job with workers in Python to be observed, in turns with nobody looking.

    cargo xtask bench observe

Every round runs the same evaluation twice, by an explorer that nobody looks at and by one that
writes a trace file, for which all runs are observed. The ratio is of neighbours in time.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import tempfile
import time

import rollway as rw

TASKS = 4000
RUNNERS = 4
ROUNDS = 9
WARM = 1


@rw.workflow
async def nothing(task, model):
    return 1.0


def explorer(folder: pathlib.Path, name: str, is_observed: bool) -> rw.Explorer:
    tasks = folder / "tasks.jsonl"
    tasks.write_text("".join(json.dumps({"prompt": str(n)}) + "\n" for n in range(TASKS)))
    config = rw.Config()
    config.mode = "bench"
    config.name = name
    config.checkpoint_root_dir = str(folder)
    config.buffer.explorer_input = {
        "default_workflow_type": "nothing",
        "eval_tasksets": [{"name": "all", "path": str(tasks), "format": {"prompt_key": "prompt"}}],
    }
    config.explorer.rollout_model.engine_type = "tiny"
    config.explorer.runner_per_model = RUNNERS
    config.monitor.monitor_type = "none"
    config.trace.file = is_observed
    return rw.Explorer(config)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        with explorer(place, "alone", False) as alone, explorer(place, "seen", True) as seen:
            rates: dict[str, list[float]] = {"nobody looks": [], "traced": []}
            for _ in range(ROUNDS):
                for name, one in zip(rates, (alone, seen), strict=True):
                    began = time.perf_counter()
                    (row,) = one.eval().result()
                    assert row["failed"] == 0
                    rates[name].append(TASKS / (time.perf_counter() - began))
    first, other = (values[WARM:] for values in rates.values())
    ratios = sorted(one / two for one, two in zip(other, first, strict=True))
    print(f"no-op tasks in Python, {RUNNERS} runners, {TASKS} tasks a round")
    for name, values in rates.items():
        print(f"  {name:<16}{statistics.median(values[WARM:]):>10,.0f} tasks per second")
    middle = statistics.median(ratios)
    print(f"  ratio {middle:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})")


if __name__ == "__main__":
    main()
