"""Several gateways before the same engines: every part is somebody's, and together no too much."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import EngineLimits, FlowSpec
from gateway.floors import broken_floors, least_limits
from gateway.replicas import faults, owners, share, share_all

LIMITS = EngineLimits(
    slots=128, prefill_tokens=60_000, kv_tokens=10**6, max_prefilling=(("long", 1), ("medium", 2))
)
EIGHT = {f"http://engine-{i}:8000": LIMITS for i in range(8)}
NAMES = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=24, unique=True)


@given(NAMES, st.integers(1, 12))
def test_every_engine_has_one_owner_and_the_engines_are_dealt_evenly(
    engines: list[str], n: int
) -> None:
    owned = Counter(owners(engines, n).values())
    assert sum(owned.values()) == len(engines)
    assert set(owned) <= set(range(n))
    least = min(owned[i] for i in range(n))
    assert max(owned.values()) - least <= 1
    assert least >= 1 or len(engines) < n


@given(NAMES, st.integers(1, 12), st.randoms())
def test_owners_do_not_depend_on_the_order_of_the_engines(
    engines: list[str], n: int, chance: object
) -> None:
    shuffled = list(engines)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert owners(shuffled, n) == owners(engines, n)


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_all_replicas_together_never_exceed_an_engine(n: int) -> None:
    parts = [share_all(EIGHT, index, n) for index in range(n)]
    for engine in EIGHT:
        mine = [part[engine] for part in parts]
        assert sum(m.slots for m in mine) <= LIMITS.slots
        assert sum(m.prefill_tokens for m in mine) <= LIMITS.prefill_tokens
        assert sum(m.kv_tokens for m in mine) <= LIMITS.kv_tokens
        for size, cap in LIMITS.max_prefilling:
            caps = [dict(m.max_prefilling)[size] for m in mine]
            assert sorted(caps) == [0] * (n - 1) + [cap]


def test_one_replica_has_everything() -> None:
    assert share_all(EIGHT, 0, 1) == EIGHT
    assert share(LIMITS, "e0", 0, 1) == LIMITS


def test_every_replica_may_start_every_class_somewhere_if_there_are_engines_enough() -> None:
    for n in range(1, 9):
        assert faults(EIGHT, n) == []
        for index in range(n):
            caps = [dict(m.max_prefilling) for m in share_all(EIGHT, index, n).values()]
            assert any(c["long"] for c in caps)
            assert any(c["medium"] for c in caps)


def test_more_replicas_than_engines_of_a_capped_class_is_a_fault() -> None:
    served = {"long": list(EIGHT)[:2], "medium": list(EIGHT)}
    assert [f for f in faults(EIGHT, 3, served) if "medium" in f] == []
    (told,) = faults(EIGHT, 3, served)
    assert "long" in told
    assert "one replica" in told
    assert len(faults(EIGHT, 9)) == 2
    assert "slots" in faults({"e0": EngineLimits(2, 9, 9)}, 3)[0]


def test_only_engines_that_serve_a_class_are_dealt() -> None:
    served = {"long": list(EIGHT)[:2]}
    for index in range(2):
        mine = share_all(EIGHT, index, 2, served)
        assert [dict(mine[e].max_prefilling)["long"] for e in served["long"]].count(1) == 1


def test_a_class_that_never_comes_needs_no_floor_there() -> None:
    long = FlowSpec("m", "long", "chat", largest_prompt_tokens=90_000)
    short = FlowSpec("m", "short", "chat", largest_prompt_tokens=512)
    never = EngineLimits(16, 20_000, 40_000, (("long", 0),))
    assert broken_floors((long, short), never) == []
    assert broken_floors((long,), never) == []
    assert least_limits((long,), never) == never
    assert least_limits((long, short), never).slots == 4
    assert broken_floors((long, short), EngineLimits(16, 20_000, 40_000, (("long", 1),)))
