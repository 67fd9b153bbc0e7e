"""Trace context: continued where it is well-formed, begun anew where not."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.traceparent import MAX_STATE_MEMBERS, TraceContext, continued

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{PARENT}-01".encode()


def ids() -> "object":
    numbers = count(1)
    return lambda size: f"{next(numbers):0{2 * size}x}"


def begun(*headers: tuple[bytes, bytes], sample: bool = True) -> TraceContext:
    return continued(headers, ids(), sample=sample)  # type: ignore[arg-type]


def test_a_callers_trace_goes_on_with_a_span_of_ours() -> None:
    found = begun((b"traceparent", GOOD), (b"tracestate", b"a=1"))
    assert found == TraceContext(TRACE, f"{1:016x}", PARENT, 1, b"a=1")
    assert found.onward([(b"x", b"y"), (b"traceparent", GOOD), (b"tracestate", b"old=1")]) == [
        (b"x", b"y"),
        (b"traceparent", f"00-{TRACE}-{1:016x}-01".encode()),
        (b"tracestate", b"a=1"),
    ]


def test_an_unsampled_trace_stays_unsampled() -> None:
    found = begun((b"traceparent", GOOD[:-2] + b"00"))
    assert not found.sampled
    assert found.onward([])[0][1].endswith(b"-00")


def test_of_the_flags_only_the_known_one_goes_on() -> None:
    assert begun((b"traceparent", GOOD[:-2] + b"ff")).flags == 1


@pytest.mark.parametrize("sample", [True, False])
def test_without_one_a_trace_begins_here(sample: bool) -> None:
    found = begun((b"tracestate", b"a=1"), sample=sample)
    assert found == TraceContext(f"{1:032x}", f"{2:016x}", None, int(sample), None)


@pytest.mark.parametrize(
    "value",
    [
        b"", b"00", GOOD[:-1], GOOD + b"-more", b"ff" + GOOD[2:], GOOD.upper(),
        GOOD.replace(TRACE.encode(), b"0" * 32), GOOD.replace(PARENT.encode(), b"0" * 16),
        GOOD + b"," + GOOD, b"01" + GOOD[2:] + b"x", GOOD.replace(b"-", b"_"),
    ],
)  # fmt: skip
def test_a_malformed_parent_begins_a_trace(value: bytes) -> None:
    assert begun((b"traceparent", value)).trace_id == f"{1:032x}"


def test_two_parents_begin_a_trace() -> None:
    assert begun((b"traceparent", GOOD), (b"traceparent", GOOD)).parent_id is None


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    found = begun((b"traceparent", b"cc" + GOOD[2:] + b"-what-comes"))
    assert (found.trace_id, found.parent_id) == (TRACE, PARENT)


@pytest.mark.parametrize(
    ("states", "wanted"),
    [
        ([b"a=1,b=2"], b"a=1,b=2"),
        ([b"a=1", b" b=2 ,, c=3"], b"a=1,b=2,c=3"),
        ([b"t@vendor=x y"], b"t@vendor=x y"),
        ([b"a=1,a=2"], None),
        ([b"A=1"], None),
        ([b"a"], None),
        ([b"a=\x00"], None),
        ([b"a=" + b"x" * 300], None),
        ([b",".join(b"k%d=1" % n for n in range(MAX_STATE_MEMBERS + 1))], None),
        ([b",".join(b"k%d=%s" % (n, b"x" * 40) for n in range(20))], None),
        ([], None),
    ],
)
def test_state_goes_on_within_bounds(states: list[bytes], wanted: bytes | None) -> None:
    headers = [(b"tracestate", state) for state in states]
    assert begun((b"traceparent", GOOD), *headers).state == wanted


@given(st.lists(st.tuples(st.sampled_from([b"traceparent", b"tracestate"]), st.binary())))
def test_whatever_is_sent_what_goes_on_is_well_formed(headers: list[tuple[bytes, bytes]]) -> None:
    once = begun(*headers).onward(headers)
    again = continued(once, ids())  # type: ignore[arg-type]
    parent = dict(once)[b"traceparent"].decode().split("-")
    assert [len(part) for part in parent] == [2, 32, 16, 2]
    assert (again.trace_id, again.parent_id) == (parent[1], parent[2])
