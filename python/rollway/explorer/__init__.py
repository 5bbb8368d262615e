"""The explorer under the module paths of Trinity-RFT.

`from trinity.explorer.scheduler import Scheduler` becomes
`from rollway.explorer.scheduler import Scheduler`. Everything is also in `rollway`.
"""

from __future__ import annotations

from rollway.client.explorer import Explorer

__all__ = ["Explorer"]
