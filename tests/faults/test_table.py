"""Every row of the table of engine faults, and the good answer cut after every byte."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.faults.stand import Played, Stand, play, stand
from tests.faults.table import (
    GOOD_BODY,
    GOOD_STREAM,
    ROWS,
    STREAM_EVENTS,
    STREAM_HEAD,
    Row,
    chunk,
    cut_after,
    whole_answer,
)


@pytest.fixture(scope="module")
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture(scope="module")
async def pair(
    anyio_backend: Any, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stand]:
    async with stand(tmp_path_factory.mktemp("faults")) as running:
        yield running


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
async def test_a_fault_has_its_named_outcome_and_leaves_nothing_behind(
    pair: Stand, row: Row
) -> None:
    played = await play(pair, row)
    expected = (row.outcome, row.status, row.reads)
    assert (played.outcome, played.status, played.reads) == expected, played.reply


def test_every_row_has_a_name_of_its_own() -> None:
    labels = [row.label for row in ROWS]
    assert len(labels) == len(set(labels))


# Where the good stream's first event is whole, and where its end mark is.
FIRST_EVENT_AT = len(STREAM_HEAD + chunk(STREAM_EVENTS[0])) - 2
END_MARK_AT = len(STREAM_HEAD + b"".join(map(chunk, STREAM_EVENTS))) - 2


def expected_cut(count: int, stream: bool) -> tuple[str, int, str]:
    """By the contract: nothing is committed before the first event; whole is what shows its end."""
    whole = count >= (END_MARK_AT if stream else len(whole_answer(stream)))
    if whole:
        return ("completed", 200, "whole")
    if stream and count >= FIRST_EVENT_AT:
        return ("stream_interrupted", 200, "error event")
    return ("upstream_unreachable", 502, "refusal")


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_an_answer_that_breaks_after_any_byte_has_the_outcome_of_what_was_sent(
    pair: Stand, stream: bool
) -> None:
    wrong: list[tuple[int, Played]] = []
    for count in range(len(whole_answer(stream)) + 1):
        expected = expected_cut(count, stream)
        row = Row(f"cut after {count}", cut_after(count, stream), stream, *expected)
        played = await play(pair, row)
        if not played.expected(row):
            wrong.append((count, played))
        elif stream:
            _is_a_beginning(played)
    assert wrong == []


def _is_a_beginning(played: Played) -> None:
    """What was passed on before the error event is a beginning of the good stream, uncut."""
    passed = played.reply.body.partition(b'data: {"error"')[0]
    if played.reads != "refusal":
        assert GOOD_STREAM.startswith(passed)
        assert passed.endswith(b"\n\n")


def test_the_good_answers_are_what_the_table_takes_them_for() -> None:
    assert whole_answer(stream=True).count(b"data: ") == len(STREAM_EVENTS)
    assert whole_answer(stream=False).endswith(GOOD_BODY)
