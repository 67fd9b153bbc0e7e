import asyncio
import io
import json
import sys
import time

import pytest
from rich.console import Console

from loadgen import roofline_cli
from loadgen.capture import Capture
from loadgen.roofline import LIMITS, Level, climb, measure, measured_errors_us, roofline


def level(number, within_ms=0.2, cpu=0.1, answered=10, delivered=1.0):
    return Level(number, within_ms, cpu, answered, 10, delivered)


@pytest.mark.parametrize(
    ("seen", "fault"),
    [
        (level(1), None),
        (level(1, within_ms=1.0), None),
        (level(1, within_ms=1.01), "p99 1.01 ms"),
        (level(1, cpu=0.86), "86% of a core"),
        (level(1, answered=9), "1 not answered"),
        (level(1, delivered=0.5), "the server delivered 50% of it"),
    ],
)
def test_a_level_fails_by_whatever_speaks_against_it(seen, fault):
    assert seen.fault == fault
    assert seen.held == (fault is None)


def test_levels_rise_until_one_fails_in_every_try():
    asked = []

    def one(number):
        asked.append(number)
        return level(number, within_ms=0.1 * number)

    found = climb([5, 9, 20, 40], one)
    assert asked == [5, 9, 20, 20, 20]
    assert [s.held for s in found] == [True, True, False]


def test_one_bad_try_of_a_level_is_another_programs():
    tries = iter([level(5, within_ms=3.0), level(5), level(9, within_ms=4.0)] + 2 * [level(9, 2.0)])
    found = climb([5, 9], lambda _: next(tries))
    assert [(s.held, s.within_ms) for s in found] == [(True, 0.2), (False, 2.0)]


def test_the_error_of_an_event_is_its_reads_time_less_the_servers_stamp():
    events = [b'data: {"sent_ns":%d,"choices":[]}\n\n' % at for at in (1000, 5000, 6000)]
    first = len(events[0]) + len(events[1]) - 1  # the second event lacks its last byte
    reads = [(3000, first), (9000, len(b"".join(events)))]
    capture = Capture(0, body=bytearray(b"".join(events)), reads=reads)
    assert measured_errors_us(capture) == [2.0, 4.0, 3.0]


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_each_limit_is_measured_against_a_server_of_its_own(limit):
    load = limit.load(limit.levels[0], 0.4)
    seen = measure(limit.levels[0], load)
    assert seen.answered == seen.offered == load.arrivals
    assert seen.within_ms > 0
    assert seen.cpu_share > 0


def test_a_load_offers_what_its_level_says():
    for limit in LIMITS:
        load, trace = limit.load(1000, 2.0), limit.load(1000, 2.0).trace()
        assert len(trace) == load.arrivals
        assert trace[-1].offset_us <= load.over_s * 1e6
    arrivals, events, streams = (limit.load(1000, 2.0) for limit in LIMITS)
    assert arrivals.arrivals / arrivals.over_s == 1000
    assert events.arrivals / events.gap_s == 1000
    assert events.events * events.gap_s == 2.0
    assert streams.arrivals == 1000


def test_the_result_names_the_largest_level_that_held(monkeypatch):
    def planted(number, load):
        del load
        return level(number, within_ms=0.2 if number <= 500 else 5.0)

    monkeypatch.setattr("loadgen.roofline.measure", planted)
    told = []
    found = roofline(10.0, lambda limit, seen: told.append((limit.name, seen.level)))
    assert found["limits"] == {"arrivals_per_s": 500, "events_per_s": None, "streams": 500}
    assert told.count(("arrivals_per_s", 1000)) == 3
    assert found["levels"]["events_per_s"][0]["fault"] == "p99 5.00 ms"
    shown = io.StringIO()
    Console(file=shown, width=120).print(roofline_cli._table(found))
    assert "1000: p99 5.00 ms" in shown.getvalue()
    assert "none" in shown.getvalue()


async def test_the_truth_server_stamps_each_event_and_ends_as_servers_do():
    command = [sys.executable, "-m", "loadgen.known_truth", "0.005", "3"]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    url = (await process.stdout.readline()).decode().strip()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    request = b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nab"
    writer.write(request)
    await asyncio.sleep(0.02)
    whole_ns = time.monotonic_ns()
    writer.write(b"cd")  # the answer begins when the request is whole
    data = await reader.readuntil(b"0\r\n\r\n")
    events = [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]
    stamps = [e["sent_ns"] for e in events if e["choices"]]
    assert len(stamps) == 3
    assert stamps == sorted(stamps)
    # The third is due three gaps after the request; the server's timers count milliseconds.
    assert stamps[-1] - whole_ns >= 13_000_000
    assert [e["choices"][0].get("finish_reason") for e in events[:3]] == [None, None, "length"]
    assert events[3]["usage"]["completion_tokens"] == 3
    assert b"data: [DONE]" in data
    writer.close()
    process.stdin.close()
    assert await process.wait() == 0
