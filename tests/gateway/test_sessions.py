"""Sessions end with age, idleness and room; refused logins are counted and forgotten in time."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.sessions import (
    IDLE_S,
    LIFETIME_S,
    MAX_ADDRESSES,
    MAX_REFUSED,
    MAX_REFUSED_IN_ALL,
    MAX_SESSIONS,
    WINDOW_S,
    Attempts,
    Session,
    Sessions,
)


def session(digest: str = "a", opened_s: float = 0.0) -> Session:
    return Session("anna", digest, "csrf", opened_s)


def test_a_session_is_found_by_its_secret_alone() -> None:
    sessions, made = Sessions(), session()
    sessions.open("secret", made)
    assert sessions.find("secret", 1.0) is made
    assert sessions.find("secret ", 1.0) is None
    sessions.close("other")
    assert sessions.find("secret", 1.0) is made
    sessions.close("secret")
    assert sessions.find("secret", 1.0) is None
    assert len(sessions) == 0


def test_a_session_that_nobody_uses_ends() -> None:
    sessions = Sessions()
    sessions.open("secret", session())
    assert sessions.find("secret", IDLE_S) is not None
    assert sessions.find("secret", 2 * IDLE_S) is not None
    assert sessions.find("secret", 3 * IDLE_S + 1) is None
    assert len(sessions) == 0


def test_a_session_in_use_ends_after_a_working_day() -> None:
    sessions, now = Sessions(), 0.0
    sessions.open("secret", session())
    while now <= LIFETIME_S:
        assert sessions.find("secret", now) is not None
        now += IDLE_S
    assert sessions.find("secret", now) is None


def test_the_oldest_session_of_a_token_makes_room_and_others_stay() -> None:
    sessions = Sessions()
    sessions.open("other", session("b"))
    for n in range(MAX_SESSIONS + 1):
        sessions.open(str(n), session("a", float(n)))
    assert len(sessions) == MAX_SESSIONS + 1
    assert sessions.find("0", 20.0) is None
    assert sessions.find("1", 20.0) is not None
    assert sessions.find("other", 20.0) is not None


def test_opening_forgets_what_is_over() -> None:
    sessions = Sessions()
    sessions.open("old", session("b"))
    sessions.open("new", session("a", IDLE_S + 1))
    assert len(sessions) == 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, IDLE_S)), max_size=100))
def test_sessions_are_bounded_by_token(opened: list[tuple[str, float]]) -> None:
    sessions, now = Sessions(), 0.0
    for n, (token, later_s) in enumerate(opened):
        now += later_s
        sessions.open(str(n), session(token, now))
        assert sessions.find(str(n), now) is not None
        assert len(sessions) <= 3 * MAX_SESSIONS


def test_an_address_waits_after_so_many_wrong_tokens() -> None:
    attempts = Attempts()
    for n in range(MAX_REFUSED):
        assert attempts.wait_s("x", float(n)) == 0.0
        attempts.refused("x", float(n))
    assert attempts.wait_s("x", 10.0) == WINDOW_S - 10.0
    assert attempts.wait_s("y", 10.0) == 0.0
    assert attempts.wait_s("x", WINDOW_S) == 0.0
    attempts.refused("x", WINDOW_S)
    assert attempts.wait_s("x", WINDOW_S) == 1.0


def test_who_tries_from_many_addresses_keeps_nobody_else_out() -> None:
    attempts = Attempts()
    for address in range(500):
        for n in range(MAX_REFUSED):
            attempts.refused(str(address), n / 10)
    assert attempts.wait_s("499", 1.0) > 0.0
    assert attempts.wait_s("an operator", 1.0) == 0.0


def test_many_addresses_together_wait_too_and_are_not_all_kept() -> None:
    attempts = Attempts()
    for n in range(MAX_REFUSED_IN_ALL):
        assert attempts.wait_s(str(n), 0.0) == 0.0
        attempts.refused(str(n), 0.0)
    assert attempts.wait_s("new", 1.0) == WINDOW_S - 1.0
    for n in range(2 * MAX_ADDRESSES):
        attempts.refused(str(n), WINDOW_S)
    assert len(attempts._by_address) == MAX_ADDRESSES
