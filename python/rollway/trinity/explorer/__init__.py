"""The explorer, its scheduler and its coordinator: the classes of `rollway.explorer`."""

from __future__ import annotations

from rollway.explorer import Explorer

__all__ = ["Explorer"]
