"""Prints every figure of README's "What it costs": ``python -m tests.bench`` (or ``make bench``).

Each part is a program of its own, so that one does not heat the other's caches; run it on a machine
that does nothing else. Nothing is asserted here.
"""

import subprocess
import sys

PARTS = (
    ("A decision of the admission core", "bench_admission"),
    ("Counting and classifying", "bench_count"),
    ("The relay, and the whole gateway, beside a peer", "bench_relay"),
    ("What callers wait for the gateway", "bench_latency"),
    ("The measuring client against a server of known truth", "bench_client"),
)


def main() -> int:
    """Run all parts; the exit code is the first failure's."""
    worst = 0
    for title, module in PARTS:
        print(f"\n== {title} (python -m tests.bench.{module})", flush=True)
        done = subprocess.run([sys.executable, "-m", f"tests.bench.{module}"], check=False)
        worst = worst or done.returncode
    return worst


if __name__ == "__main__":
    sys.exit(main())
