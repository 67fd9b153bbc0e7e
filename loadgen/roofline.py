"""Finds where this machine's measuring client stops being exact: how fast, how much, how many.

One worker, as in a run, against a server of known truth in a process of its own. A level holds if
every request was answered, the worker left itself room on its core, and 99 of 100 were within a
millisecond: of the planned instant for arrivals, of the server's own stamp for bytes. A level that
the server did not deliver says nothing of the client and does not hold either. Levels rise until
one fails in every try: another program's burst fails one, a limit all.
"""

import re
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

import uvloop

from loadgen.capture import Capture
from loadgen.job import Job, payloads
from loadgen.probe import hardware_id
from loadgen.quantiles import quantile
from loadgen.record import Outcome, Prompt, RequestRecord
from loadgen.records import Axis, records
from loadgen.replay import file_room, measuring
from loadgen.stream import Pool
from loadgen.tether import tethered
from loadgen.trace import Arrival
from loadgen.worker import Replay, spare_connections

__all__ = [
    "LIMITS",
    "TRIES",
    "Level",
    "Limit",
    "Load",
    "climb",
    "measure",
    "measured_errors_us",
    "roofline",
]

WITHIN_MS = 1.0
CPU_SHARE = 0.85
DELIVERED = 0.95
TRIES = 3
LEVELS_IN_SECONDS = 5
LEAD_NS = 200_000_000
STREAMS = 100  # that share the events when their number is what grows
EVENTS_PER_S = 10  # of one stream when the number of streams is what grows
PROMPT = Prompt("short", 1, 1, "known truth", "p")
SENT = re.compile(rb'"sent_ns":(\d+)[^\n]*\n\n')
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Level:
    """What one level showed: the 99th percentile of what is judged, and the worst second's load."""

    level: int
    within_ms: float
    cpu_share: float
    answered: int
    offered: int
    delivered: float = 1.0

    @property
    def fault(self) -> str | None:
        """Why the level did not hold; None if the client was exact, with room to spare."""
        checks = (
            (self.answered < self.offered, f"{self.offered - self.answered} not answered"),
            (self.delivered < DELIVERED, f"the server delivered {self.delivered:.0%} of it"),
            (self.cpu_share > CPU_SHARE, f"{self.cpu_share:.0%} of a core"),
            (self.within_ms > WITHIN_MS, f"p99 {self.within_ms:.2f} ms"),
        )
        return next((said for failed, said in checks if failed), None)

    @property
    def held(self) -> bool:
        """Whether nothing speaks against the level."""
        return self.fault is None


@dataclass(frozen=True, slots=True)
class Load:
    """What a level offers: arrivals over some seconds, each answered with events at a gap."""

    arrivals: int
    over_s: float
    gap_s: float = 0.0
    events: int = 1
    by_stamp: bool = True

    def trace(self) -> tuple[Arrival, ...]:
        """Return the arrivals, evenly spread."""
        step_us = self.over_s / self.arrivals * 1e6
        size = (1, self.events, PROMPT.sha256)
        return tuple(Arrival(n, "short", int(n * step_us), *size) for n in range(self.arrivals))


@dataclass(frozen=True, slots=True)
class Limit:
    """One of the client's limits and the levels at which it is sought."""

    name: str
    what: str
    levels: tuple[int, ...]
    load: Callable[[int, float], Load]


def _arrivals(rate: int, seconds: float) -> Load:
    return Load(max(1, int(rate * seconds)), seconds, by_stamp=False)


def _events(rate: int, seconds: float) -> Load:
    gap_s = STREAMS / rate
    return Load(STREAMS, gap_s, gap_s, max(1, int(seconds / gap_s)))


def _streams(count: int, seconds: float) -> Load:
    gap_s = 1 / EVENTS_PER_S
    return Load(count, min(1.0, seconds), gap_s, max(1, int(seconds / gap_s)))


LIMITS = (
    Limit(
        "arrivals_per_s",
        "arrivals per second, dispatch lag",
        (100, 200, 500, 1000, 2000, 3000, 4000, 6000, 8000, 12_000),
        _arrivals,
    ),
    Limit(
        "events_per_s",
        f"events per second over {STREAMS} streams, error of the stamp",
        (2500, 5000, 10_000, 15_000, 20_000, 25_000, 30_000, 40_000, 60_000),
        _events,
    ),
    Limit(
        "streams",
        f"streams of {EVENTS_PER_S} events per second, error of the stamp",
        (100, 250, 500, 1000, 1500, 2000, 3000, 4000, 6000),
        _streams,
    ),
)


