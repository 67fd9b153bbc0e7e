"""The shell round the admission core: who is woken, who leaves, and ghosts of observe mode."""

import asyncio
from typing import Any

import pytest

from gateway.admission import Admission
from gateway.domain import AdmissionMode, EngineLimits, FlowKey, FlowSpec, Outcome, Refused
from gateway.lifetime import Ending
from gateway.turnstile import Turnstile
from gateway.verdicts import Offer, RouteView, Topology

KEY = FlowKey("m", "short", "interactive")
ENFORCE, OBSERVE = AdmissionMode.ENFORCE, AdmissionMode.OBSERVE


@pytest.fixture
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


class Gate:
    """One engine of two slots behind a turnstile on the loop's own clock."""

    def __init__(self, mode: AdmissionMode = ENFORCE, **spec: Any) -> None:
        self.clock = asyncio.get_running_loop().time
        limits = EngineLimits(slots=2, prefill_tokens=100_000, kv_tokens=100_000)
        routes = {("m", "short"): RouteView("p", mode=mode)}
        self.core = Admission(
            [FlowSpec("m", "short", "interactive", principal_share=1.0, **spec)],
            Topology({"e": limits}, {"p": ["e"]}, routes),
            self.clock(),
        )
        self.would: list[Outcome] = []
        self.mode = mode
        self.turnstile = Turnstile(
            self.core, self.clock, lambda _, outcome: self.would.append(outcome)
        )
        self.turnstile.tell(lambda core, now: core.set_engine("e", now, up=True))

    async def enter(self, ending: Ending | None = None, slots: int = 1) -> Any:
        offer = Offer(KEY, "caller", 10, self.clock(), slots=slots)
        return await self.turnstile.enter(offer, self.mode, ending or Ending())

    @property
    def slots(self) -> int:
        return self.core.engine_views()[0].slots

    def at_zero(self) -> bool:
        view, flow = self.core.engine_views()[0], self.core.flow_views(self.clock())[0]
        return (view.slots, view.prefill_tokens, view.kv_tokens, flow.depth, flow.running) == (
            *(0, 0, 0, 0, 0),
        )


async def test_what_is_given_back_wakes_the_one_who_waits() -> None:
    gate = Gate()
    first = await gate.enter(slots=2)
    second = asyncio.ensure_future(gate.enter())
    await asyncio.sleep(0)
    assert gate.turnstile.waiting == 1
    gate.turnstile.give_back(first)
    held = await second
    assert (held.engine, gate.slots) == ("e", 1)
    gate.turnstile.give_back(held)
    assert gate.at_zero()


async def test_a_pass_given_back_twice_is_given_back_once() -> None:
    gate = Gate()
    held = await gate.enter()
    gate.turnstile.give_back(held)
    gate.turnstile.give_back(held)
    assert gate.at_zero()


async def test_an_expiry_comes_by_the_timer_alone() -> None:
    gate = Gate(max_age_s=0.05)
    held = await gate.enter(slots=2)
    with pytest.raises(Refused) as refused:
        await gate.enter()
    assert refused.value.outcome is Outcome.QUEUE_EXPIRED
    assert refused.value.message
    gate.turnstile.give_back(held)
    assert gate.at_zero()


@pytest.mark.parametrize(
    ("ended", "outcome"),
    [
        (Outcome.CLIENT_CANCELLED, Outcome.CLIENT_CANCELLED),
        (Outcome.DRAIN_TERMINATED, Outcome.DRAINING),
    ],
)
async def test_who_ends_while_waiting_leaves_the_core_at_once(
    ended: Outcome, outcome: Outcome
) -> None:
    gate, ending = Gate(), Ending()
    held = await gate.enter(slots=2)
    waiting = asyncio.ensure_future(gate.enter(ending))
    await asyncio.sleep(0)
    ending.set(ended)
    assert gate.core.flow_views(gate.clock())[0].depth == 0
    with pytest.raises(Refused) as refused:
        await waiting
    assert refused.value.outcome is outcome
    gate.turnstile.give_back(held)
    assert gate.at_zero()


async def test_who_has_ended_before_it_would_wait_does_not_wait() -> None:
    gate, ending = Gate(), Ending()
    held = await gate.enter(slots=2)
    ending.set()
    with pytest.raises(Refused):
        await asyncio.wait_for(gate.enter(ending), 5)
    gate.turnstile.give_back(held)
    assert gate.at_zero()


@pytest.mark.parametrize("dispatched_first", [False, True])
async def test_a_cancelled_task_gives_back_what_was_decided_in_the_same_moment(
    dispatched_first: bool,
) -> None:
    gate = Gate()
    held = await gate.enter(slots=2)
    waiting = asyncio.ensure_future(gate.enter())
    await asyncio.sleep(0)
    if dispatched_first:
        gate.turnstile.give_back(held)
        assert gate.slots == 1
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    if not dispatched_first:
        gate.turnstile.give_back(held)
    assert gate.at_zero()


async def test_the_end_of_a_prefill_frees_its_tokens_and_not_its_slot() -> None:
    gate = Gate()
    held = await gate.enter()
    assert gate.core.engine_views()[0].prefill_tokens == 10
    gate.turnstile.first_event(held)
    assert (gate.core.engine_views()[0].prefill_tokens, gate.slots) == (0, 1)
    gate.turnstile.give_back(held)
    assert gate.at_zero()


async def test_a_ghost_is_charged_once_it_is_dispatched_and_ends_with_the_answer() -> None:
    gate = Gate(OBSERVE)
    passes = [await gate.enter(slots=2) for _ in range(2)]
    assert (gate.slots, gate.turnstile.waiting) == (2, 0)
    assert gate.core.flow_views(gate.clock())[0].depth == 1
    gate.turnstile.give_back(passes[0])
    assert gate.slots == 2  # the second one's ghost has moved up
    gate.turnstile.give_back(passes[1])
    assert gate.at_zero()


async def test_a_ghost_whose_answer_ended_first_leaves_nothing_when_its_turn_comes() -> None:
    gate = Gate(OBSERVE)
    passes = [await gate.enter(slots=2) for _ in range(3)]
    for held in reversed(passes):
        gate.turnstile.first_event(held)
        gate.turnstile.give_back(held)
    assert gate.at_zero()


async def test_a_ghost_that_is_refused_is_counted_and_its_request_goes_on() -> None:
    gate = Gate(OBSERVE, max_queued=1)
    passes = [await gate.enter(slots=2) for _ in range(4)]
    assert gate.would == [Outcome.QUEUE_FULL] * 2
    for held in passes:
        gate.turnstile.first_event(held)
        gate.turnstile.give_back(held)
    assert gate.at_zero()


async def test_observe_without_an_engine_has_nowhere_to_forward_to() -> None:
    gate = Gate(OBSERVE)
    gate.turnstile.tell(lambda core, now: core.set_engine("e", now, up=False))
    with pytest.raises(Refused) as refused:
        await gate.enter()
    assert refused.value.outcome is Outcome.NO_ENGINE
    assert gate.at_zero()
