"""Starts one simulated engine: ``python -m loadgen.engine --port 0``."""

import sys

from loadgen.engine.server import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
