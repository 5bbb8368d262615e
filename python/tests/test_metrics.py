"""Metrics against NumPy, and what they do with what is no number."""

import math
import warnings

import numpy as np
import pytest

import rollway as rw


def numpy_bootstrap(data, size, functions, draws=1000, seed=42):
    np.random.seed(seed)
    results = [[] for _ in functions]
    for _ in range(draws):
        draw = np.random.choice(np.array(data, dtype=np.float64), size=size, replace=True)
        for result, function in zip(results, functions, strict=True):
            result.append(function(draw))
    return [(np.mean(result), np.std(result)) for result in results]


FUNCTIONS = [np.mean, np.max, np.min, np.std, np.sum]


@pytest.mark.parametrize("data", [[1, 0, 1], [0.5] * 7, list(range(100)), [math.pi, -1e3, 4]])
def test_bootstrap_equals_numpy(data):
    expected = numpy_bootstrap(data, 3, FUNCTIONS)
    assert rw.metrics.bootstrap_metric(data, 3, FUNCTIONS) == expected


def test_own_functions_get_the_same_draws_as_numpys():
    def spread(draw):
        draw.sort()
        return float(draw[-1] - draw[0])

    data = np.random.default_rng(1).normal(size=50)
    expected = numpy_bootstrap(data, 5, [np.max, np.ptp], 200, 7)
    assert rw.metrics.bootstrap_metric(data, 5, [np.max, spread], 200, 7) == expected


def test_the_known_numbers():
    best, worst = rw.metrics.bootstrap_metric([1, 0, 1], 2, [np.max, np.min])
    assert (best[0], worst[0]) == (0.886, 0.455)


def test_global_random_state_is_unchanged():
    np.random.seed(5)
    expected = np.random.random()
    np.random.seed(5)
    rw.metrics.bootstrap_metric([1, 2, 3], 2, [np.mean])
    assert np.random.random() == expected


def test_the_first_error_of_a_function_is_raised():
    calls = []

    def broken(draw):
        calls.append(draw)
        if len(calls) == 3:
            raise LookupError("third")
        return 0.0

    with pytest.raises(LookupError, match="third"):
        rw.metrics.bootstrap_metric([1, 2], 2, [broken, np.max])
    assert len(calls) == 3


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seeds_are_numpys(seed):
    with pytest.raises(ValueError):
        rw.metrics.bootstrap_metric([1], 1, [np.mean], seed=seed)
    with pytest.raises(ValueError):
        rw.metrics.bootstrap_metric([], 1, [np.mean])


def test_task_metrics():
    runs = [{"acc": 1.0, "time/run_execution": 2.0}, {"acc": False}, {"acc": np.float32(1)}]
    train = rw.metrics.calculate_task_level_metrics(runs, is_eval=False)
    assert train == {"acc": 2 / 3, "time/run_execution": 2.0}
    evaluated = rw.metrics.calculate_task_level_metrics(runs, is_eval=True)
    assert set(evaluated) == {
        "time/run_execution",
        *(f"acc/{name}" for name in ("mean@3", "std@3", "best@2", "worst@2", "best@3", "worst@3")),
    }
    assert evaluated["acc/best@2"] == 0.886
    assert rw.metrics.calculate_task_level_metrics([], True) == {}


def test_values_that_are_not_numbers_are_ignored_with_one_warning():
    runs = [{"a": "text", "b": None, "c": np.int64(3)}, {"a": [1], "c": True}]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert rw.metrics.calculate_task_level_metrics(runs, False) == {"c": 2.0}
    assert [warning.category for warning in caught] == [RuntimeWarning]
    assert "`a` of type str" in str(caught[0].message)


def test_batch_metrics():
    tasks = [{"reward": 1.0, "tokens:sum": 10}, {"reward": 0.0, "tokens:sum": 5}, {"other": 2}]
    assert rw.metrics.gather_metrics(tasks, "rollout") == {
        "rollout/reward/mean": 0.5,
        "rollout/reward/max": 1.0,
        "rollout/reward/min": 0.0,
        "rollout/other/mean": 2.0,
        "rollout/other/max": 2.0,
        "rollout/other/min": 2.0,
        "rollout/tokens/sum": 15.0,
    }
    short = rw.metrics.gather_eval_metrics(tasks, "eval/x")
    assert short["eval/x/reward"] == 0.5
    detailed = rw.metrics.gather_eval_metrics(tasks, "eval/x", detailed_stats=True)
    assert detailed["eval/x/reward/std"] == 0.5 and detailed["eval/x/other/std"] == 0.0
    with pytest.raises(ValueError, match="unknown statistic `median`"):
        rw.metrics.gather_metrics(tasks, "p", ["median"])
    assert rw.metrics.gather_metrics([], "p") == {}


def test_batch_ids_sort_as_they_are_served():
    ids = ["z", "10/x", 3, "2/b", "2", 2, "2/a", True, -1]
    assert sorted(ids, key=rw.sort_batch_id) == [-1, True, 2, "2/b", "2", "2/a", 3, "10/x", "z"]
    assert rw.sort_batch_id(4) == (4, 0)
    assert rw.sort_batch_id("4/x") == (4, 1)
    assert rw.sort_batch_id("x") == (math.inf, 1)
    assert rw.sort_batch_id(np.int64(4)) == (4, 0)
    for wrong in (1.5, None, b"1"):
        with pytest.raises(TypeError, match="int or a str"):
            rw.sort_batch_id(wrong)
    with pytest.raises(ValueError, match="64 bits"):
        rw.sort_batch_id(2**70)
