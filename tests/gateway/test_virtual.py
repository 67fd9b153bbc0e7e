"""The core driven by sequence numbers: what a simulation needs of it."""

from dataclasses import dataclass

from gateway.admission import Admission
from gateway.domain import EngineLimits, FlowKey, FlowSpec
from gateway.verdicts import Offer, RouteView, Topology
from gateway.virtual import VirtualGate


@dataclass(frozen=True)
class Arrival:
    seq: int
    tokens: int


def gate(**limits: int) -> VirtualGate[Arrival, tuple[object, ...]]:
    spec = FlowSpec("m", "short", "chat", max_queued=1, max_age_s=3.0)
    engines = {
        name: EngineLimits(slots=1, prefill_tokens=9000, kv_tokens=90_000) for name in ("x", "y")
    }
    core = Admission(
        [spec], Topology(engines, {"p": ("x", "y")}, {("m", "short"): RouteView("p")}), 0.0
    )
    for name in engines:
        core.set_engine(name, 0.0, up=True)
    return VirtualGate(
        core,
        ["y", "x"],
        lambda a, now: (a.seq, Offer(FlowKey("m", "short", "chat"), f"p{a.seq}", a.tokens, now)),
        lambda seq, engine: ("send", seq, engine),
        lambda seq, outcome: ("refuse", seq, outcome),
    )


def test_requests_are_numbers_and_engines_are_positions() -> None:
    driven = gate()
    first, second = driven.offer(Arrival(10, 5), 0.0), driven.offer(Arrival(11, 5), 0.0)
    assert {first[0], second[0]} == {("send", 10, 1), ("send", 11, 0)}
    assert driven.offer(Arrival(12, 5), 0.0) == []
    assert driven.offer(Arrival(13, 5), 0.0) == [("refuse", 13, "queue_full")]
    assert driven.first_event(10, 0.1) == []
    assert driven.finished(10, 0.2, 7) == [("send", 12, 1)]


def test_what_is_due_is_asked_for_and_happens_at_the_tick() -> None:
    driven = gate()
    for seq in (1, 2, 3):
        driven.offer(Arrival(seq, 5), 0.0)
    assert driven.next_wakeup(0.0) == 3.0
    assert driven.tick(2.9) == []
    assert driven.tick(3.0) == [("refuse", 3, "queue_expired")]
    assert driven.next_wakeup(3.0) is None


def test_a_caller_that_leaves_the_queue_makes_room_there_and_is_never_sent() -> None:
    driven = gate()
    for seq in (1, 2, 3):
        driven.offer(Arrival(seq, 5), 0.0)
    assert driven.cancel(3, 0.1) == []
    assert driven.offer(Arrival(4, 5), 0.2) == []  # the queue holds one
    assert driven.finished(1, 0.3, 7) == [("send", 4, 1)]
    assert driven.cancel(3, 0.4) == []  # it left already


def test_a_caller_that_leaves_its_engine_gives_the_seat_to_who_waits() -> None:
    driven = gate()
    for seq in (1, 2, 3):
        driven.offer(Arrival(seq, 5), 0.0)
    assert driven.cancel(1, 0.1) == [("send", 3, 1)]
    assert driven.finished(3, 0.5, 7) == []


def test_who_leaves_at_the_moment_of_expiry_is_refused_once() -> None:
    driven = gate()
    for seq in (1, 2, 3):
        driven.offer(Arrival(seq, 5), 0.0)
    assert driven.cancel(3, 3.0) == [("refuse", 3, "queue_expired")]
    assert driven.tick(3.0) == []
