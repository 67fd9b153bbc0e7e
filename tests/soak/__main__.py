"""Soaks the gateway and prints figures: ``python -m tests.soak overload|mixed [--seconds S]``.

``overload`` offers ``--factor`` times what the engines can serve of its mix; ``mixed`` about what
they can, of every kind: streams, whole answers, callers who leave, read slowly, send nonsense,
retry at once or when told, while engines are killed and started again. Exit code 1: an outcome that
is none of the contract's, or something held after the end.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path

import uvloop

from gateway.domain import Outcome
from tests.soak.figures import attainment, outcomes, refusal_ms, slope_kib_per_min
from tests.soak.load import Mix
from tests.soak.world import CAPACITY, Soak, soak, world

MIXES = {
    "overload": Mix(),
    "mixed": Mix(leaves=0.15, slow=0.1, bad=0.1, retries=0.5),
}
EVERY_S = 10


def told(course: Soak) -> None:
    """A line of progress now and then."""
    if len(course.samples) % EVERY_S != 1:
        return
    last, words = course.samples[-1], outcomes(course.load.done)
    top = ", ".join(f"{word} {count}" for word, count in words.most_common(5))
    print(
        f"{last.at_s:6.0f} s  RSS {last.rss_kib / 1024:6.1f} MiB  fds {last.descriptors:5d}  "
        f"under way {len(course.load.running):5d}  {top}",
        flush=True,
    )


def show(course: Soak) -> int:
    """The figures; 1 if any outcome is none of the contract's."""
    done, samples = course.load.done, course.samples
    words = outcomes(done)
    print(f"\noffered {len(done)}; outcomes: {dict(words.most_common())}")
    print(f"refusal latency from the last body byte, ms: {refusal_ms(done)}")
    print(f"admitted streams within their contract: {attainment(done)}")
    print(
        f"RSS MiB: first {samples[0].rss_kib / 1024:.1f}, highest "
        f"{max(s.rss_kib for s in samples) / 1024:.1f}, last {samples[-1].rss_kib / 1024:.1f}; "
        f"slope {slope_kib_per_min(samples)} KiB/min"
    )
    print(f"descriptors: highest {max(s.descriptors for s in samples)}; ledger at zero")
    odd = set(words) - {outcome.value for outcome in Outcome} - {"no_connection"}
    odd |= {"internal_error"} & set(words)
    if odd:
        print(f"NOT IN THE CONTRACT: {odd}")
    return int(bool(odd))


async def run(args: argparse.Namespace) -> int:
    task = asyncio.current_task()
    assert task is not None
    # The processes it started end with it, however it is told to stop.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with tempfile.TemporaryDirectory() as folder:
        async with world(Path(folder)) as place:
            course = await soak(
                place,
                MIXES[args.kind],
                args.factor * CAPACITY,
                args.seconds,
                restart_every_s=60.0 if args.kind == "mixed" else None,
                tell=told,
            )
            worst = show(course)
            await asyncio.sleep(1.0)
            print(f"after the end: {place.sample(0.0)}")
            return worst


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("kind", choices=MIXES)
    parser.add_argument("--seconds", type=float, help="600 for overload, 1800 for mixed")
    parser.add_argument("--factor", type=float, help="offered over what can be served; 10 and 1.2")
    args = parser.parse_args()
    overload = args.kind == "overload"
    args.seconds = args.seconds or (600.0 if overload else 1800.0)
    args.factor = args.factor or (10.0 if overload else 1.2)
    print(f"load average before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores")
    return uvloop.run(run(args))


if __name__ == "__main__":
    sys.exit(main())
