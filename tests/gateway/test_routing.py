from dataclasses import replace

import pytest

from gateway.domain import Arm, Outcome, Refused
from gateway.routing import ModelName, Route, RouteTable, shared_engines

ROUTE = Route("m", "short", "a", "b", 0.1)
TABLE = RouteTable(
    revision=7,
    salt=b"salt" * 4,
    routes={("m", "short"): ROUTE, ("m", "long"): Route("m", "long", "a")},
    models={name: ModelName("m", "org/m", ("alias",)) for name in ("m", "alias")},
)
PEOPLE = [f"principal-{number}" for number in range(4000)]


def arms(table: RouteTable, route: Route) -> set[str]:
    return {who for who in PEOPLE if table.arm(route, who) is Arm.CANDIDATE}


def test_an_alias_names_the_model_the_engines_know() -> None:
    assert TABLE.model("alias") == TABLE.model("m")
    assert TABLE.model("m").engine_model == "org/m"


def test_an_unknown_model_is_not_found_and_its_name_is_not_repeated_at_length() -> None:
    with pytest.raises(Refused) as refused:
        TABLE.model("x" * 10_000)
    assert refused.value.outcome is Outcome.NOT_FOUND
    assert len(refused.value.message) < 200


def test_an_unknown_size_class_has_no_route() -> None:
    with pytest.raises(Refused, match="does not serve"):
        TABLE.route("m", "huge")


def test_the_arm_gets_its_weight_of_the_principals_and_each_keeps_its_arm() -> None:
    chosen = arms(TABLE, ROUTE)
    assert 0.08 * len(PEOPLE) < len(chosen) < 0.12 * len(PEOPLE)
    assert arms(TABLE, ROUTE) == chosen


def test_a_growing_weight_keeps_everyone_already_moved() -> None:
    assert arms(TABLE, ROUTE) < arms(TABLE, replace(ROUTE, candidate_weight=0.3))


def test_another_salt_chooses_others_so_that_callers_can_not_choose() -> None:
    assert arms(TABLE, ROUTE) != arms(replace(TABLE, salt=b"pepper"), ROUTE)


@pytest.mark.parametrize(
    ("route", "share"),
    [
        (replace(ROUTE, candidate_weight=0.0), 0),
        (replace(ROUTE, candidate_weight=1.0), len(PEOPLE)),
        (replace(ROUTE, candidate_pool=None), 0),
    ],
)
def test_weights_none_and_all_are_exact(route: Route, share: int) -> None:
    assert len(arms(TABLE, route)) == share


def test_each_arm_has_its_pool_and_a_gone_one_falls_back_to_the_stable_pool() -> None:
    two_armed = TABLE.route("m", "short")
    assert (two_armed.pool(Arm.STABLE), two_armed.pool(Arm.CANDIDATE)) == ("a", "b")
    assert TABLE.route("m", "long").pool(Arm.CANDIDATE) == "a"


def test_pools_that_share_an_engine_are_named() -> None:
    assert shared_engines({"a": ("x", "y"), "b": ("z",)}) == {}
    assert shared_engines({"a": ("x", "y"), "b": ("y",), "c": ("y", "z")}) == {"y": ("a", "b", "c")}
