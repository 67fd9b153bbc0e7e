"""Another configuration in force: what stays, what drains, what is dropped, told as stories."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from gateway.domain import Arm, EngineLimits, FlowKey, FlowSpec, MisuseError
from gateway.verdicts import Offer, RouteView, Topology
from tests.gateway.admission_story import LONG, SHORT, Gate

ONE = EngineLimits(slots=1, prefill_tokens=100_000, kv_tokens=10**6)
FLOW = FlowKey("m", "short", "chat")


def change(
    gate: Gate,
    specs: Sequence[FlowSpec] = (SHORT, LONG),
    engines: Mapping[str, EngineLimits] | None = None,
    routes: Mapping[tuple[str, str], RouteView] | None = None,
) -> list[str]:
    engines = {"e0": ONE} if engines is None else engines
    routes = (
        {(s.model, s.size_class): RouteView("all") for s in specs} if routes is None else routes
    )
    topology = Topology(engines, {"all": tuple(engines)}, routes)
    return gate.tell(gate.core.reconfigure(specs, topology, gate.now))


def engines(gate: Gate) -> list[str]:
    return [v.engine for v in gate.core.engine_views()]


def test_a_new_engine_starts_down_and_serves_who_waits_once_it_is_up() -> None:
    gate = Gate(engines={"e0": ONE})
    gate.offer("a")
    gate.offer("b")
    assert change(gate, engines={"e0": ONE, "e1": ONE}) == []
    assert gate.engine("e1", up=True) == ["b -> e1"]


def test_an_engine_that_is_gone_takes_nothing_new_and_is_dropped_with_its_last_lease() -> None:
    gate = Gate(engines={"e0": ONE, "e1": ONE})
    gate.offer("a")
    gate.offer("b")
    gate.offer("c")
    change(gate)
    assert gate.done("b") == []
    assert engines(gate) == ["e0"]
    gate = Gate(engines={"e0": ONE})
    gate.offer("a")
    change(gate, engines={"e1": ONE})
    assert engines(gate) == ["e0", "e1"]
    assert gate.first_event("a") == []
    assert gate.done("a") == []
    assert engines(gate) == ["e1"]


def test_an_idle_engine_that_is_gone_is_dropped_at_once() -> None:
    gate = Gate(engines={"e0": ONE, "e1": ONE})
    change(gate)
    assert engines(gate) == ["e0"]


def test_an_engine_that_comes_back_before_its_leases_ended_is_the_same_and_down() -> None:
    gate = Gate(engines={"e0": ONE})
    gate.offer("a")
    change(gate, engines={"e1": ONE})
    change(gate, engines={"e0": replace(ONE, slots=2)})
    assert gate.ask("b") == "waits"
    assert gate.engine("e0", up=True) == ["b -> e0"]
    assert gate.core.engine_views()[0].slots == 2


def test_who_waits_gets_the_earlier_deadline() -> None:
    gate = Gate((replace(SHORT, max_age_s=10.0), LONG), engines={"e0": ONE})
    gate.offer("a")
    gate.offer("hasty", max_wait_s=4.0)
    gate.offer("patient")
    gate.wait(1.0)
    change(gate, (replace(SHORT, max_age_s=5.0), LONG))
    assert gate.wait(3.0) == ["hasty: queue_expired"]
    change(gate, (replace(SHORT, max_age_s=60.0), LONG))
    assert gate.wait(1.9) == []
    assert gate.wait(0.1) == ["patient: queue_expired"], "a longer age lengthens no wait"


def test_a_flow_that_is_gone_accepts_nothing_and_drains_where_it_was() -> None:
    gate = Gate(engines={"e0": ONE})
    gate.offer("a")
    gate.offer("b")
    change(gate, (LONG,))
    assert gate.ask("c") == "not_found"
    assert gate.core.begin_counting([SHORT.group], 10, 0.0) == ("not_found", 0.0)
    assert gate.done("a") == ["b -> e0"]
    assert FLOW in gate.core.flows
    assert gate.done("b") == []
    assert FLOW not in gate.core.flows
    assert SHORT.group not in gate.core.groups


def test_what_waits_in_a_flow_that_is_gone_with_its_engines_ends_with_no_engine() -> None:
    gate = Gate((replace(SHORT, max_age_s=5.0), LONG), engines={"e0": ONE})
    gate.offer("a")
    gate.offer("b")
    change(gate, (LONG,), {"e1": ONE})
    assert gate.wait(5.0) == ["b: no_engine"]
    assert gate.fails("a") == ["a: no_engine"]
    assert FLOW not in gate.core.flows
    assert engines(gate) == ["e1"]


def test_what_failed_after_its_flow_was_gone_still_goes_once_more() -> None:
    gate = Gate(engines={"e0": ONE})
    gate.offer("a")
    change(gate, (LONG,))
    assert gate.fails("a") == ["a -> e0"]
    gate.done("a")
    assert FLOW not in gate.core.flows


def test_a_body_that_is_counted_while_its_flow_goes_is_given_back() -> None:
    gate = Gate(engines={"e0": ONE})
    gate.core.begin_counting([SHORT.group, LONG.group], 100, 0.0)
    change(gate, (LONG,))
    assert SHORT.group in gate.core.groups
    gate.core.end_counting([SHORT.group, LONG.group], 100)
    assert SHORT.group not in gate.core.groups
    assert gate.core.groups[LONG.group].counting == 0


def test_learnt_values_of_what_stays_are_kept_and_a_restart_forgets_the_rate() -> None:
    gate = Gate(engines={"e0": replace(ONE, prefill_tokens_per_s=1000.0)})
    gate.offer("a", "long")
    gate.now = 1.0
    gate.first_event("a")
    learnt = gate.core.engine_views()[0].prefill_tokens_per_s
    assert learnt != 1000.0
    change(gate, engines={"e0": replace(ONE, slots=2, prefill_tokens_per_s=2000.0)})
    assert gate.core.engine_views()[0].prefill_tokens_per_s == learnt
    gate.tell(gate.core.restarted("e0", 1.0))
    assert gate.core.engine_views()[0].prefill_tokens_per_s == 2000.0


def test_a_restart_ramps_n_forgets_adapted_limits_and_keeps_leases() -> None:
    gate = Gate(engines={"e0": replace(ONE, slots=40)})
    gate.offer("a")
    gate.core.adapt("e0", replace(ONE, slots=20), 0.0)
    assert gate.core.engine_views()[0].slot_limit == 20
    gate.tell(gate.core.restarted("e0", 0.0))
    assert gate.core.engine_views()[0].slot_limit == 10
    gate.wait(30.0)
    view = gate.core.engine_views()[0]
    assert (view.slot_limit, view.slots) == (40, 1)


def test_adapted_limits_never_exceed_what_is_configured() -> None:
    gate = Gate(engines={"e0": ONE})
    before = gate.core.engine_views()
    for wrong in (
        replace(ONE, slots=2),
        replace(ONE, kv_tokens=5),
        replace(ONE, prefill_tokens=10**6),
    ):
        with pytest.raises(MisuseError, match="e0"):
            gate.core.adapt("e0", wrong, 0.0)
    assert gate.core.engine_views() == before


def test_a_request_wider_than_an_adapted_limit_waits_and_is_not_too_long() -> None:
    gate = Gate(engines={"e0": replace(ONE, slots=8)})
    gate.core.adapt("e0", replace(ONE, slots=2), 0.0)
    assert gate.ask("wide", slots=4) == "waits"
    assert gate.offer("b", "long") == ["b -> e0"], "it does not keep the engine from others"
    assert gate.tell(gate.core.adapt("e0", replace(ONE, slots=8), 0.0)) == ["wide -> e0"]


def test_a_head_too_large_for_adapted_limits_keeps_no_full_engine_from_others() -> None:
    gate = Gate(engines={"e0": ONE})
    gate.offer("a")
    assert gate.ask("big", "long") == "waits"
    assert gate.tell(gate.core.adapt("e0", replace(ONE, prefill_tokens=5000), 0.0)) == []
    assert gate.ask("b") == "waits"
    assert gate.done("a") == ["b -> e0"]
    assert gate.tell(gate.core.adapt("e0", ONE, 0.0)) == []
    assert gate.done("b") == ["big -> e0"]


def test_who_can_not_fit_under_the_new_limits_is_refused_rather_than_left_to_hold() -> None:
    gate = Gate(engines={"e0": replace(ONE, slots=4)})
    gate.offer("a")
    gate.offer("wide", slots=4)
    assert change(gate) == ["wide: prompt_too_long"]


def test_a_cap_of_0_sends_a_class_elsewhere_and_to_no_engine_if_there_is_none() -> None:
    never = replace(ONE, max_prefilling=(("long", 0),))
    gate = Gate(engines={"e0": replace(never, slots=5), "e1": ONE})
    assert gate.ask("long-1", "long") == "e1"
    assert gate.ask("long-2", "long") == "waits"
    assert gate.ask("short-1") == "e0"
    gate.limits("e1", never)
    assert gate.ask("long-3", "long") == "no_engine"
    assert gate.limits("e1", replace(ONE, slots=2)) == ["long-2 -> e1"]


def test_what_stopped_somebody_is_told_once() -> None:
    gate = Gate(engines={"e0": ONE})
    assert not gate.core.gate_bound("e0")
    gate.offer("a")
    assert not gate.core.gate_bound("e0")
    gate.offer("b")
    assert gate.core.gate_bound("e0")
    assert gate.core.gate_bound("e0"), "it still stops somebody"
    gate.done("a")
    gate.done("b")
    assert not gate.core.gate_bound("e0")


@pytest.mark.parametrize(
    ("specs", "topology", "told"),
    [
        ((SHORT, SHORT), Topology({"e0": ONE}, {"all": ("e0",)}, {}), "two specifications"),
        ((SHORT,), Topology({"e0": ONE}, {"all": ("e0", "e9")}, {}), "pool all .* e9"),
        ((SHORT,), Topology({}, {}, {("m", "short"): RouteView("blue")}), "m/short .* blue"),
        (
            (SHORT,),
            Topology({}, {"all": ()}, {("m", "short"): RouteView("all", "green", 0.1)}),
            "green",
        ),
    ],
)
def test_a_configuration_that_does_not_hold_together_changes_nothing(
    specs: tuple[FlowSpec, ...], topology: Topology, told: str
) -> None:
    gate = Gate(engines={"e0": ONE})
    gate.offer("a")
    gate.offer("b")
    before = gate.core.engine_views(), gate.core.flow_views(0.0)
    with pytest.raises(MisuseError, match=told):
        gate.core.reconfigure(specs, topology, 0.0)
    assert (gate.core.engine_views(), gate.core.flow_views(0.0)) == before
    assert gate.done("a") == ["b -> e0"]


def test_a_route_to_an_unknown_pool_changes_nothing() -> None:
    gate = Gate(engines={"e0": ONE})
    with pytest.raises(MisuseError, match=r"m/short .* nowhere"):
        gate.reroute({("m", "short"): RouteView("nowhere")})
    assert gate.ask("a") == "e0"


def test_a_candidate_arm_that_was_never_configured_is_not_found() -> None:
    gate = Gate(engines={"e0": ONE})
    offer = Offer(FLOW._replace(arm=Arm.CANDIDATE), "p", 512, 0.0)
    _, verdicts = gate.core.offer(offer, 0.0)
    assert [getattr(v, "outcome", None) for v in verdicts] == ["not_found"]