def climb(
    levels: Sequence[int], measure: Callable[[int], Level], tries: int = TRIES
) -> list[Level]:
    """Measure rising levels until one fails every try; a level's best try stands for it."""
    found: list[Level] = []
    for level in levels:
        best = measure(level)
        for _ in range(tries - 1):
            if best.held:
                break
            best = min(best, measure(level), key=lambda seen: (not seen.held, seen.within_ms))
        found.append(best)
        if not best.held:
            break
    return found


def measured_errors_us(capture: Capture) -> list[float]:
    """Return, for every event, how long after the server's stamp the client's lies."""
    lengths = [length for _, length in capture.reads]
    return [
        (capture.reads[bisect_left(lengths, event.end())][0] - int(event[1])) / 1e3
        for event in SENT.finditer(bytes(capture.body))
    ]


@contextmanager
def _server(load: Load) -> Iterator[str]:
    command = [sys.executable, "-m", "loadgen.known_truth", str(load.gap_s), str(load.events)]
    pipe = subprocess.PIPE
    with subprocess.Popen(tethered(command), stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None  # noqa: S101 - it was asked for
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def _job(url: str, load: Load) -> Job:
    return Job(
        run_id="roofline",
        url=url,
        model="known-truth",
        keys={},
        out_path="",
        ramp_s=0.0,
        window_s=load.over_s,
        drain_s=load.gap_s * load.events + 10.0,
        timeout_s=600.0,
        trace_path="",
        trace_sha256="",
        corpus_path="",
        corpus_sha256="",
        config_sha256="",
        max_open=file_room(),
    )


async def _replayed(job: Job, trace: Sequence[Arrival]) -> tuple[Replay, list[Json]]:
    rows: list[Json] = []
    pool = Pool(job.url, spare_connections(job, trace), job.max_open)
    replay = Replay(job, trace, payloads(job, trace, {PROMPT.sha256: PROMPT}), pool, rows.append)
    await pool.fill()
    with measuring():
        await replay.run(monotonic_ns() + LEAD_NS)
    await pool.close()
    return replay, rows


def measure(level: int, load: Load) -> Level:
    """Offer one load to a fresh server and return what the client made of it."""
    trace = load.trace()
    file_room()  # the server inherits it
    with _server(load) as url:
        replay, rows = uvloop.run(_replayed(_job(url, load), trace))
    made = records(trace, 0.0, replay.seen, Axis(replay.t0_ns))
    ok = [r for r in made if r.outcome is Outcome.OK]
    judged = (
        [e for r in ok for e in measured_errors_us(replay.seen.captures[r.seq])]
        if load.by_stamp
        else [(r.dispatched_us or 0) - r.planned_us - (r.connect_wait_us or 0) for r in ok]
    )
    return Level(
        level=level,
        within_ms=quantile(judged, 0.99) / 1e3 if judged else float("inf"),
        cpu_share=max(row["cpu_share"] for row in rows),
        answered=len(ok),
        offered=len(trace),
        delivered=_delivered(load, ok),
    )


def _delivered(load: Load, ok: Sequence[RequestRecord]) -> float:
    """Return how much of the planned rate arrived: planned over actual time between events."""
    spans = [(r.event_us[-1] - r.event_us[0]) / 1e6 for r in ok if r.event_us]
    planned_s = load.gap_s * (load.events - 1)
    return planned_s / (sum(spans) / len(spans)) if spans and planned_s else 1.0


def roofline(seconds: float, tell: Callable[[Limit, Level], None]) -> Json:
    """Find every limit; returns the largest level that held for each, and all that was measured.

    Args:
        seconds: about how long to spend on each limit.
        tell: is shown every level.
    """
    each_s = seconds / LEVELS_IN_SECONDS
    found: dict[str, list[Level]] = {}
    for limit in LIMITS:

        def one(level: int, limit: Limit = limit) -> Level:
            seen = measure(level, limit.load(level, each_s))
            tell(limit, seen)
            return seen

        found[limit.name] = climb(limit.levels, one)
    return _result(seconds, found)


def _result(seconds: float, found: Mapping[str, Sequence[Level]]) -> Json:
    """Limits of one worker; None where not even the first level held."""
    most = {
        name: max((s.level for s in seen if s.held), default=None) for name, seen in found.items()
    }
    levels = {
        name: [
            {
                "level": s.level,
                "held": s.held,
                "fault": s.fault,
                "p99_ms": None if s.within_ms == float("inf") else round(s.within_ms, 3),
                "cpu_share": s.cpu_share,
                "delivered": round(s.delivered, 3),
                "answered": s.answered,
                "offered": s.offered,
            }
            for s in seen
        ]
        for name, seen in found.items()
    }
    return {
        "kind": "roofline",
        "hardware_id": hardware_id(),
        "seconds": seconds,
        "within_ms": WITHIN_MS,
        "limits": most,
        "levels": levels,
    }
