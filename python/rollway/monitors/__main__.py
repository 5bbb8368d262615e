"""`python -m rollway.monitors NAME`."""

import sys

from . import MONITORS, main

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in MONITORS:
        sys.exit(f"usage: python -m rollway.monitors {{{','.join(MONITORS)}}}")
    main(sys.argv[1])
