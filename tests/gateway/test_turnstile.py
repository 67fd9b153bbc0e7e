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

    async def enter(
        self, ending: Ending | None = None, slots: int = 1, cap: int | None = None
    ) -> Any:
        who = "caller" if cap is None else "capped"
        offer = Offer(KEY, who, 10, self.clock(), slots=slots, principal_cap=cap)
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


@pytest.mark.parametrize("mode", [ENFORCE, OBSERVE, AdmissionMode.OFF])
@pytest.mark.parametrize("up", [True, False])
async def test_a_pause_is_an_order_that_every_mode_obeys(mode: AdmissionMode, up: bool) -> None:
    gate = Gate(mode)
    gate.turnstile.tell(lambda core, now: core.set_engine("e", now, up=up))
    gate.core.pause(KEY.group, paused=True)
    with pytest.raises(Refused) as refused:
        await gate.enter()
    assert (refused.value.outcome, gate.would) == (Outcome.PAUSED, [])
    gate.turnstile.tell(lambda core, now: core.set_engine("e", now, up=True))
    gate.core.pause(KEY.group, paused=False)
    gate.turnstile.give_back(await gate.enter())
    assert gate.at_zero()


@pytest.mark.parametrize("mode", [ENFORCE, OBSERVE, AdmissionMode.OFF])
async def test_a_keys_own_cap_holds_in_every_mode(mode: AdmissionMode) -> None:
    gate = Gate(mode)
    passes = [await gate.enter(cap=2) for _ in range(2)]
    for _ in range(2):
        with pytest.raises(Refused) as refused:
            await gate.enter(cap=2)
        assert (refused.value.outcome, gate.would) == (Outcome.PRINCIPAL_LIMIT, [])
    gate.turnstile.give_back(passes[0])
    gate.turnstile.give_back(passes[0])
    passes.append(await gate.enter(cap=2))
    with pytest.raises(Refused):
        await gate.enter(cap=2)
    for held in passes[1:]:
        gate.turnstile.give_back(held)
    assert gate.at_zero()
    assert not gate.turnstile._own


async def test_in_observe_mode_a_keys_own_cap_counts_requests_and_not_their_ghosts() -> None:
    gate = Gate(OBSERVE, max_queued=1)
    others = [await gate.enter(slots=2) for _ in range(2)]  # one runs, one waits
    mine = await gate.enter(cap=1)  # its ghost is refused, and it is in flight all the same
    with pytest.raises(Refused):
        await gate.enter(cap=1)
    gate.turnstile.give_back(mine)
    gate.turnstile.give_back(others[0])
    mine = await gate.enter(cap=1)  # its ghost waits, and goes on waiting when it is over
    gate.turnstile.give_back(mine)
    assert gate.core.flow_views(gate.clock())[0].depth == 1
    gate.turnstile.give_back(await gate.enter(cap=1))
    gate.turnstile.give_back(others[1])
    assert gate.at_zero()


async def test_observe_without_an_engine_has_nowhere_to_forward_to() -> None:
    gate = Gate(OBSERVE)
    gate.turnstile.tell(lambda core, now: core.set_engine("e", now, up=False))
    with pytest.raises(Refused) as refused:
        await gate.enter()
    assert refused.value.outcome is Outcome.NO_ENGINE
    assert gate.at_zero()


class Two(Gate):
    """Two engines of two slots."""

    def __init__(self, mode: AdmissionMode = ENFORCE, **spec: Any) -> None:
        super().__init__(mode, **spec)
        limits = EngineLimits(slots=2, prefill_tokens=100_000, kv_tokens=100_000)
        topology = Topology(
            {"e": limits, "f": limits},
            {"p": ["e", "f"]},
            {("m", "short"): RouteView("p", mode=mode)},
        )
        specs = [group.spec for group in self.core.groups.values()]
        self.turnstile.tell(lambda core, now: core.reconfigure(specs, topology, now))
        for engine in ("e", "f"):
            self.turnstile.tell(lambda core, now, e=engine: core.set_engine(e, now, up=True))

    def used(self) -> int:
        return sum(view.slots for view in self.core.engine_views())


MODES = [ENFORCE, OBSERVE, AdmissionMode.OFF]


@pytest.mark.parametrize("mode", MODES)
async def test_a_request_whose_engine_failed_gets_the_other_and_one_lease(
    mode: AdmissionMode,
) -> None:
    gate = Two(mode)
    first = await gate.enter()
    name = first.engine
    assert gate.turnstile.elsewhere(first)
    second = await gate.turnstile.again(first, Ending())
    assert {name, second.engine} == {"e", "f"}
    assert gate.used() == 1
    gate.turnstile.first_event(second)
    gate.turnstile.give_back(second)
    assert gate.used() == 0


