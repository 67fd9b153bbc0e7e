import io
import json
import threading
import time
from datetime import UTC, datetime, timedelta

from gateway.journal import Journal


def test_lines_are_written_in_order_and_events_are_json():
    file = io.BytesIO()
    journal = Journal(file)
    journal.line(b'{"event":"request"}\n')
    journal.event("engine_down", engine="http://127.0.0.1:1", reason="refused")
    journal.close()
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    ages_s = [
        (datetime.now(UTC) - datetime.fromisoformat(line.pop("at"))).total_seconds()
        for line in lines
    ]
    assert all(-1 < age_s < 60 for age_s in ages_s)
    assert lines == [
        {"event": "request"},
        {"event": "engine_down", "engine": "http://127.0.0.1:1", "reason": "refused"},
    ]


def test_a_line_is_made_in_the_thread_and_dated_when_it_was_given():
    file, made_in = StuckFile(), []
    journal = Journal(file)
    journal.line(b'{"n":0}\n')
    assert file.entered.wait(10)

    def make() -> bytes:
        made_in.append(threading.current_thread().name)
        return b'{"n":1}\n'

    before = datetime.now(UTC)
    journal.line(make)
    after = datetime.now(UTC)
    assert not made_in
    while datetime.now(UTC) < after + timedelta(milliseconds=20):
        time.sleep(0.005)
    file.released.set()
    journal.close()
    assert made_in == ["journal"]
    at = datetime.fromisoformat(json.loads(file.getvalue().splitlines()[1])["at"])
    assert before - timedelta(milliseconds=1) <= at <= after


def test_a_line_that_cannot_be_made_is_a_fault_without_its_message_and_costs_no_other():
    def fail() -> bytes:
        raise ValueError("what a caller said")

    file = io.BytesIO()
    journal = Journal(file)
    journal.line(b'{"n":0}\n')
    journal.line(fail, request_id="r1")
    journal.line(lambda: None)  # type: ignore[arg-type, return-value]
    journal.line(b'{"n":1}\n')
    journal.close()
    assert b"caller said" not in file.getvalue()
    first, fault, no_line, last = (json.loads(line) for line in file.getvalue().splitlines())
    assert (first["n"], last["n"]) == (0, 1)
    assert (fault["event"], fault["error"], fault["request_id"]) == (
        "internal_error", "ValueError", "r1",
    )  # fmt: skip
    assert fault["trace"][-1].endswith(" fail")
    assert (no_line["event"], no_line["error"]) == ("internal_error", "TypeError")


class StuckFile(io.BytesIO):
    """A file whose reader does not read until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.released = threading.Event()

    def write(self, data) -> int:
        self.entered.set()
        self.released.wait()
        return super().write(data)


def test_a_stuck_reader_costs_lines_not_memory_and_the_loss_is_told():
    file = StuckFile()
    journal = Journal(file, max_lines=10)
    journal.line(b'{"n":0}\n')
    assert file.entered.wait(10)
    for number in range(1, 101):
        journal.line(b'{"n":%d}\n' % number)
    file.released.set()
    journal.close()
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [line["n"] for line in lines if "n" in line] == list(range(11))
    assert all(line.pop("at") for line in lines)
    assert {"event": "log_lines_dropped", "count": 90} in lines


class FullFile(io.BytesIO):
    """A file on a disk that is full for the first three writes."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals, self.works = 3, threading.Event()

    def write(self, data) -> int:
        if self.refusals:
            self.refusals -= 1
            raise OSError(28, "No space left on device")
        self.works.set()
        return super().write(data)


def test_lines_that_a_full_disk_lost_are_counted_once_without_another_line():
    file = FullFile()
    journal = Journal(file)
    for number in range(5):
        journal.line(b'{"n":%d}\n' % number)
    assert file.works.wait(10)
    journal.close()
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    told = sum(line["count"] for line in lines if line.get("event") == "log_lines_dropped")
    assert told + sum("n" in line for line in lines) == 5
    assert told
