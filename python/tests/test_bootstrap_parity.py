"""Metrics of the core compared with NumPy, bit by bit.

The core is an example binary, so that this test needs no built wheel.
"""

import random
import struct
import subprocess
import warnings

import numpy as np
import pytest
from programs import program

FUNCTIONS = {"mean": np.mean, "max": np.max, "min": np.min, "sum": np.sum, "std": np.std}
DRAWS = [1, 7, 8, 129, 1000]
TINY = 5e-324
HUGE = 1.7e308


def bits(value):
    # A NaN is a NaN: which of its payloads comes out is up to the processor.
    return "nan" if np.isnan(value) else struct.pack(">d", value).hex()


def answer_bits(word):
    return bits(struct.unpack(">d", bytes.fromhex(word))[0])


def encoded(values):
    return " ".join(struct.pack(">d", value).hex() for value in values)


@pytest.fixture(scope="module")
def ask():
    """Returns a function that sends lines to the binary, in one go, and returns its answers."""
    binary = program("ROLLWAY_BOOTSTRAP_BIN")

    def ask(lines):
        text = "".join(f"{line}\n" for line in lines)
        done = subprocess.run([binary], input=text, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        answers = done.stdout.split("\n")[:-1]
        assert len(answers) == len(lines)
        return answers

    return ask


@pytest.fixture(autouse=True)
def quiet():
    """NumPy warns of every NaN and overflow; they are the point here."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def numpy_bootstrap(data, subset_size, functions, draws, seed):
    np.random.seed(seed)
    data = np.array(data, dtype=np.float64)
    results = [[] for _ in functions]
    for _ in range(draws):
        subset = np.random.choice(data, size=subset_size, replace=True)
        for result, name in zip(results, functions):
            result.append(FUNCTIONS[name](subset))
    return [(np.mean(result), np.std(result)) for result in results]


KINDS = {
    "normal": lambda rng: rng.gauss(0, 1),
    "wide": lambda rng: rng.gauss(0, 1) * 10.0 ** rng.randint(-300, 300),
    "integers": lambda rng: float(rng.randint(-3, 3)),
    "rewards": lambda rng: float(rng.random() < 0.3),
    "huge": lambda rng: rng.choice([HUGE, -HUGE, 1e300, 1.0]),
    "tiny": lambda rng: rng.choice([TINY, -TINY, 2.2e-308, -0.0, 0.0]),
    "zeros": lambda rng: rng.choice([0.0, -0.0]),
    "special": lambda rng: rng.choice([float("inf"), float("-inf"), 1.5, -0.0, 0.25]),
    "broken": lambda rng: float("nan") if rng.random() < 0.05 else rng.gauss(5, 2),
}


def bootstrap_cases():
    rng = random.Random(20240607)
    for i in range(360):
        kind = list(KINDS)[i % len(KINDS)]
        # Every length near a power of two, where the masks change, and others at random.
        near = [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 127, 128, 129, 255, 256, 257, 300]
        length = near[i // 3 % len(near)] if i % 3 else rng.randint(1, 300)
        data = [KINDS[kind](rng) for _ in range(length)]
        subset_size = rng.choice([1, 2, 7, 8, 9, 16, 64, rng.randint(1, 64)])
        functions = rng.sample(list(FUNCTIONS), rng.randint(1, len(FUNCTIONS)))
        draws = DRAWS[i // 9 % len(DRAWS)]
        seed = rng.choice([0, 1, 42, 2**31, 2**32 - 1, rng.randrange(2**32)])
        yield kind, data, subset_size, functions, draws, seed
    # Draws that span several of the blocks in which NumPy adds.
    for subset_size in (128, 129, 136, 200, 1000, 5000):
        data = [rng.gauss(0, 1) for _ in range(97)]
        yield "long draws", data, subset_size, list(FUNCTIONS), 17, subset_size
    # Many values: indices of more than two bytes.
    yield "long data", [rng.gauss(0, 1) for _ in range(100_000)], 50, ["mean", "max"], 129, 3


def line_of(data, subset_size, functions, draws, seed):
    return f"bootstrap {seed} {draws} {subset_size} {','.join(functions)} {encoded(data)}"


def test_bootstrap_equals_numpy_bit_by_bit(ask):
    cases = list(bootstrap_cases())
    answers = ask([line_of(*case) for _, *case in cases])
    for (kind, *case), answer in zip(cases, answers):
        expected = [bits(value) for pair in numpy_bootstrap(*case) for value in pair]
        got = [answer_bits(word) for word in answer.split()]
        data, *rest = case
        assert got == expected, (kind, len(data), *rest)


def test_nothing_is_an_error_where_numpy_raises(ask):
    cases = [
        (data, subset_size, [function], draws, 42)
        for data in ([], [1.0, 2.0])
        for subset_size in (0, 1)
        for function in FUNCTIONS
        for draws in (0, 1)
    ]
    refused = 0
    for case, answer in zip(cases, ask([line_of(*case) for case in cases])):
        try:
            expected = [bits(value) for value in numpy_bootstrap(*case)[0]]
        except ValueError:
            refused += 1
            assert answer.startswith("error "), case
        else:
            assert [answer_bits(word) for word in answer.split()] == expected, case
    # One value from no data with each of five functions; max and min of nothing, twice.
    assert refused == 5 + 4


def numpy_task(runs, planned):
    """Task-level eval metrics, computed the plain way."""
    columns = {}
    for run in runs:
        for key, value in run.items():
            columns.setdefault(key, []).append(value)
    metrics = {}
    for key, values in columns.items():
        if "time/run_execution" in key:
            metrics[key] = np.mean(values)
            continue
        n = max(planned or 0, len(values))
        metrics[f"{key}/mean@{n}"] = np.mean(values)
        metrics[f"{key}/std@{n}"] = np.std(values)
        if len(values) < n:
            metrics[f"{key}/coverage@{n}"] = len(values) / n
        sizes = [2**i for i in range(1, 20) if 2**i < n] + [n] if n > 1 else []
        for size in sizes:
            best, worst = numpy_bootstrap(values, size, ["max", "min"], 1000, 42)
            metrics[f"{key}/best@{size}"] = best[0]
            metrics[f"{key}/worst@{size}"] = worst[0]
    return metrics


def test_task_metrics_equal_numpy_bit_by_bit(ask):
    rng = random.Random(7)
    cases = []
    for i, n in enumerate([1, 2, 3, 4, 6, 10, 16, 17, 24, 33, 64, 256, 257]):
        # Two metrics of every run share their draws; the third is missing in some runs.
        runs = [{"acc": float(rng.random() < 0.5), "time/run_execution": rng.random()}]
        runs += [{"acc": float(rng.random() < 0.5), "len": rng.gauss(0, 9)} for _ in range(n - 1)]
        for kind in ("special", "broken", "wide"):
            for run in runs:
                if rng.random() < 0.8:
                    run[kind] = KINDS[kind](rng)
        cases.append((runs, [None, n, n + 3][i % 3]))

    def run_word(run):
        return ",".join(f"{key}={encoded([value])}" for key, value in run.items())

    answers = ask([f"task {p or '-'} {' '.join(map(run_word, runs))}" for runs, p in cases])
    for (runs, planned), answer in zip(cases, answers):
        got = {key: answer_bits(word) for key, word in (p.split("=") for p in answer.split())}
        expected = {key: bits(value) for key, value in numpy_task(runs, planned).items()}
        assert got == expected, (len(runs), planned)
