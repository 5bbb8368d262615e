"""Metrics: from runs to tasks, from tasks to batches.

Values may be `int`, `float`, `bool` or NumPy scalars; other values are ignored with one warning. A
key may end in `:sum`, `:max`, `:min`, `:last` or `:mean`, which selects how it is combined at every
level; the default is the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rollway import _rollway

__all__ = [
    "bootstrap_metric",
    "calculate_task_level_metrics",
    "gather_eval_metrics",
    "gather_metrics",
    "run_metrics",
]


def bootstrap_metric(
    data: Sequence[Any],
    subset_size: int,
    reduce_fns: Sequence[Callable[[Any], float]],
    n_bootstrap: int = 1000,
    seed: int = 42,
) -> list[tuple[float, float]]:
    """Estimates each function on random subsets of the data by bootstrap resampling.

    Returns for every function its mean and its standard deviation over `n_bootstrap` draws of
    `subset_size` values with replacement. The numbers equal, bit by bit, those of NumPy's legacy
    generator seeded with `seed`; NumPy's own state is not touched. `np.mean`, `np.max`, `np.min`,
    `np.sum` and `np.std` are computed natively, other functions are called with every draw; the
    first exception of one is raised. Data that are not numbers are passed to the functions as lists
    of the drawn items.

    >>> bootstrap_metric([1, 0, 1], 2, [max, min])
    [(0.886, 0.317811...), (0.455, 0.497970...)]
    """
    functions = list(reduce_fns)
    if all(map(_is_number, data)):
        values = [float(value) for value in data]
    else:
        # Positions are drawn instead of numbers.
        values = [float(position) for position in range(len(data))]
        functions = [_on_items(function, data) for function in functions]
    return _rollway.bootstrap_metric(values, subset_size, functions, n_bootstrap, seed)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number, np.bool_))


def _on_items(function: Callable[[Any], float], data: Sequence[Any]) -> Callable[[Any], float]:
    """Returns a function of drawn positions that calls `function` with the items there."""
    return lambda positions: function([data[int(position)] for position in positions])


def calculate_task_level_metrics(
    metrics: Sequence[dict[str, Any]], is_eval: bool
) -> dict[str, float]:
    """Combines the metrics of the runs of one task.

    In training every key is combined over the runs that carry it. In evaluation a key becomes
    `<key>/mean@N`, `<key>/std@N` and, for several values, `<key>/best@k` and `<key>/worst@k`.

    >>> calculate_task_level_metrics([{"reward": 1.0}, {"reward": 0.0}], is_eval=False)
    {'reward': 0.5}
    """
    return _rollway.calculate_task_level_metrics(list(metrics), is_eval)


def gather_metrics(
    metric_list: Sequence[dict[str, Any]],
    prefix: str,
    output_stats: Sequence[str] = ("mean", "max", "min"),
) -> dict[str, float]:
    """Combines the metrics of tasks into `<prefix>/<key>/<stat>`.

    Statistics are `mean`, `max`, `min`, `sum` and `std`; each key is taken over the tasks that
    carry it.

    >>> gather_metrics([{"reward": 1.0}, {"reward": 0.0}], "rollout", ["mean"])
    {'rollout/reward/mean': 0.5}
    """
    return _rollway.gather_metrics(list(metric_list), prefix, list(output_stats))


def gather_eval_metrics(
    metric_list: Sequence[dict[str, Any]],
    prefix: str,
    output_stats: Sequence[str] = ("mean", "max", "min", "std"),
    detailed_stats: bool = False,
) -> dict[str, float]:
    """Combines the metrics of evaluated tasks.

    By default `<prefix>/<key>` is the mean over the tasks; with `detailed_stats` every statistic of
    `output_stats` is given as `<prefix>/<key>/<stat>`. `std` is the population standard deviation.
    """
    return _rollway.gather_eval_metrics(
        list(metric_list), prefix, list(output_stats), detailed_stats
    )


def run_metrics(metrics: Sequence[dict[str, Any]], seconds: float) -> dict[str, float]:
    """Combines the metrics of the experiences of one run, and adds its duration."""
    return _rollway.run_metrics(list(metrics), seconds)
