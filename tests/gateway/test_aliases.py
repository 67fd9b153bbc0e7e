"""When two engines are one."""

from dataclasses import replace
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from gateway.aliases import EngineIdentity, Pair, Told, judged, shared, suspects
from gateway.scrape import Scrape

HERE = frozenset({"10.0.0.1:8000"})
THERE = frozenset({"10.0.0.2:8000", "[fd00::2]:8000"})


BOTH = ("http://a", "http://b")
START_S = 1700000000.25


def one(
    identities: dict[str, EngineIdentity], told: dict[Pair, Told] | None = None, **pools: list[str]
) -> list[str]:
    return [str(found) for found in shared(identities, pools, told or {})]


def test_two_names_of_one_address_are_one_engine() -> None:
    names = {"http://a": EngineIdentity(HERE), "http://b": EngineIdentity(HERE | THERE)}
    (found,) = shared(names, {"short": ["http://a"], "long": ["http://b"]}, {})
    assert found.across
    assert found.because == "the same address 10.0.0.1:8000"
    assert str(found).startswith("http://a and http://b (pools short, long): ")


def test_two_addresses_of_one_process_are_one_engine_once_their_counts_say_so() -> None:
    twin = {
        "http://a": EngineIdentity(HERE, START_S, "cache"),
        "http://b": EngineIdentity(THERE, START_S, "cache"),
    }
    pools = {"p": ["http://a"], "q": ["http://b"]}
    assert suspects(twin) == [BOTH]
    (found,) = one(twin, {BOTH: Told(START_S, one=True)}, **pools)
    assert "the same process start 1700000000.25" in found
    assert one(twin, {BOTH: Told(START_S, one=False)}, **pools) == []
    assert one(twin, {BOTH: Told(START_S - 1, one=True)}, **pools) == []  # both restarted since
    assert one(twin, {}, **pools) == []


def test_engines_started_together_that_differ_are_two() -> None:
    pair = {
        "http://a": EngineIdentity(HERE, 17.0, "one cache"),
        "http://b": EngineIdentity(THERE, 17.0, "another"),
    }
    assert suspects(pair) == []
    assert one(pair, {BOTH: Told(17.0, one=True)}, p=["http://a"], q=["http://b"]) == []


def test_what_is_not_known_is_not_the_same() -> None:
    nobody = {"http://a": EngineIdentity(), "http://b": EngineIdentity()}
    unsaid = {
        "http://a": EngineIdentity(HERE, 17.0, None),
        "http://b": EngineIdentity(THERE, 17.0, None),
    }
    assert one(nobody, p=["http://a"], q=["http://b"]) == []
    assert one(unsaid, p=["http://a"], q=["http://b"]) == []
    assert suspects(nobody | unsaid) == []


def test_an_engine_named_twice_in_one_pool_does_not_join_pools() -> None:
    names = {"http://a": EngineIdentity(HERE), "http://b": EngineIdentity(HERE)}
    (found,) = shared(names, {"p": ["http://a", "http://b"]}, {})
    assert not found.across


# -- who started at the same moment --------------------------------------------------------

COUNTERS = ("cpu_s", "iterations", "prompt_tokens", "preemptions")
growths = st.lists(st.floats(0, 1e6), min_size=4, max_size=4)


def pages(*values: float, counter: str = "cpu_s") -> list[Scrape]:
    return [Scrape(process_start_s=START_S, **{counter: value}) for value in values]


@given(
    st.lists(st.tuples(*[st.floats(0, 1e6)] * 4), min_size=4, max_size=4),
    st.sets(st.sampled_from(COUNTERS)),
)
def test_one_process_seen_through_two_addresses_is_always_found(
    growths: list[tuple[float, ...]], unsaid: set[str]
) -> None:
    counts = [list(accumulate(row)) for row in zip(*growths, strict=True)]
    told = {
        name: values
        for name, values in zip(COUNTERS, counts, strict=True)
        if name not in unsaid and values[-1]
    }
    said = [
        Scrape(process_start_s=START_S, **{name: values[n] for name, values in told.items()})
        for n in range(4)
    ]
    for before in (None, Told(START_S - 1, one=False)):
        assert judged(before, said) == (Told(START_S, one=True) if told else before)


@given(st.sampled_from(COUNTERS), growths, st.floats(0, 1e6), st.floats(1e-3, 1e6), st.booleans())
def test_two_processes_are_told_apart_unless_they_are_level(
    counter: str, growths: list[float], first: float, ahead: float, turn: bool
) -> None:
    """One is ahead by more than both count during the look; whichever is asked first."""
    theirs, ours = first, first + sum(growths) + ahead
    values = []
    for number, growth in enumerate(growths):
        theirs, ours = theirs + growth, ours + growth
        values.append(ours if (number % 2 == 0) is turn else theirs)
    said = pages(*values, counter=counter)
    assert judged(None, said) == judged(Told(START_S, one=True), said) == Told(START_S, one=False)


def test_who_was_told_apart_stays_so_until_it_restarts() -> None:
    apart, level = Told(START_S, one=False), pages(5.0, 5.0, 5.0, 5.0)
    assert judged(apart, level) == apart
    assert judged(Told(START_S - 1, one=False), level) == Told(START_S, one=True)


def test_a_restart_during_the_look_and_counts_that_nobody_has_tell_nothing() -> None:
    restarted = [*pages(5.0, 5.0), replace(pages(0.1)[0], process_start_s=START_S + 9)]
    for known in (None, Told(START_S, one=True)):
        assert judged(known, restarted) == known
        assert judged(known, pages(0.0, 0.0, 0.0, 0.0)) == known
        assert judged(known, [Scrape(process_start_s=START_S)] * 4) == known
        assert judged(known, [*pages(5.0, 6.0), Scrape(process_start_s=START_S)]) == known
