"""Which address takes which name, and what a lookup gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.resolve import addresses, assigned, lookup


def test_addresses_of_both_families_become_origins() -> None:
    assert addresses("https://vllm.svc:8000", ["10.0.0.2", "fd00::1", "10.0.0.2"]) == (
        "https://10.0.0.2:8000",
        "https://[fd00::1]:8000",
    )


def test_an_address_keeps_its_name_and_a_new_one_takes_the_lowest_free() -> None:
    now = {"p#0": "http://a:1", "p#1": "http://b:1", "p#2": "http://c:1"}
    found = assigned("p", now, ["http://c:1", "http://d:1", "http://a:1"], now, 8)
    assert found == {"p#0": "http://a:1", "p#2": "http://c:1", "p#3": "http://d:1"}
    # The name that was given up is free once nothing runs under it.
    later = assigned("p", found, [*found.values(), "http://e:1"], {"p#0", "p#2", "p#3"}, 8)
    assert later["p#1"] == "http://e:1"


def test_more_addresses_than_names_leave_some_out() -> None:
    found = assigned("p", {}, [f"http://h{n}:1" for n in range(9)], (), 4)
    assert list(found) == ["p#0", "p#1", "p#2", "p#3"]


@given(st.lists(st.frozensets(st.integers(0, 8), min_size=1), max_size=12))
def test_names_never_move_and_are_never_shared(lookups: list[frozenset[int]]) -> None:
    now: dict[str, str] = {}
    for hosts in lookups:
        found = [f"http://h{n}:1" for n in sorted(hosts)]
        after = assigned("p", now, found, now, 6)
        assert set(after) <= {f"p#{n}" for n in range(6)}
        assert len(set(after.values())) == len(after)
        assert set(after.values()) <= set(found)
        for name in now.keys() & after.keys():
            assert now[name] == after[name]
        assert {a for a in now.values() if a in found} <= set(after.values())
        now = after


async def test_this_machines_own_name_is_looked_up() -> None:
    found = await lookup("http://localhost:8123")
    assert {"http://127.0.0.1:8123", "http://[::1]:8123"} & set(found)


async def test_a_name_that_nobody_has_is_an_error() -> None:
    with pytest.raises(OSError, match=r"."):
        await lookup("http://nobody.invalid:8000")