@pytest.mark.parametrize("mode", MODES)
async def test_a_pass_that_was_used_again_is_over(mode: AdmissionMode) -> None:
    gate = Two(mode)
    first = await gate.enter()
    second = await gate.turnstile.again(first, Ending())
    gate.turnstile.give_back(second)
    gate.turnstile.give_back(first)
    assert gate.used() == 0


async def test_what_waits_again_waits_in_front_and_keeps_its_deadline() -> None:
    gate = Two(max_age_s=0.2)
    first = await gate.enter(slots=2)
    other = await gate.enter(slots=2)
    behind = asyncio.ensure_future(gate.enter(slots=2))
    await asyncio.sleep(0)
    gate.turnstile.tell(lambda core, now: core.set_engine(first.engine, now, up=False))
    again = asyncio.ensure_future(gate.turnstile.again(first, Ending()))
    await asyncio.sleep(0)
    assert gate.turnstile.waiting == 2
    gate.turnstile.give_back(other)
    held = await again
    assert (held.engine, behind.done()) == (other.engine, False)
    with pytest.raises(Refused) as refused:
        await behind
    assert refused.value.outcome is Outcome.QUEUE_EXPIRED
    gate.turnstile.give_back(held)
    assert gate.used() == 0


@pytest.mark.parametrize("how", ["leaves", "cancelled", "expires"])
async def test_who_is_lost_while_waiting_again_leaves_nothing_behind(how: str) -> None:
    gate, ending = Two(max_age_s=0.05 if how == "expires" else 60.0), Ending()
    passes = [await gate.enter(slots=2), await gate.enter(slots=2)]
    for engine in ("e", "f"):
        gate.turnstile.tell(lambda core, now, e=engine: core.set_engine(e, now, up=False))
    assert not gate.turnstile.elsewhere(passes[0])
    again = asyncio.ensure_future(gate.turnstile.again(passes[0], ending))
    await asyncio.sleep(0)
    if how == "leaves":
        ending.set()
    elif how == "cancelled":
        again.cancel()
    with pytest.raises(asyncio.CancelledError if how == "cancelled" else Refused):
        await again
    gate.turnstile.give_back(passes[0])
    gate.turnstile.give_back(passes[1])
    assert gate.used() == 0
    assert gate.turnstile.waiting == 0


@pytest.mark.parametrize("mode", [OBSERVE, AdmissionMode.OFF])
async def test_without_another_engine_what_does_not_wait_is_refused(mode: AdmissionMode) -> None:
    gate = Two(mode)
    held = await gate.enter()
    for engine in ("e", "f"):
        gate.turnstile.tell(lambda core, now, e=engine: core.set_engine(e, now, up=False))
    with pytest.raises(Refused) as refused:
        await gate.turnstile.again(held, Ending())
    assert refused.value.outcome is Outcome.NO_ENGINE
    gate.turnstile.give_back(held)
    assert gate.used() == 0


async def test_a_ghost_that_is_charged_stays_charged_once_over_a_retry() -> None:
    gate = Two(OBSERVE)
    passes = [await gate.enter(slots=2) for _ in range(3)]
    assert gate.used() == 4  # two are charged, the third one's ghost waits
    for held in passes:
        assert await gate.turnstile.again(held, Ending()) is held
    assert gate.used() == 4
    for held in passes:
        gate.turnstile.give_back(held)
    assert gate.used() == 0


async def test_who_has_left_before_gets_no_engine_even_if_one_is_free() -> None:
    gate, ending = Gate(), Ending()
    ending.set()
    with pytest.raises(Refused) as refused:
        await gate.enter(ending)
    assert refused.value.outcome is Outcome.CLIENT_CANCELLED
    assert gate.at_zero()


@pytest.mark.parametrize("mode", MODES)
async def test_who_has_left_gets_no_second_engine(mode: AdmissionMode) -> None:
    gate, ending = Two(mode), Ending()
    held = await gate.enter()
    ending.set()
    with pytest.raises(Refused) as refused:
        await gate.turnstile.again(held, ending)
    assert refused.value.outcome is Outcome.CLIENT_CANCELLED
    assert gate.used() == 0


@pytest.mark.parametrize("mode", MODES)
async def test_the_engine_that_failed_is_not_elsewhere(mode: AdmissionMode) -> None:
    gate = Two(mode)
    held = await gate.enter()
    other = "f" if held.engine == "e" else "e"
    gate.turnstile.tell(lambda core, now: core.set_engine(other, now, up=False))
    assert not gate.turnstile.elsewhere(held)
    gate.turnstile.give_back(held)
    assert gate.used() == 0
