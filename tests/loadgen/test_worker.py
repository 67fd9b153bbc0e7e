import asyncio
import contextlib
import time

import pytest

from loadgen.job import payloads
from loadgen.record import Outcome, Prompt, digest
from loadgen.records import Axis, records
from loadgen.stream import Pool
from loadgen.trace import Arrival
from loadgen.worker import Replay, spare_connections
from tests.loadgen.jobs import PLAIN, job
from tests.loadgen.truth import truth_server

TEXT = "a prompt that must never be in a record"
SHA = digest(TEXT.encode())
PROMPTS = {SHA: Prompt("short", 16, 4, TEXT, SHA)}


def arrivals(count, gap_us=15_000):
    return tuple(Arrival(n, "short", n * gap_us, 16, 4, SHA) for n in range(count))


class Trial:
    """One replay at a server, and what it showed."""

    def __init__(self, url, trace, max_open=1 << 30, spare=8, **changes):
        self.job = job(**{"url": url, **changes})
        self.trace, self.rows = trace, []
        self.pool = Pool(url, spare, max_open)
        requests = payloads(self.job, trace, PROMPTS)
        self.replay = Replay(self.job, trace, requests, self.pool, self.rows.append)

    async def run(self):
        await self.pool.fill()
        await self.run_only()

    async def run_only(self):
        await self.replay.run(time.monotonic_ns() + 100_000_000)

    def records(self):
        axis = Axis(self.replay.t0_ns, self.job.time_scale)
        return records(self.trace, self.job.ramp_s, self.replay.seen, axis)

    def outcomes(self):
        return [r.outcome for r in self.records()]


@contextlib.asynccontextmanager
async def trial_at(url, trace, **changes):
    trial = Trial(url, trace, **changes)
    try:
        yield trial
    finally:
        await trial.pool.close()


async def test_every_planned_request_is_sent_at_or_after_its_instant():
    trace = arrivals(20)
    async with truth_server() as truth, trial_at(truth.url, trace) as trial:
        await trial.run()
    made = trial.records()
    assert [r.outcome for r in made] == [Outcome.OK] * 20
    assert all(r.dispatched_us >= r.planned_us for r in made)
    assert [r.phase for r in made] == ["ramp"] * 4 + ["observed"] * 16


async def test_arrivals_do_not_wait_for_completions():
    trace = arrivals(10, gap_us=1000)
    async with truth_server(ttft_s=0.2) as truth, trial_at(truth.url, trace) as trial:
        await trial.run()
        arrived = [s.arrived_ns for s in truth.seen.values()]
        first = min(s.sent_ns[0] for s in truth.seen.values())
    assert len(arrived) == 10
    assert max(arrived) < first


async def test_connections_are_open_before_the_start():
    trace = arrivals(6, gap_us=0)
    async with truth_server() as truth, trial_at(truth.url, trace, spare=6) as trial:
        await trial.pool.fill()
        opened = truth.connections
        await trial.run()
        assert truth.connections == opened == 6


async def test_what_is_unfinished_at_the_drain_deadline_is_recorded_so_and_cancelled():
    trace = arrivals(3)
    async with truth_server(ttft_s=30.0) as truth, trial_at(truth.url, trace, drain_s=0.7) as trial:
        await trial.run()
        assert trial.outcomes() == [Outcome.UNFINISHED] * 3
    assert trial.rows[-1]["oldest_unanswered_s"]["short"] > 0.5


async def test_a_request_past_the_clients_timeout_is_a_timeout():
    trace = arrivals(2)
    async with (
        truth_server(ttft_s=30.0) as truth,
        trial_at(truth.url, trace, timeout_s=0.2) as trial,
    ):
        await trial.run()
        assert trial.outcomes() == [Outcome.TIMEOUT] * 2


async def test_a_timeout_stays_one_when_its_connection_never_opened():
    async def never():
        await asyncio.Event().wait()

    async with trial_at(PLAIN.url, arrivals(2), timeout_s=0.1, drain_s=0.3, spare=0) as trial:
        trial.pool._open = never
        await trial.run()
        assert trial.outcomes() == [Outcome.TIMEOUT] * 2


