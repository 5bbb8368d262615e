"""Order of batch ids."""

from __future__ import annotations

from rollway import _rollway


def sort_batch_id(batch_id: int | str) -> tuple[int | float, int]:
    """Returns the sort key of a batch id: smaller is served first.

    >>> sorted(["z", "2/eval", 3, 2], key=sort_batch_id)
    [2, '2/eval', 3, 'z']
    """
    return _rollway.sort_batch_id(batch_id)
