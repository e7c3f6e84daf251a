"""`python -m benchmarks.predict MODEL [--machine NAMES] [--measure]`: see `kernels.py`."""

from __future__ import annotations

import sys

from benchmarks.predict.kernels import main

if __name__ == "__main__":
    sys.exit(main())