async def test_no_heartbeat_outlives_the_run():
    trace = arrivals(8)
    async with truth_server() as truth, trial_at(truth.url, trace) as trial:
        await trial.run()
        last_ns = trial.replay._beat_ns
        await asyncio.sleep(0.1)
    assert last_ns > trial.replay.t0_ns
    assert trial.replay._beat_ns == last_ns


async def test_an_interrupt_cancels_what_flies_and_never_sends_the_rest():
    trace = (*arrivals(2), Arrival(2, "short", 300_000, 16, 4, SHA))
    async with truth_server(ttft_s=30.0) as truth, trial_at(truth.url, trace) as trial:
        asyncio.get_running_loop().call_later(0.25, trial.replay.interrupt)
        await trial.run()
        assert trial.outcomes() == [Outcome.CANCELLED] * 2 + [Outcome.NOT_SENT]


async def test_a_server_that_refuses_connections_gives_errors_and_no_crash():
    async with trial_at(PLAIN.url, arrivals(3), spare=0) as trial:
        await trial.run()
    made = trial.records()
    assert {r.outcome for r in made} == {Outcome.ERROR}
    assert made[0].outcome_code.startswith("connect_failed_")
    assert made[0].first_event_us is None


SAID_BY_THE_SERVER = [
    ({}, Outcome.OK, None),
    ({"finish": None}, Outcome.INVALID_RESPONSE, "no_finish_reason"),
    ({"finish": "abort"}, Outcome.INVALID_RESPONSE, "finish_abort"),
    ({"done": False}, Outcome.INVALID_RESPONSE, "no_done"),
    ({"chunks": 3}, Outcome.INVALID_RESPONSE, "completion_tokens"),
    ({"fault": "internal"}, Outcome.ERROR, "internal"),
    ({"fault": "stream_interrupted"}, Outcome.INTERRUPTED, "stream_interrupted"),
    ({"fault": "cut"}, Outcome.INTERRUPTED, "connection_lost"),
    ({"status": 429, "code": "queue_full"}, Outcome.REJECTED, "queue_full"),
    ({"status": 503, "code": "queue_expired"}, Outcome.EXPIRED, "queue_expired"),
    ({"status": 400, "code": "bad_request"}, Outcome.ERROR, "bad_request"),
]


@pytest.mark.parametrize(("script", "outcome", "code"), SAID_BY_THE_SERVER)
async def test_each_answer_of_a_server_has_its_one_outcome(script, outcome, code):
    async with truth_server(ttft_s=0.001, gap_s=0.001) as truth:
        truth.script = lambda _: script
        async with trial_at(truth.url, arrivals(1)) as trial:
            await trial.run()
    (record,) = trial.records()
    assert (record.outcome, record.outcome_code) == (outcome, code)
    assert (record.first_event_us is not None) == ("status" not in script)


async def test_a_fault_in_a_callback_ends_the_run_loudly():
    trace = arrivals(2)
    async with truth_server() as truth, trial_at(truth.url, trace) as trial:
        del trial.replay._requests[1]
        with pytest.raises(KeyError):
            await trial.run()


async def test_the_last_row_counts_per_class_and_carries_the_clients_own_conduct():
    trace = arrivals(5)
    async with truth_server() as truth, trial_at(truth.url, trace) as trial:
        await trial.run()
    last = trial.rows[-1]
    assert last["offered"] == last["done"] == {"short": 5}
    assert {"dispatch_lag_ms", "loop_lag_ms", "cpu_share", "t_s"} <= set(last)
    assert "tick" not in last


async def test_a_client_at_its_own_cap_does_not_send_and_says_so():
    trace = arrivals(5, gap_us=1000)
    async with truth_server(ttft_s=0.2) as truth, trial_at(truth.url, trace, max_open=2) as trial:
        await trial.run()
        assert truth.connections == 2
    made = trial.records()
    assert [r.outcome for r in made] == [Outcome.OK] * 2 + [Outcome.NOT_SENT] * 3
    assert {r.outcome_code for r in made[2:]} == {"client_cap"}


