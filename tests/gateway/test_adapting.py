"""Adapted limits in force: what an adaptation is shown, and what becomes of its answer."""

import io
from dataclasses import replace

import pytest

from gateway.adapting import Adapting, Range
from gateway.admission import Admission
from gateway.domain import EngineLimits, FlowSpec
from gateway.epochs import Epochs
from gateway.health import EngineHealth
from gateway.journal import Journal
from gateway.scrape import Scrape
from gateway.turnstile import Turnstile
from gateway.verdicts import RouteView, Topology

LIMITS = EngineLimits(slots=100, prefill_tokens=80_000, kv_tokens=1_000_000)
FLOORS = replace(LIMITS, slots=25, prefill_tokens=20_000)
CALM = Scrape(running=1.0, waiting=0.0, preemptions=0.0, kv_usage=0.1, process_start_s=1.0)


class World:
    """One engine, a clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        routes = {("m", "short"): RouteView("p")}
        core = Admission(
            [FlowSpec("m", "short", "i")], Topology({"e": LIMITS}, {"p": ["e"]}, routes), self.now
        )
        self.turnstile = Turnstile(core, lambda: self.now, lambda *_: None)
        self.log = io.BytesIO()
        self.journal = Journal(self.log)
        self.adapting = Adapting(self.turnstile, self.journal, lambda: self.now)
        self.adapting.use({"e": Range(LIMITS, FLOORS, 100)})

    def see(self, page: Scrape, after_s: float = 1.0, *, mixed: bool = False) -> int:
        """Show a page some time later; the slots then in force."""
        self.now += after_s
        self.adapting.page(EngineHealth("e", up=True, last=page, epochs=Epochs(1, mixed=mixed)))
        return self.turnstile.core.engines["e"].limits.slots


@pytest.fixture
def world() -> World:
    return World()


def test_an_engine_that_refused_shrinks_its_limits_once(world: World) -> None:
    assert world.see(CALM) == 100
    world.adapting.rejected("e")
    assert world.see(CALM) == 80
    assert world.see(CALM, 11.0) == 80
    world.journal.close()
    assert world.log.getvalue().count(b'"limits_adapted"') == 1


def test_pages_in_quick_succession_are_one_look(world: World) -> None:
    world.see(CALM)
    world.adapting.rejected("e")
    assert world.see(CALM, 0.1) == 100
    assert world.see(CALM, 0.9) == 80


def test_a_restart_and_several_engines_in_turn_go_back_to_what_is_configured(world: World) -> None:
    world.adapting.rejected("e")
    assert world.see(CALM) == 80
    assert world.see(CALM, mixed=True) == 100
    world.adapting.rejected("e")
    assert world.see(CALM) == 80
    world.adapting.restarted("e")
    assert world.adapting.limits("e") == LIMITS


def test_what_is_configured_anew_begins_anew_and_what_is_not_goes_on(world: World) -> None:
    world.adapting.rejected("e")
    world.see(CALM)
    world.adapting.use({"e": Range(LIMITS, FLOORS, 100)})
    assert world.adapting.limits("e") == replace(LIMITS, slots=80, prefill_tokens=64_000)
    world.adapting.use({})
    world.adapting.rejected("e")
    assert world.adapting.limits("e") is None


async def test_an_engine_that_is_not_adapted_is_left_alone(world: World) -> None:
    world.adapting.use({})
    world.adapting.rejected("e")
    assert world.see(CALM) == 100
