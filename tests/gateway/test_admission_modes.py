"""What admission still does on a route where it is switched off."""

from dataclasses import replace

from gateway.domain import AdmissionMode
from tests.gateway.admission_story import SHORT, Gate
from tests.gateway.test_admission import SMALL, TWO


def test_off_forwards_at_once_and_only_keeps_the_ledger() -> None:
    gate = Gate(engines={"e0": replace(SMALL, slots=1)})
    gate.route("all", mode=AdmissionMode.OFF)
    assert [gate.ask(f"r{i}") for i in range(3)] == ["e0"] * 3
    assert gate.core.engine_views()[0].slots == 3


def test_off_spreads_over_the_engines_and_refuses_only_without_any() -> None:
    gate = Gate(engines=TWO)
    gate.route("all", mode=AdmissionMode.OFF)
    assert {gate.ask("a"), gate.ask("b")} == {"e0", "e1"}
    gate.engine("e0", up=False)
    gate.engine("e1", up=False)
    assert gate.ask("c") == "no_engine"
    assert gate.core.groups[SHORT.group].in_flight.keys() == {"a", "b"}
