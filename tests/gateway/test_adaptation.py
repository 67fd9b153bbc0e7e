"""Limits that follow an engine's signals: down quickly, up slowly, never past the bounds."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gateway.adaptation import Adaptation, Signals
from gateway.domain import EngineLimits

MOST = EngineLimits(slots=128, prefill_tokens=60_000, kv_tokens=10**6, token_budget=8192)
LEAST = replace(MOST, slots=40, prefill_tokens=26_000)
QUIET = Signals(0.0, 0.0, 0.5, running=0.0, waiting=0.0)


def adapted(*signals: Signals | None, start_s: float = 0.0) -> Adaptation:
    """After one look a second."""
    made = Adaptation(MOST, LEAST)
    for second, seen in enumerate(signals):
        made.observe(seen, start_s + second)
    return made


def test_a_quiet_engine_has_what_is_configured() -> None:
    assert adapted(QUIET, QUIET).limits == MOST


def test_each_sign_of_strain_takes_a_fifth() -> None:
    less = replace(MOST, slots=102, prefill_tokens=48_000)
    assert adapted(QUIET, replace(QUIET, preemptions_total=1.0)).limits == less
    assert adapted(replace(QUIET, kv_usage=0.96)).limits == less
    assert adapted(replace(QUIET, engine_rejections=1)).limits == less
    crowded = replace(QUIET, capacity_waiting=17.0)
    assert adapted(crowded, crowded).limits == less
    assert adapted(crowded, QUIET, crowded).limits == MOST, "twice running, not twice"
    assert adapted(*[replace(QUIET, capacity_waiting=16.0)] * 5).limits == MOST


def test_the_first_look_at_a_counter_says_nothing() -> None:
    assert adapted(replace(QUIET, preemptions_total=500.0)).limits == MOST


def test_a_strained_engine_is_shrunk_once_in_ten_seconds() -> None:
    strained = replace(QUIET, kv_usage=0.99)
    assert adapted(*[strained] * 10).limits.slots == 102
    assert adapted(*[strained] * 11).limits.slots == 81


def test_it_grows_only_when_the_limits_stop_somebody_and_all_signals_are_clean() -> None:
    shrunk = [replace(QUIET, kv_usage=0.99)]
    rest = [QUIET] * 10
    bound = replace(QUIET, gate_bound=True)
    assert adapted(*shrunk, *rest, *[QUIET] * 5).limits.slots == 102
    grown = adapted(*shrunk, *rest, *[bound] * 3).limits
    assert (grown.slots, grown.prefill_tokens) == (105, 48_000 + 3 * 2048)
    for unknown in ("preemptions_total", "capacity_waiting", "kv_usage"):
        silent = replace(bound, **{unknown: None})  # type: ignore[arg-type]
        assert adapted(*shrunk, *rest, *[silent] * 5).limits.slots == 102


def test_growth_goes_by_the_second_and_not_by_the_look() -> None:
    made = adapted(replace(QUIET, kv_usage=0.99))
    for tenth in range(10):
        made.observe(replace(QUIET, gate_bound=True), 20.0 + tenth / 10)
    assert made.limits.slots == 103


def test_a_failed_scrape_freezes_what_is_in_force() -> None:
    made = adapted(replace(QUIET, kv_usage=0.99), *[None] * 100)
    assert made.limits.slots == 102
    assert adapted(*[None] * 100).limits == MOST


def test_it_recovers_all_of_what_is_configured() -> None:
    made = adapted(*[replace(QUIET, kv_usage=0.99)] * 60, *[replace(QUIET, gate_bound=True)] * 200)
    assert made.limits == MOST


def test_load_that_is_not_ours_takes_its_part_once_it_is_seen_twice() -> None:
    foreign = replace(QUIET, running=50.0, waiting=10.0, own_slots=20)
    assert adapted(foreign).limits.slots == 128
    assert adapted(foreign, foreign).limits.slots == 88
    assert adapted(foreign, foreign, QUIET).limits == MOST
    flood = replace(QUIET, running=500.0)
    assert adapted(flood, flood).limits.slots == LEAST.slots


def test_the_other_replicas_load_leaves_a_replica_its_share() -> None:
    share, floor = replace(MOST, slots=64), replace(LEAST, slots=20)
    made = Adaptation(share, floor, whole_slots=128)
    theirs = replace(QUIET, running=64.0)
    assert [made.observe(theirs, float(s)).slots for s in range(3)] == [64, 64, 64]
    greedy = replace(QUIET, running=100.0)
    assert [made.observe(greedy, 3.0 + s).slots for s in range(2)] == [64, 28]


def counting(*totals: float) -> list[Signals]:
    return [replace(QUIET, preemptions_total=total) for total in totals]


def test_counters_that_go_back_and_forth_are_not_one_engine_and_end_adaptation() -> None:
    made = adapted(*counting(100, 40, 101, 41, 102))
    assert made.not_one_engine
    assert made.limits == MOST
    assert made.observe(replace(QUIET, kv_usage=1.0), 50.0) == MOST
    made.restarted()
    assert not made.not_one_engine


def test_a_restart_is_still_one_engine() -> None:
    assert not adapted(*counting(100, 0, 0, 1, 2, 0, 1)).not_one_engine
    assert not adapted(*counting(5, 0), *[QUIET] * 40, *counting(6, 0, 0)).not_one_engine


def test_a_start_time_that_comes_back_is_not_one_engine() -> None:
    def started(*times: float) -> Adaptation:
        return adapted(*[replace(QUIET, started_s=t) for t in times])

    assert not started(10.0, 10.0, 20.0, 20.0, 30.0).not_one_engine
    assert started(10.0, 20.0, 10.0).not_one_engine


maybe = st.none() | st.floats(0, 1e9)
SIGNALS = st.none() | st.builds(
    Signals,
    preemptions_total=maybe,
    capacity_waiting=maybe,
    kv_usage=st.none() | st.floats(0, 1),
    engine_rejections=st.integers(0, 3),
    running=maybe,
    waiting=maybe,
    own_slots=st.integers(0, 500),
    gate_bound=st.booleans(),
    started_s=st.sampled_from((None, None, 1.0, 2.0)),
)


@given(st.lists(st.tuples(SIGNALS, st.floats(0, 30)), max_size=60))
def test_limits_stay_between_the_floors_and_what_is_configured_and_no_stale_scrape_raises_them(
    looks: list[tuple[Signals | None, float]],
) -> None:
    made, now = Adaptation(MOST, LEAST), 0.0
    for signals, pause_s in looks:
        now += pause_s
        before = made.limits
        after = made.observe(signals, now)
        assert after is made.limits
        assert LEAST.slots <= after.slots <= MOST.slots
        assert LEAST.prefill_tokens <= after.prefill_tokens <= MOST.prefill_tokens
        assert replace(after, slots=128, prefill_tokens=60_000) == MOST
        if signals is None:
            assert after == before


@given(st.lists(st.tuples(SIGNALS, st.floats(0, 30)), max_size=40))
def test_whatever_happened_a_clean_engine_that_is_wanted_gets_everything_back(
    looks: list[tuple[Signals | None, float]],
) -> None:
    made, now = Adaptation(MOST, LEAST), 0.0
    for signals, pause_s in looks:
        now += pause_s
        made.observe(signals, now)
    for _ in range(200):
        now += 1.0
        made.observe(replace(QUIET, preemptions_total=2e9, gate_bound=True), now)
    assert made.limits == MOST
