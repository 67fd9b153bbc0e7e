"""Who has used how much."""

import pytest

from gateway.domain import Outcome
from gateway.usage import OTHER, Usage, UsageBook


def test_requests_and_tokens_are_summed_by_caller() -> None:
    book = UsageBook()
    book.add("web", Outcome.COMPLETED, 100, 7)
    book.add("web", Outcome.COMPLETED, 50, 3)
    book.add("batch", Outcome.QUEUE_FULL)
    assert book.rows() == [Usage("batch", 1, 1), Usage("web", 2, 0, 150, 10)]


def test_completion_tokens_that_nobody_reported_are_no_zero() -> None:
    book = UsageBook()
    book.add("web", Outcome.COMPLETED, 100)
    assert book.rows()[0].completion_tokens is None
    book.add("web", Outcome.COMPLETED, 100, 0)
    assert book.rows()[0].completion_tokens == 0


def test_a_request_without_a_caller_is_nobodys() -> None:
    book = UsageBook()
    book.add(None, Outcome.UNAUTHENTICATED)
    assert book.rows() == []


@pytest.mark.parametrize(
    ("outcome", "refusals"),
    [
        (Outcome.COMPLETED, 0), (Outcome.STREAM_INTERRUPTED, 0), (Outcome.CLIENT_CANCELLED, 0),
        (Outcome.ENGINE_ERROR, 0), (Outcome.UPSTREAM_TIMEOUT, 0), (Outcome.PAUSED, 1),
        (Outcome.PREDICTED_WAIT, 1), (Outcome.BAD_REQUEST, 1), (Outcome.ENGINE_REJECTED, 1),
        (Outcome.DRAINING, 1), (Outcome.QUEUE_EXPIRED, 1), (Outcome.FORBIDDEN, 1),
    ],
)  # fmt: skip
def test_a_refusal_is_an_end_that_says_no(outcome: Outcome, refusals: int) -> None:
    book = UsageBook()
    book.add("web", outcome)
    assert book.rows() == [Usage("web", 1, refusals)]


def test_however_many_callers_there_are_the_book_stays_bounded_and_loses_nothing() -> None:
    book = UsageBook(max_callers=3)
    for number in range(10):
        book.add(f"caller-{number}", Outcome.COMPLETED, 1, 1)
    book.add("caller-0", Outcome.COMPLETED, 1, 1)
    rows = {row.key_id: row for row in book.rows()}
    assert set(rows) == {"caller-0", "caller-1", "caller-2", OTHER}
    assert rows["caller-0"].requests == 2
    assert rows[OTHER] == Usage(OTHER, 7, 0, 7, 7)
