"""Refusing before the count: only what the count could not have saved.

Whenever the core says of an uncounted body that it could not wait, the same core at the same
moment, asked for the smallest request of each size class the body may be in, refuses each.
"""

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admission import Admission
from gateway.domain import EngineLimits, FlowKey, FlowSpec, Outcome
from gateway.verdicts import Dispatched, Offer, Refusal, RouteView, Topology

SIZES = ("short", "long")
LIMITS = EngineLimits(
    slots=2, prefill_tokens=4000, kv_tokens=20_000, prefill_tokens_per_s=100.0,
    max_prefilling=(("long", 1),),
)  # fmt: skip
SPECS = [
    FlowSpec(
        "m", size, service, weight=weight, max_age_s=8.0, target_wait_s=target_s, max_queued=20,
        principal_share=1.0, output_estimate_tokens=64, largest_prompt_tokens=2000,
    )
    for size, target_s in (("short", 0.3), ("long", 1.0))
    for service, weight in (("chat", 4.0), ("batch", 1.0))
]  # fmt: skip
TOPOLOGY = Topology(
    {"e0": LIMITS, "e1": LIMITS},
    {"pool": ["e0", "e1"]},
    {("m", size): RouteView("pool") for size in SIZES},
)
CHAT = ("m", "short", "chat")
Call = tuple[str, tuple[Any, ...]]


def offer(size: str, service: str, tokens: int, now: float, *, streamed: bool = True) -> Offer:
    key = FlowKey("m", size, service)
    return Offer(key, "p", tokens, now, max_tokens=32, body_bytes=100, streamed=streamed)


class Twins:
    """A core, its calls so far, and as many more of the same as are asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.journal: list[Call] = []
        self.core = self._fresh()
        self.running: list[int] = []
        self.early = 0

    def _fresh(self) -> Admission:
        core = Admission(SPECS, TOPOLOGY, 0.0)
        for name in TOPOLOGY.engines:
            core.set_engine(name, 0.0, up=True)
        return core

    def call(self, name: str, *args: Any) -> Any:
        self.journal.append((name, args))
        result = getattr(self.core, name)(*args)
        verdicts = result[1] if isinstance(result, tuple) else result
        self.running += [v.lease_id for v in verdicts if isinstance(v, Dispatched)]
        return result

    def answer(self, asked: Offer) -> object:
        """What one more offer would be answered, without making it."""
        twin = self._fresh()
        for name, args in self.journal:
            getattr(twin, name)(*args)
        number, verdicts = twin.offer(asked, self.now)
        return next((v for v in verdicts if v.ticket_id == number), None)

    def check_early(self, sizes: Sequence[str], service: str) -> None:
        """A refusal before the count is what every size class would have come to."""
        groups = [("m", size, service) for size in sizes]
        found = self.core.full(groups, 100, self.now)
        if found is None:
            return
        self.early += found[0] is Outcome.PREDICTED_WAIT
        for size in sizes:
            for streamed in (True, False):
                own = self.answer(offer(size, service, 1, self.now, streamed=streamed))
                assert isinstance(own, Refusal), (found, size, own)

    def step(self, kind: int, service: str, tokens: int, wait_s: float) -> None:
        """Time passes, and one thing happens."""
        self.now += wait_s
        if kind <= 3:
            self.check_early(SIZES, service)
            self.check_early(SIZES[:1], service)
            size = "long" if kind == 3 else "short"
            many = tokens * (8 if kind == 3 else 1)
            self.call("offer", offer(size, service, many, self.now, streamed=kind != 1), self.now)
        elif kind == 4 and self.running:
            self.call("prefill_done", self.running[tokens % len(self.running)], self.now)
        elif self.running:
            self.call("release", self.running.pop(tokens % len(self.running)), self.now, 32)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 7),
        st.sampled_from(("chat", "batch")),
        st.integers(1, 200),
        st.sampled_from((0.0, 0.01, 0.05, 0.2, 1.0)),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_a_body_refused_before_its_count_would_have_been_refused_after_it(
    steps: list[tuple[int, str, int, float]],
) -> None:
    twins = Twins()
    for step in steps:
        twins.step(*step)


def test_under_overload_bodies_are_refused_before_their_count_and_all_of_them_rightly() -> None:
    twins = Twins()
    for number in range(400):
        service = "chat" if number % 3 else "batch"
        twins.step(3 if number % 4 == 0 else 2, service, 1 + 37 * number % 200, 0.02)
        if number % 2:
            twins.step(7, service, number, 0.03)
    assert twins.early >= 20


def overloaded() -> Twins:
    """Half of what came went to an engine; the next of its flow would wait too long."""
    twins = Twins()
    for number in range(31):
        twins.step(2, "chat", 100, 0.1)
        if number % 2:
            twins.step(7, "chat", 0, 0.1)
    found = twins.core.full([CHAT], 100, twins.now)
    assert found is not None
    assert found[0] is Outcome.PREDICTED_WAIT
    assert found[1] > 0
    return twins


def test_with_an_empty_queue_a_body_is_counted() -> None:
    twins = overloaded()
    assert twins.core.full([("m", "short", "batch")], 100, twins.now) is None
    assert twins.core.full([CHAT, ("m", "long", "chat")], 100, twins.now) is None


def test_what_is_due_is_done_before_a_wait_is_predicted() -> None:
    """A deadline that has come lets the queue move on, and its timer may be a little late."""
    twins = overloaded()
    due_s = twins.core.next_wakeup(twins.now)
    assert due_s is not None
    assert twins.core.full([CHAT], 100, due_s - 0.001) is not None
    assert twins.core.full([CHAT], 100, due_s) is None
