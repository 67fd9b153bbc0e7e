"""The audit trail: what is tampered with breaks the chain, there."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.audit import FIRST_PARENT, AuditEntry, Note, broken_at, digest_of, linked

Entries = list[AuditEntry]


def chain(count: int) -> Entries:
    entries: Entries = []
    for n in range(1, count + 1):
        parent = entries[-1].digest if entries else FIRST_PARENT
        note = Note("ben", "flip", "m/short", n, n + 1, "because", {"changed": [n]})
        entries.append(linked(note, n, f"2026-01-01T00:00:{n:02}", parent))
    return entries


def head(entries: Entries) -> tuple[int, str]:
    return (entries[-1].n, entries[-1].digest) if entries else (0, FIRST_PARENT)


@pytest.mark.parametrize("count", [0, 1, 7])
def test_what_nobody_touched_is_whole(count: int) -> None:
    entries = chain(count)
    assert broken_at(entries, head(entries)) is None


@given(
    at=st.integers(1, 7),
    change=st.sampled_from(
        [("who", "eve"), ("why", ""), ("to_revision", 1), ("detail", {}), ("digest", "0" * 64)]
    ),
)
def test_an_entry_that_was_changed_is_named(at: int, change: tuple[str, object]) -> None:
    entries = chain(7)
    changes: dict[str, object] = dict([change])
    entries[at - 1] = replace(entries[at - 1], **changes)  # type: ignore[arg-type]
    assert broken_at(entries, head(chain(7))) == at


@pytest.mark.parametrize(
    ("tamper", "at"),
    [
        (lambda entries: entries.pop(3), 4),
        (lambda entries: entries.pop(), 7),
        (lambda entries: entries.insert(2, entries[2]), 4),
        (lambda entries: entries.append(linked(Note("eve", "flip"), 8, "", "")), 8),
    ],
)
def test_an_entry_that_is_gone_or_was_put_in_is_named(
    tamper: Callable[[Entries], object], at: int
) -> None:
    entries = chain(7)
    whole = head(entries)
    tamper(entries)
    assert broken_at(entries, whole) == at


def test_a_chain_made_anew_from_some_entry_on_is_told_by_its_head() -> None:
    entries = chain(7)
    whole = head(entries)
    forged = entries[:5]
    for n in (6, 7):
        forged.append(linked(Note("eve", "flip"), n, "", forged[-1].digest))
    assert broken_at(forged, whole) == 8


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1}) != digest_of({"a": 2, "b": 1})
