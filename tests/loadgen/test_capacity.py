import pytest

from loadgen.capacity import Demand, Pool, pool_utilisation, request_work_s
from loadgen.engine.cost import StepCost

COSTS = StepCost(5.0e-3, 2.53e-5, 9.6e-6, 3.6e-8)
LONG, SHORT = Demand(4.36, 8192, 128), Demand(17.44, 512, 128)


def test_the_work_of_a_long_request_adds_up_by_hand():
    # 2 steps of base, 8,192 prompt tokens, 128 decode steps, 128 x (8,192 + 64) context tokens.
    by_hand = 0.010 + 8192 * 2.53e-5 + 128 * 9.6e-6 + 128 * 8256 * 3.6e-8
    assert request_work_s(COSTS, LONG, 8192) == pytest.approx(by_hand)


def test_a_prompt_below_the_budget_is_charged_no_base():
    by_hand = 512 * 2.53e-5 + 128 * 9.6e-6 + 128 * 576 * 3.6e-8
    assert request_work_s(COSTS, SHORT, 8192) == pytest.approx(by_hand)


def test_isolation_on_two_engines_overloads_the_long_one_where_sharing_does_not():
    demands = {"short": SHORT, "long": LONG}
    split = (Pool("short", ("short",), 1), Pool("long", ("long",), 1))
    isolated = pool_utilisation(split, demands, COSTS, 8192)
    shared = pool_utilisation([Pool("shared", ("short", "long"), 2)], demands, COSTS, 8192)
    assert isolated["long"] == pytest.approx(1.12, abs=0.01)
    assert isolated["short"] < 0.4
    assert shared["shared"] == pytest.approx((isolated["long"] + isolated["short"]) / 2)


def test_a_class_that_offers_nothing_adds_no_work():
    assert pool_utilisation([Pool("p", ("short", "long"), 2)], {}, COSTS, 8192) == {"p": 0.0}
