"""Moves of the route table: what each changes, what it leaves alone, what it refuses."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import ConfigError
from gateway.domain import AdmissionMode, Arm
from gateway.moves import (
    PoolFacts,
    RouteError,
    abort,
    canary,
    configured,
    drain,
    flip,
    pool_facts,
    previous,
    promote,
    rollback,
    selected,
    undrain,
    unknown_pools,
)
from gateway.routing import Route, RouteTable
from tests.gateway.minimal import CONFIG, settings

NAMES = ("a", "b", "c")
POOLS = {name: PoolFacts() for name in NAMES}
SHORT, LONG, OTHER = ("m", "short"), ("m", "long"), ("org/n", "short")
FIRST = RouteTable(
    4,
    bytes(32),
    MappingProxyType({key: Route(*key, "a", since=1) for key in (SHORT, LONG, OTHER)}),
    {},
)
EXTRA = """
[pool.b]
engines = ["http://127.0.0.1:8002"]
{b}
[pool.c]
engines = ["http://127.0.0.1:8003"]
"""


def targets(table: RouteTable) -> dict[tuple[str, str], tuple[str, str | None, float]]:
    return {
        key: (route.stable_pool, route.candidate_pool, route.candidate_weight)
        for key, route in table.routes.items()
    }


def after_canary(weight: float = 0.1) -> RouteTable:
    return canary(FIRST, [SHORT], "b", weight, POOLS)


# -- what a move does ----------------------------------------------------------------------


def test_a_name_is_one_route_or_all_of_a_model() -> None:
    assert selected(FIRST, "m/short") == (SHORT,)
    assert selected(FIRST, "m") == (SHORT, LONG)
    assert selected(FIRST, "org/n/short") == selected(FIRST, "org/n") == (OTHER,)
    with pytest.raises(RouteError, match=r"m/huge: there is no such route.*m/short"):
        selected(FIRST, "m/huge")


def test_a_flip_goes_to_the_pool_named_and_remembers_the_old_one() -> None:
    moved = flip(FIRST, [SHORT], "b", POOLS)
    assert moved.routes[SHORT] == Route(*SHORT, "b", since=5, previous_pool="a")


def test_a_flip_without_a_pool_goes_to_the_candidate_as_a_promotion_does() -> None:
    began = after_canary()
    assert flip(began, [SHORT], None, POOLS) == promote(began, [SHORT], POOLS)
    assert targets(promote(began, [SHORT], POOLS))[SHORT] == ("b", None, 0.0)


def test_another_weight_keeps_the_callers_and_another_candidate_does_not() -> None:
    callers = [f"caller-{n}" for n in range(500)]

    def moved(table: RouteTable) -> set[str]:
        return {c for c in callers if table.arm(table.routes[SHORT], c) is Arm.CANDIDATE}

    ten = after_canary(0.1)
    thirty = canary(ten, [SHORT], None, 0.3, POOLS)
    other = canary(thirty, [SHORT], "c", 0.1, POOLS)
    assert moved(ten)
    assert moved(ten) < moved(thirty)
    assert moved(other) != moved(ten)
    assert moved(rollback(other, {SHORT: ten.routes[SHORT]}, POOLS)) == moved(ten)


def test_an_abort_leaves_the_stable_pool_alone() -> None:
    assert targets(abort(after_canary(), [SHORT])) == targets(FIRST)


def test_pools_and_routes_drain_until_they_are_undrained() -> None:
    drained = drain(FIRST, ["b", "m/short"], POOLS)
    assert drained.draining == {"b", "m/short"}
    assert undrain(drained, ["b"], POOLS).draining == {"m/short"}
    assert targets(drained) == targets(FIRST)


def test_a_rollback_undrains_what_comes_back_into_use_and_nothing_else() -> None:
    flipped = drain(flip(FIRST, [SHORT], "b", POOLS), ["a", "c"], POOLS)
    back = rollback(flipped, {SHORT: FIRST.routes[SHORT]}, POOLS)
    assert back.draining == {"c"}
    assert targets(back) == targets(FIRST)


def test_a_rollback_keeps_how_admission_is_configured_now() -> None:
    moved = flip(FIRST, [SHORT], "b", POOLS)
    observed = replace(moved.routes[SHORT], mode=AdmissionMode.OBSERVE)
    moved = replace(moved, routes={**moved.routes, SHORT: observed})
    back = rollback(moved, {SHORT: FIRST.routes[SHORT]}, POOLS)
    assert back.routes[SHORT].mode is AdmissionMode.OBSERVE


# -- what there is to go back to -----------------------------------------------------------


def test_after_a_canary_of_several_steps_one_rollback_has_all_at_the_old_pool() -> None:
    history = [FIRST, after_canary(0.1)]
    history.append(canary(history[-1], [SHORT], None, 0.5, POOLS))
    for last in (history[-1], promote(history[-1], [SHORT], POOLS)):
        assert previous(last, reversed(history)) == {SHORT: FIRST.routes[SHORT]}


def test_rollbacks_go_further_back_one_move_at_a_time() -> None:
    history = [FIRST, flip(FIRST, [SHORT], "b", POOLS)]
    history.append(flip(history[-1], [LONG], "c", POOLS))
    history.append(flip(history[-1], [SHORT], "c", POOLS))
    seen = []
    for _ in range(3):
        back = previous(history[-1], reversed(history))
        history.append(rollback(history[-1], back, POOLS))
        seen.append(targets(history[-1]))
    assert seen == [targets(history[n]) for n in (2, 1, 0)]
    with pytest.raises(RouteError, match="no earlier state"):
        previous(history[-1], reversed(history))


def test_where_nothing_was_changed_yet_no_revision_is_asked_for() -> None:
    fresh = replace(FIRST, revision=1)
    drained = drain(fresh, ["b"], POOLS)
    for table, history in ((fresh, []), (fresh, [fresh]), (drained, [drained, fresh])):
        for keys in (None, [SHORT]):
            with pytest.raises(RouteError, match="no route has moved yet: there is nothing"):
                previous(table, history, keys)
    with pytest.raises(RouteError, match="name a revision"):
        previous(FIRST, [FIRST], [SHORT])


def test_a_route_named_goes_back_alone() -> None:
    history = [FIRST, flip(FIRST, [SHORT], "b", POOLS)]
    history.append(flip(history[-1], [LONG], "b", POOLS))
    back = previous(history[-1], reversed(history), [SHORT])
    assert back == {SHORT: FIRST.routes[SHORT]}


def test_after_an_abort_nothing_is_rolled_back_beyond_it_by_itself() -> None:
    history = [FIRST, flip(FIRST, [SHORT], "c", POOLS)]
    history.append(canary(history[-1], [SHORT], "b", 0.1, POOLS))
    history.append(abort(history[-1], [SHORT]))
    with pytest.raises(RouteError, match="name a revision"):
        previous(history[-1], reversed(history))


# -- what is refused -----------------------------------------------------------------------

PINNED = {
    "a": PoolFacts(frozenset({"m"}), "v1", "eu"),
    "b": PoolFacts(frozenset({"m"}), "v2", "eu"),
    "c": PoolFacts(frozenset({"m"}), "v1", "us"),
    "d": PoolFacts(frozenset({"x"}), "v1", "eu"),
    "e": PoolFacts(frozenset({"m"}), "v1", "eu"),
    "f": PoolFacts(frozenset({"m"}), "v1", None),
}


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        ("nowhere", "m/short: pool 'nowhere': is not configured"),
        ("b", "m/short: pool 'b': its model_revision is v2, and the route pins v1"),
        ("c", "m/short: pool 'c': its data_region is us, and the route pins eu"),
        ("d", "m/short: pool 'd': serves x"),
        ("f", "m/short: pool 'f': its data_region is not given, and the route pins eu"),
    ],
)
def test_no_move_leads_to_a_pool_that_differs(pool: str, words: str) -> None:
    moves: list[Callable[[], RouteTable]] = [
        lambda: flip(FIRST, [SHORT], pool, PINNED),
        lambda: canary(FIRST, [SHORT], pool, 0.1, PINNED),
        lambda: promote(canary(FIRST, [SHORT], pool, 0.1, {pool: PoolFacts()}), [SHORT], PINNED),
        lambda: rollback(FIRST, {SHORT: Route(*SHORT, pool)}, PINNED),
        lambda: rollback(FIRST, {SHORT: Route(*SHORT, "a", pool)}, PINNED),
    ]
    for move in moves:
        with pytest.raises(RouteError) as refused:
            move()
        assert str(refused.value).startswith(words)
    assert flip(FIRST, [SHORT], "e", PINNED).routes[SHORT].stable_pool == "e"


@pytest.mark.parametrize(
    ("move", "words"),
    [
        (lambda: canary(FIRST, [SHORT], "b", 1.01, POOLS), "weight: must be from 0 to 100"),
        (lambda: canary(FIRST, [SHORT], "b", -0.1, POOLS), "weight: must be from 0 to 100"),
        (lambda: canary(FIRST, [SHORT], "b", float("nan"), POOLS), "weight: must be"),
        (lambda: canary(FIRST, [SHORT], "a", 0.1, POOLS), "m/short: pool 'a': is its stable pool"),
        (lambda: canary(FIRST, [SHORT], None, 0.1, POOLS), "m/short: has no candidate"),
        (lambda: canary(after_canary(), [SHORT], "b", 0.1, POOLS), "m/short: nothing would"),
        (lambda: flip(FIRST, [SHORT], "a", POOLS), "m/short: pool 'a': is its stable pool"),
        (lambda: flip(FIRST, [SHORT], None, POOLS), "m/short: has no candidate"),
        (lambda: promote(after_canary(), [SHORT, LONG], POOLS), "m/long: has no candidate"),
        (lambda: abort(FIRST, [SHORT]), "m/short: has no candidate"),
        (lambda: drain(FIRST, ["x"], POOLS), "x: there is no such pool or route"),
        (lambda: drain(drain(FIRST, ["b"], POOLS), ["b"], POOLS), "b: is draining already"),
        (lambda: undrain(FIRST, ["b"], POOLS), "b: is not draining"),
        (lambda: flip(drain(FIRST, ["b"], POOLS), [SHORT], "b", POOLS), "m/short: pool 'b': is dr"),
        (lambda: rollback(FIRST, {SHORT: FIRST.routes[SHORT]}, POOLS), "m/short: nothing would"),
        (lambda: rollback(FIRST, {("x", "y"): Route("x", "y", "a")}, POOLS), "x/y: is not conf"),
    ],
)
def test_a_move_that_can_not_be_made_names_what_is_at_fault(
    move: Callable[[], RouteTable], words: str
) -> None:
    with pytest.raises(RouteError) as refused:
        move()
    assert str(refused.value).startswith(words)


# -- properties ----------------------------------------------------------------------------

KEYS = st.lists(st.sampled_from([SHORT, LONG, OTHER]), min_size=1, unique=True)
TARGETS = st.sampled_from([*NAMES, None, "nowhere"])
STEPS = st.one_of(
    st.tuples(st.just("flip"), KEYS, TARGETS),
    st.tuples(st.just("canary"), KEYS, TARGETS, st.floats(-0.1, 1.1)),
    st.tuples(st.just("promote"), KEYS),
    st.tuples(st.just("abort"), KEYS),
    st.tuples(st.just("drain"), st.lists(TARGETS.filter(bool), min_size=1)),
    st.tuples(st.just("undrain"), st.lists(TARGETS.filter(bool), min_size=1)),
    st.tuples(st.just("rollback")),
)


def step(history: list[RouteTable], word: str, *given: object) -> RouteTable:
    table = history[-1]
    if word == "rollback":
        return rollback(table, previous(table, reversed(history)), POOLS)
    moves: dict[str, Callable[..., RouteTable]] = {
        "flip": flip, "canary": canary, "promote": promote, "drain": drain, "undrain": undrain,
    }  # fmt: skip
    return abort(table, *given) if word == "abort" else moves[word](table, *given, POOLS)  # type: ignore[arg-type]


@given(st.lists(STEPS, max_size=12))
def test_whatever_is_done_the_table_is_one_revision_later_and_names_what_there_is(
    steps: list[tuple[object, ...]],
) -> None:
    history = [FIRST]
    for word, *given_ in steps:
        before = history[-1]
        try:
            after = step(history, str(word), *given_)
        except RouteError:
            continue
        assert after.revision == before.revision + 1
        assert (after.routes, after.draining) != (before.routes, before.draining)
        assert list(unknown_pools(after, POOLS)) == []
        assert after.draining <= {*NAMES, "m/short", "m/long", "org/n/short"}
        assert (after.salt, after.models, set(after.routes)) == (FIRST.salt, {}, set(FIRST.routes))
        if word in {"flip", "canary", "promote", "abort"}:
            named = given_[0]
            assert isinstance(named, list)
            for key in set(after.routes) - set(named):
                assert after.routes[key] == before.routes[key]
        for route in after.routes.values():
            assert route.candidate_pool != route.stable_pool
            assert 0.0 <= route.candidate_weight <= (1.0 if route.candidate_pool else 0.0)
            assert route.since <= after.revision
        history.append(after)


@given(st.lists(STEPS, max_size=8), KEYS, st.sampled_from(NAMES))
def test_rolling_a_flip_back_restores_where_settled_routes_went(
    steps: list[tuple[object, ...]], keys: list[tuple[str, str]], to: str
) -> None:
    history = [FIRST]
    for word, *given_ in steps:
        try:
            history.append(step(history, str(word), *given_))
        except RouteError:
            continue
    before = history[-1]
    settled = [k for k in keys if before.routes[k].candidate_weight == 0.0]
    try:
        history.append(flip(before, settled, to, POOLS))
    except RouteError:
        return
    back = rollback(history[-1], previous(history[-1], reversed(history)), POOLS)
    assert {k: r.stable_pool for k, r in back.routes.items()} == {
        k: r.stable_pool for k, r in before.routes.items()
    }
    assert back.draining <= before.draining


# -- configurations ------------------------------------------------------------------------


def test_a_configurations_routes_follow_the_table_before_and_keep_what_stays() -> None:
    moved = drain(flip(FIRST, [SHORT], "b", POOLS), ["a", "c", "m/long"], POOLS)
    fresh = RouteTable(
        0, b"new", {SHORT: Route(*SHORT, "b"), LONG: Route(*LONG, "c")}, {}, frozenset()
    )
    table = configured(moved, fresh, ["b", "c"])
    assert (table.revision, table.salt) == (moved.revision + 1, FIRST.salt)
    assert table.routes[SHORT].since == moved.routes[SHORT].since
    assert table.routes[LONG].since == table.revision
    assert table.draining == {"c", "m/long"}
    assert configured(None, fresh, []).revision == 1


def test_a_pool_serves_the_models_it_names_or_those_routed_there_or_any(tmp_path: Path) -> None:
    text = CONFIG + EXTRA.format(b='models = ["m"]\nmodel_revision = "v2"\ndata_region = "eu"')
    facts = pool_facts(settings(tmp_path, text).document)
    assert facts == {
        "a": PoolFacts(frozenset({"m"})),
        "b": PoolFacts(frozenset({"m"}), "v2", "eu"),
        "c": PoolFacts(),
    }


@pytest.mark.parametrize(
    ("b", "candidate", "words"),
    [
        ('models = ["x"]', "", "pool.b.models: 'x' is not configured"),
        ('data_region = "eu"', 'candidate_pool = "b"', "its data_region is eu"),
        ('model_revision = "v"', 'candidate_pool = "b"', "its model_revision is v"),
    ],
)
def test_a_configuration_keeps_the_pins_too(
    tmp_path: Path, b: str, candidate: str, words: str
) -> None:
    text = CONFIG + candidate + EXTRA.format(b=b)
    with pytest.raises(ConfigError, match=words):
        settings(tmp_path, text)
