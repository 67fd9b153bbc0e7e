from hypothesis import given
from hypothesis import strategies as st

from gateway.agenda import SWEEP_ABOVE, Agenda


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans())), st.integers(0, 60))
def test_what_is_due_comes_soonest_first_and_only_while_it_lives(entries, now):
    living = {number for number, (_, lives) in enumerate(entries) if lives}
    agenda = Agenda(living.__contains__)
    for number, (at, _) in enumerate(entries):
        agenda.add(float(at), number)
    expected = sorted((at, n) for n, (at, lives) in enumerate(entries) if lives)
    assert agenda.next_s() == (float(expected[0][0]) if expected else None)
    due = []
    while (number := agenda.pop_due(float(now))) is not None:
        due.append(number)
    assert due == [n for at, n in expected if at <= now]


def test_dead_entries_never_outnumber_the_living_by_much():
    living: set[int] = set()
    agenda = Agenda(living.__contains__)
    for number in range(10_000):
        living.add(number)
        agenda.add(float(number), number)
        living.discard(number - 10)
    assert len(agenda) <= 2 * 10 + SWEEP_ABOVE + 1


def test_only_what_lives_is_due_whatever_was_asked_before() -> None:
    lives = {2}
    asked, unasked = (Agenda(lives.__contains__) for _ in range(2))
    for agenda in (asked, unasked):
        agenda.add(1.0, 1)
        agenda.add(3.0, 2)
    assert asked.next_s() == 3.0
    for now, due in ((2.0, False), (3.0, True)):
        assert asked.is_due(now) is unasked.is_due(now) is due
