from dataclasses import replace
from itertools import pairwise

import pytest

from loadgen.engine.cost import StepCost
from loadgen.engine.scheduler import SchedulerConfig
from loadgen.simulate import Action, Delays, PassThrough, SimArrival, Watch, simulate

COST = StepCost(5.0e-3, 2.53e-5, 9.6e-6, 3.6e-8)
ONE_SEAT = SchedulerConfig(max_num_batched_tokens=2048, max_num_seqs=1)


def arrivals(*times):
    return [SimArrival(n, at, "short", 100, 50) for n, at in enumerate(times)]


def test_every_token_leaves_its_time_and_the_largest_gap_is_the_stall():
    (one,) = simulate(arrivals(0.0), PassThrough(1), [ONE_SEAT], COST, Delays())
    assert one.tokens == 50
    assert (one.events_s[0], one.events_s[-1]) == (one.first_s, one.last_s)
    assert one.max_stall_s == max(b - a for a, b in pairwise(one.events_s))


def test_a_caller_that_waited_too_long_leaves_and_its_seat_serves_the_next():
    both = arrivals(0.0, 0.06)
    patient = simulate(both, PassThrough(1), [ONE_SEAT], COST)
    hasty = simulate(both, PassThrough(1), [ONE_SEAT], COST, watch=Watch(timeout_s=0.1))
    assert all(r.done for r in patient)
    assert [(r.done, r.timed_out) for r in hasty] == [(False, True), (False, True)]
    assert 0 < hasty[0].tokens < 50
    assert max(hasty[0].events_s) <= 0.1
    assert hasty[1].events_s[0] < patient[1].events_s[0]


def test_what_a_leaver_held_is_free_for_one_that_waits_for_memory():
    tight = SchedulerConfig(2048, 4, num_gpu_blocks=12, max_model_len=170)
    both = arrivals(0.0, 0.06)
    hasty = simulate(both, PassThrough(1), [tight], COST, watch=Watch(timeout_s=0.2))
    assert hasty[0].timed_out
    assert hasty[1].tokens > 0


class Late(PassThrough):
    """Sends a request only a second after it came, and keeps account of who is out."""

    def __init__(self):
        super().__init__(1)
        self.due = {}
        self.out = set()

    def offer(self, arrival, now):
        self.due[arrival.seq] = now + 1.0
        return []

    def tick(self, now):
        ready = [seq for seq, at in self.due.items() if at <= now]
        for seq in ready:
            del self.due[seq]
            self.out.add(seq)
        return [Action(seq, 0) for seq in ready]

    def next_wakeup(self, now):
        return min(self.due.values(), default=None)

    def cancel(self, seq, now):
        self.out.discard(seq)  # it forgets nobody who waits: a dispatch may come late
        return []


def test_what_is_dispatched_after_its_caller_left_is_given_back_at_once():
    gate = Late()
    (one,) = simulate(arrivals(0.0), gate, [ONE_SEAT], COST, watch=Watch(timeout_s=0.5))
    assert one.timed_out
    assert one.sent_s is None
    assert gate.out == set()


def test_engines_are_looked_at_every_second_until_the_last_request_is_over():
    seen = []
    watch = Watch(second=lambda now, engines: seen.append((now, engines[0].running)))
    simulate(arrivals(0.0, 2.5), PassThrough(1), [ONE_SEAT], COST, watch=watch)
    assert [at for at, _ in seen] == [0.0, 1.0, 2.0, 3.0]
    assert {running for _, running in seen} == {0}


class Told(PassThrough):
    """Passes on, and keeps whose callers left."""

    def __init__(self):
        super().__init__(1)
        self.cancelled = []

    def cancel(self, seq, now):
        self.cancelled.append((seq, now))
        return super().cancel(seq, now)


def test_a_caller_that_cancels_leaves_its_seat_to_the_next_and_did_not_time_out():
    first, second = arrivals(0.0, 0.06)
    gate = Told()
    left, served = simulate([replace(first, patience_s=0.1), second], gate, [ONE_SEAT], COST)
    assert (left.cancelled, left.timed_out, left.done) == (True, False, False)
    assert served.done
    assert gate.cancelled == [(0, 0.1)]


def test_a_caller_leaves_once_however_many_limits_it_has():
    gate = Told()
    (one,) = [replace(a, patience_s=0.1) for a in arrivals(0.0)]
    (told,) = simulate([one], gate, [ONE_SEAT], COST, watch=Watch(timeout_s=0.12))
    assert told.cancelled
    assert len(gate.cancelled) == 1


def test_a_prompt_is_read_only_after_those_that_came_before_it():
    wide = SchedulerConfig(max_num_batched_tokens=2048, max_num_seqs=8)
    both = [SimArrival(0, 0.0, "long", 2000, 5), SimArrival(1, 0.0, "short", 10, 5)]
    slow = Delays(read_token_s=1e-3)
    _, behind = simulate(both, PassThrough(1), [wide], COST, slow)
    (alone,) = simulate(both[1:], PassThrough(1), [wide], COST, slow)
    assert behind.ttft_s - alone.ttft_s >= 2000 * 1e-3


def test_events_of_one_step_leave_one_after_another():
    wide = SchedulerConfig(max_num_batched_tokens=2048, max_num_seqs=8)
    first, second = simulate(
        arrivals(0.0, 0.0), PassThrough(1), [wide], COST, Delays(per_event_s=1e-3)
    )
    # The second joins the step after the first's prefill, and from then on comes behind it.
    together = zip(first.events_s[1:], second.events_s, strict=False)
    assert [b - a for a, b in together] == pytest.approx([1e-3] * 49)


def test_at_a_time_scale_the_servers_own_work_takes_longer_in_recorded_seconds():
    assert Delays(0.1, 0.2, 0.3, 0.4, 0.5).at_scale(2.0) == Delays(0.2, 0.4, 0.6, 0.8, 1.0)
