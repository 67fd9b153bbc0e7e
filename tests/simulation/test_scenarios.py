"""What the core promises under load, in virtual time: mixes are data, the checks have margins."""

from dataclasses import replace

import pytest

from gateway.verdicts import RouteView
from loadgen.engine.scheduler import SchedulerConfig
from loadgen.simulate import SimArrival
from tests.simulation.worlds import LIMITS, LONG, SHORT, World, merged, nearest_rank, poisson

OUTCOMES_OF_OVERLOAD = {"queue_full", "queue_tokens_full", "predicted_wait", "queue_expired"}


def stream(
    rate: float, until_s: float, size_class: str = "short", tokens: int = 512, **fields
) -> list[SimArrival]:
    """Evenly spaced arrivals of one kind."""
    count = int(rate * until_s)
    return [
        SimArrival(i, i / rate, size_class, tokens, fields.pop("output_tokens", 128), **fields)
        for i in range(count)
    ]


def test_a_flood_of_one_flow_leaves_the_other_its_share_and_bounds_its_wait():
    flood = replace(SHORT, service_class="interactive", weight=4, reserved_slots=0)
    batch = replace(SHORT, service_class="batch", weight=1, reserved_slots=0, max_age_s=20.0)
    world = World(flows=(flood, batch), limits=replace(LIMITS, slots=64))
    arrivals = merged(
        stream(150, 40, service_class="interactive", principal="a"),
        stream(40, 40, service_class="batch", principal="b"),
    )
    results = world.run(arrivals)
    late = [r for r in results if r.sent_s is not None and 15 <= r.sent_s < 40]
    lower = [r for r in late if r.arrival.service_class == "batch"]
    assert len(lower) / len(late) == pytest.approx(1 / 5, abs=0.03)
    waits = [r.sent_s - r.arrival.at_s for r in results if r.sent_s is not None]
    assert max(waits) <= 60.0
    assert max(r.sent_s - r.arrival.at_s for r in lower) <= 20.0
    refused = {r.refused for r in results if r.refused}
    assert refused
    assert refused <= OUTCOMES_OF_OVERLOAD
    assert all(r.done or r.refused for r in results)


def test_longs_that_do_not_stream_lose_little_throughput():
    patient = replace(LONG, max_age_s=1000.0)
    world = World(flows=(SHORT, patient))
    streamed = stream(4.0, 60, "long", 8192)
    finished = []
    for arrivals in (streamed, [replace(a, streamed=False) for a in streamed]):
        results = world.run(arrivals)
        assert all(r.done for r in results)
        finished.append(max(r.last_s for r in results if r.last_s is not None))
    assert finished[1] <= finished[0] / 0.9


def test_a_canary_to_a_dead_pool_costs_only_the_requests_of_its_arm():
    route = RouteView("pool", candidate="dead", candidate_weight=0.1)
    arrivals = poisson(7, 8.0, 0.9, 60.0)
    beside = replace(World(), route=route).run(arrivals)
    canary = [r for r in beside if r.arrival.seq % 10 == 0]
    stable = [r for r in beside if r.arrival.seq % 10 != 0]
    assert {r.refused for r in canary if r.arrival.at_s > 2.0} == {"no_engine"}
    alone = World().run([r.arrival for r in stable])
    assert [r.ttft_s for r in stable] == [r.ttft_s for r in alone]


def test_one_caller_cannot_fill_the_queue():
    flow = replace(SHORT, max_queued=100, principal_share=0.25, max_age_s=30.0)
    world = World(flows=(flow,), limits=replace(LIMITS, slots=32))
    arrivals = merged(
        stream(150, 20, principal="greedy"),
        stream(5, 20, principal="modest"),
    )
    results = world.run(arrivals)
    modest = [r for r in results if r.arrival.principal == "modest"]
    greedy = [r for r in results if r.arrival.principal == "greedy"]
    assert all(r.done for r in modest)
    assert {r.refused for r in greedy if r.refused} == {"principal_limit"}


def test_an_omitted_max_tokens_is_charged_the_estimate_not_the_model_length():
    """Most callers omit it: charging max_model_len would leave room for a handful at a time."""
    world = World(limits=replace(LIMITS, kv_tokens=48_000), config=SchedulerConfig())
    arrivals = [replace(a, max_tokens_given=False) for a in stream(20, 30)]
    results = world.run(arrivals)
    assert all(r.done for r in results)
    waits = [r.sent_s - r.arrival.at_s for r in results if r.sent_s is not None]
    assert nearest_rank(waits, 0.99) < 0.5


def test_shorts_meet_at_most_one_long_prefill_whatever_the_mix():
    results = World().run(poisson(11, 6.0, 0.5, 120.0))
    prefills = [
        (r.sent_s, r.first_s)
        for r in results
        if r.arrival.size_class == "long" and r.sent_s is not None
    ]
    for sent, _ in prefills:
        assert sum(s < sent < f for s, f in prefills if f is not None) == 0