async def test_a_client_holding_too_many_bytes_does_not_send(monkeypatch):
    monkeypatch.setattr("loadgen.worker.MAX_HELD_BYTES", 10)
    trace = arrivals(2, gap_us=150_000)
    async with truth_server(ttft_s=0.001) as truth, trial_at(truth.url, trace) as trial:
        await trial.run()
    assert trial.outcomes() == [Outcome.OK, Outcome.NOT_SENT]


async def test_at_a_time_scale_the_run_is_faster_and_its_records_are_not():
    trace = arrivals(5, gap_us=200_000)
    async with (
        truth_server(ttft_s=0.05) as truth,
        trial_at(truth.url, trace, time_scale=4.0) as trial,
    ):
        await trial.run()
        arrived = sorted(s.arrived_ns for s in truth.seen.values())
    made = trial.records()
    assert all(r.dispatched_us >= r.planned_us for r in made)
    assert made[-1].dispatched_us >= 800_000
    # Real time is the axis over the scale: no request left before its share of it.
    real_ns = [at - trial.replay.t0_ns for at in arrived]
    assert all(real >= a.offset_us * 250 for real, a in zip(real_ns, trace, strict=True))
    assert real_ns[-1] < 800_000_000, "it went faster than the recorded time"
    assert all(r.first_event_us - r.dispatched_us >= 200_000 for r in made)


async def test_a_row_is_told_for_every_second_of_recorded_time():
    trace = arrivals(2, gap_us=3_000_000)
    changes = {"time_scale": 10.0, "window_s": 4.0}
    async with truth_server() as truth, trial_at(truth.url, trace, **changes) as trial:
        await trial.run()
    ticks = [r["tick"] for r in trial.rows if "tick" in r]
    assert ticks == sorted(set(ticks))
    assert len(ticks) >= 2
    assert all(r["t_s"] >= r["tick"] for r in trial.rows if "tick" in r)


async def test_a_burst_of_work_in_the_last_slice_is_no_full_second(monkeypatch):
    trial = Trial(PLAIN.url, arrivals(1))
    monkeypatch.setattr("loadgen.worker.time.process_time_ns", lambda: 50_000_000)
    trial.replay._second.wall_ns = 1_000_000_000
    assert trial.replay._row(1_050_000_000)["cpu_share"] < 0.06


async def test_each_request_bears_its_key_its_id_and_the_forced_length():
    trace = arrivals(2)
    async with truth_server() as truth, trial_at(truth.url, trace) as trial:
        await trial.run()
        body = truth.bodies[0]
        assert set(truth.seen) == {"r-0", "r-1"}
    assert body["min_tokens"] == body["max_tokens"] == 4
    assert body["ignore_eos"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert "priority" not in body


async def test_connections_are_opened_ahead_of_need_while_the_run_goes_on():
    trace = arrivals(8, gap_us=60_000)
    async with truth_server(ttft_s=0.9) as truth, trial_at(truth.url, trace, spare=3) as trial:
        await trial.run()
        # Each is busy to the end; three more lie ready, which no request asked for.
        assert truth.connections > len(trace)


async def test_a_server_that_takes_no_more_connections_is_asked_again_after_a_pause():
    trace = arrivals(4, gap_us=100_000)
    async with truth_server() as truth, trial_at(truth.url, trace, spare=2) as trial:
        await trial.pool.fill()
        trial.pool._spare, opened = 3, []

        async def refused():
            opened.append(1)
            raise ConnectionRefusedError

        trial.pool._open = refused
        await trial.run_only()
    assert trial.replay.refill_failures == len(opened) == 1
    assert trial.outcomes() == [Outcome.OK] * 4


def test_so_many_connections_are_held_as_arrive_while_new_ones_are_opened():
    assert spare_connections(PLAIN, ()) == 4
    assert spare_connections(PLAIN, arrivals(10, gap_us=125_000)) == 8
    fast = job(time_scale=2.0)
    assert spare_connections(fast, arrivals(10, gap_us=125_000)) == 12
    assert spare_connections(PLAIN, arrivals(9000, gap_us=10)) == 256
