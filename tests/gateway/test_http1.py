"""The connection alone, driven through a transport that records: which bytes are a response."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.http1 import MAX_HEAD_BYTES, BadResponse, Connection, Header, WireError, request_head

READ_BYTES = 32 * 1024
HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


class Transport:
    """Records what a connection does with its transport."""

    def __init__(self) -> None:
        self.written = b""
        self.aborted = False
        self.paused = False
        self.unsent = 0

    def is_closing(self) -> bool:
        return self.aborted

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        self.written += b"".join(parts)

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_write_buffer_size(self) -> int:
        return self.unsent


class Answer:
    """Records what a connection tells its receiver."""

    def __init__(self, full_after: int = 1 << 30) -> None:
        self.status = 0
        self.headers: list[Header] = []
        self.body = b""
        self.finished = False
        self.error: WireError | None = None
        self.full_after = full_after

    def got_head(self, status: int, headers: list[Header]) -> None:
        assert self.status == 0
        self.status, self.headers = status, headers

    def got_body(self, data: bytes, framed: bytes | None = None) -> bool:
        assert not self.finished
        assert framed in (None, b"%x\r\n%b\r\n" % (len(data), data))
        self.body += data
        return len(self.body) >= self.full_after

    def finish(self) -> None:
        assert not self.finished
        assert self.error is None
        self.finished = True

    def fail(self, error: WireError) -> None:
        assert not self.finished
        self.error = error

    def facts(self) -> tuple[int, bytes, bool, type[WireError] | None]:
        return self.status, self.body, self.finished, type(self.error) if self.error else None


class Rig:
    """A connection with both its ends recorded."""

    def __init__(self, method: bytes = b"POST", full_after: int = 1 << 30) -> None:
        self.idle = 0
        self.lost = 0
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.connection = Connection(self.buffer, self._idle, self._lost)
        self.transport = Transport()
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]
        self.answer = Answer(full_after)
        self.connection.begin(self.answer, method, b"head", b"body")

    def _idle(self, _: Connection) -> None:
        self.idle += 1

    def _lost(self, _: Connection) -> None:
        self.lost += 1

    def read(self, *parts: bytes) -> "Rig":
        for part in parts:
            for start in range(0, len(part), READ_BYTES):
                if self.transport.aborted:
                    return self
                piece = part[start : start + READ_BYTES]
                self.buffer[: len(piece)] = piece
                self.connection.buffer_updated(len(piece))
        return self

    def end(self, error: Exception | None = None) -> "Rig":
        self.connection.connection_lost(error)
        return self


def after(data: bytes, method: bytes = b"POST") -> Rig:
    return Rig(method).read(data)


@pytest.mark.parametrize(
    ("data", "status", "body"),
    [
        (HEAD + b"content-length: 5\r\n\r\nhello", 200, b"hello"),
        (HEAD + b"content-length: 0\r\n\r\n", 200, b""),
        (CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", 200, b"hello"),
        (CHUNKED + b"5;name=value\r\nhello\r\n0\r\nx-trailer: 1\r\n\r\n", 200, b"hello"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (
            HEAD + b"connection: upgrade\r\nupgrade: x\r\ncontent-length: 1\r\n\r\nx",
            200,
            b"x",
        ),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n", 304, b""),
        (b"HTTP/1.1 200\r\ncontent-length: 1\r\n\r\nx", 200, b"x"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"content-length: 1\r\n\r\nx", 200, b"x"),
        (b"HTTP/1.1 103 Hints\r\na: b\r\n\r\n" * 9 + CHUNKED + b"0\r\n\r\n", 200, b""),
    ],
)
def test_a_framed_response_is_whole_and_its_connection_serves_again(
    data: bytes, status: int, body: bytes
) -> None:
    rig = after(data)
    assert rig.answer.facts() == (status, body, True, None)
    assert (rig.idle, rig.transport.aborted) == (1, False)


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"connection: close\r\ncontent-length: 1\r\n\r\nx",
        b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx",
        HEAD + b"content-length: 1\r\n\r\nxHTTP/1.1 200 OK\r\n",
        HEAD + b"content-length: 1\r\n\r\nxgarbage",
        CHUNKED + b"1\r\nx\r\n0\r\n\r\n" + CHUNKED + b"1\r\ny\r\n0\r\n\r\n",
    ],
)
def test_a_whole_response_stays_good_where_its_connection_may_not_serve_again(data: bytes) -> None:
    rig = after(data)
    assert rig.answer.facts() == (200, b"x", True, None)
    assert (rig.idle, rig.transport.aborted) == (0, True)


def test_without_length_and_chunks_the_end_of_the_connection_ends_the_body() -> None:
    rig = after(HEAD + b"\r\nabc").read(b"def")
    assert not rig.answer.finished
    assert rig.end().answer.facts()[1:3] == (b"abcdef", True)


def test_a_reset_does_not_end_a_body_in_good_order() -> None:
    rig = after(HEAD + b"\r\nabc").end(ConnectionResetError())
    assert (rig.answer.finished, str(rig.answer.error)[:27]) == (
        False,
        "the connection ended early ",
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200",
        HEAD + b"content-length: 5\r\n",
        HEAD + b"content-length: 5\r\n\r\nhell",
        CHUNKED + b"5\r\nhel",
        CHUNKED + b"5\r\nhello\r\n",
        CHUNKED + b"5\r\nhello\r\n0\r\n",
        CHUNKED + b"5\r\nhello\r\n0\r\nx: y\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
def test_an_early_end_is_an_error_wherever_it_falls(data: bytes) -> None:
    rig = after(data).end()
    assert rig.answer.facts()[2:] == (False, type(rig.answer.error))
    assert rig.answer.error is not None
    assert not isinstance(rig.answer.error, BadResponse)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"HTTP/2.0 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 99 Low\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 600 High\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        HEAD + b"content-length: 5\r\ncontent-length: 5\r\n\r\nhello",
        HEAD + b"content-length: 5, 5\r\n\r\nhello",
        HEAD + b"content-length: +5\r\n\r\nhello",
        HEAD + b"content-length: 99999999999999999999\r\n\r\nhello",
        HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"transfer-encoding: gzip\r\n\r\nhello",
        HEAD + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n",
        CHUNKED + b"fffffffffffffffff\r\n",
        CHUNKED + b"5\r\nhelloX\r\n0\r\n\r\n",
        CHUNKED + b"zz\r\n",
        HEAD.replace(b"\r\n", b"\n") + b"content-length: 0\n\n",
        HEAD + b"content-length : 0\r\n\r\n",
        HEAD + b"x: a\r\n folded\r\ncontent-length: 0\r\n\r\n",
        HEAD + b"a b: c\r\ncontent-length: 0\r\n\r\n",
    ],
)
def test_whatever_is_not_plainly_framed_http_1_is_refused(data: bytes) -> None:
    rig = after(data)
    assert rig.answer.facts()[2:] == (False, BadResponse)
    assert rig.transport.aborted


@pytest.mark.parametrize("byte", [*range(9), *range(10, 32), 127])
def test_control_characters_in_a_header_value_never_arrive(byte: int) -> None:
    rig = after(HEAD + b"content-type: a" + bytes([byte]) + b"b\r\ncontent-length: 0\r\n\r\n")
    assert not rig.answer.finished
    assert rig.answer.headers == []


def test_a_head_of_64_kib_passes_and_a_longer_one_does_not() -> None:
    def head(size: int) -> bytes:
        return HEAD + b"x: " + b"y" * (size - 5) + b"\r\ncontent-length: 0\r\n\r\n"

    assert after(head(MAX_HEAD_BYTES - 60)).answer.finished
    assert isinstance(after(head(MAX_HEAD_BYTES)).answer.error, BadResponse)


@pytest.mark.parametrize(
    "endless",
    [b"x: y\r\n", b"x", b"HTTP/1.1 100 Continue\r\n\r\n"],
    ids=["headers", "one header", "informational"],
)
def test_a_head_without_end_is_cut_off(endless: bytes) -> None:
    start = b"" if endless.startswith(b"HTTP") else HEAD
    rig = after(start + endless * (3 * MAX_HEAD_BYTES // len(endless)))
    assert isinstance(rig.answer.error, BadResponse)
    assert rig.transport.aborted


@pytest.mark.parametrize("endless", [b"1;" + b"e" * 200_000, b"0\r\nx: " + b"y" * 200_000])
def test_framing_without_end_is_cut_off(endless: bytes) -> None:
    assert isinstance(after(CHUNKED + endless).answer.error, BadResponse)


def test_hop_by_hop_headers_stay_behind_and_names_are_lower_case() -> None:
    rig = after(HEAD + b"Content-Type: a/b\r\nKeep-Alive: 5\r\nTE: x\r\nContent-Length: 0\r\n\r\n")
    assert rig.answer.headers == [(b"content-type", b"a/b")]


def test_the_answer_to_head_has_no_body_whatever_its_head_says() -> None:
    rig = after(HEAD + b"content-length: 5\r\n\r\n", b"HEAD")
    assert rig.answer.facts() == (200, b"", True, None)
    assert rig.transport.aborted


def test_bytes_while_idle_close_the_connection() -> None:
    rig = after(HEAD + b"content-length: 0\r\n\r\n").read(HEAD)
    assert rig.transport.aborted


def test_a_response_to_a_request_that_is_not_all_sent_ends_the_connection() -> None:
    rig = Rig()
    rig.transport.unsent = 9
    rig.read(HEAD + b"content-length: 0\r\n\r\n")
    assert (rig.answer.finished, rig.idle, rig.transport.aborted) == (True, 0, True)


def test_reading_pauses_when_the_receiver_is_full_and_resumes_when_told() -> None:
    rig = Rig(full_after=3).read(HEAD + b"content-length: 9\r\n\r\nabcd")
    assert (rig.transport.paused, rig.connection.pauses) == (True, 1)
    rig.connection.resume_reading()
    assert not rig.transport.paused


def test_a_request_on_a_closed_connection_fails_and_was_silent() -> None:
    rig = after(HEAD + b"content-length: 0\r\n\r\n")
    rig.transport.aborted = True
    answer = Answer()
    rig.connection.begin(answer, b"POST", b"head", b"")
    assert (answer.error is not None, rig.connection.silent) == (True, True)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(
        [
            HEAD + b"Content-Type: a\r\ncontent-length: 5\r\n\r\nhello",
            CHUNKED + b"2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nt: 1\r\nu:\r\n\r\n",
            b"HTTP/1.1 102 P\r\nx: y\r\n\r\n" + CHUNKED + b"5\r\nhello\r\n0\r\n\r\n",
            HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\nhello",
            CHUNKED + b"5\r\nhelloX",
        ]
    ),
    st.lists(st.integers(0, 200), max_size=6),
    st.one_of(st.none(), st.integers(0, 200)),
)
def test_the_cuts_between_reads_change_nothing(
    data: bytes, places: list[int], stop: int | None
) -> None:
    data = data[:stop]
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    parts = [data[a:b] for a, b in pairwise(edges) if a < b]
    whole, cut = after(data), Rig().read(*parts)
    single = Rig().read(*(data[i : i + 1] for i in range(len(data))))
    for rig in (whole, cut, single):
        if not rig.transport.aborted:
            rig.end()
    status, _, finished, error = whole.answer.facts()
    assert cut.answer.facts()[2:] == single.answer.facts()[2:] == (finished, error)
    if finished:
        assert cut.answer.facts() == single.answer.facts() == whole.answer.facts()
        assert status == 200


@given(st.binary(max_size=400))
def test_garbage_is_an_error_or_nothing_yet_but_never_an_answer_out_of_thin_air(
    data: bytes,
) -> None:
    rig = after(data)
    assert not rig.answer.finished


def test_a_request_head_holds_what_it_was_given_and_its_own_framing() -> None:
    headers = [(b"content-type", b"a/b"), (b"Connection", b"close"), (b"TE", b"trailers")]
    assert request_head(b"POST", b"/v1/x?y", b"h:1", headers, 3) == (
        b"POST /v1/x?y HTTP/1.1\r\nhost: h:1\r\ncontent-type: a/b\r\ncontent-length: 3\r\n\r\n"
    )
    assert request_head(b"GET", b"/", b"h:1", [], 0) == b"GET / HTTP/1.1\r\nhost: h:1\r\n\r\n"
    assert b"content-length: 0" in request_head(b"POST", b"/", b"h:1", [], 0)


@pytest.mark.parametrize(
    ("method", "target", "header"),
    [
        (b"get", b"/", (b"a", b"b")),
        (b"GET / HTTP/1.1\r\nx: y", b"/", (b"a", b"b")),
        (b"GET", b"", (b"a", b"b")),
        (b"GET", b"http://other/", (b"a", b"b")),
        (b"GET", b"/a b", (b"a", b"b")),
        (b"GET", b"/\r\n", (b"a", b"b")),
        (b"GET", b"/\xc3\xa9", (b"a", b"b")),
        (b"GET", b"/", (b"", b"b")),
        (b"GET", b"/", (b"a b", b"c")),
        (b"GET", b"/", (b"a:", b"c")),
        (b"GET", b"/", (b"a\n", b"c")),
        (b"GET", b"/", (b"a", b"b\r\nx: y")),
        (b"GET", b"/", (b"a", b"b\n")),
        (b"GET", b"/", (b"a", b"b\x00")),
    ],
)
def test_nothing_that_would_change_the_framing_is_sent(
    method: bytes, target: bytes, header: Header
) -> None:
    with pytest.raises(ValueError, match="not sendable"):
        request_head(method, target, b"h", [header], 0)


# A read that is one chunk goes past the parser: nothing else may.

BODY = st.sampled_from([b"x", b"\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n", b"data: a\n\n", b"y" * 300])
SIZE_LINES = st.sampled_from([b"%x\r\n", b"%X\r\n", b"0%x\r\n", b"%x;a=b\r\n"])


@given(
    chunks=st.lists(st.tuples(BODY, SIZE_LINES), min_size=1, max_size=8),
    places=st.lists(st.integers(0, 600), max_size=6),
    whole=st.booleans(),
)
def test_chunks_are_the_same_however_they_are_written_and_cut(
    chunks: list[tuple[bytes, bytes]], places: list[int], whole: bool
) -> None:
    written = [line % len(body) + body + b"\r\n" for body, line in chunks]
    rig = Rig().read(CHUNKED)
    if whole:
        rig.read(*written)
    else:
        data = b"".join(written)
        cuts = sorted({min(place, len(data)) for place in places} | {0, len(data)})
        rig.read(*(data[start:end] for start, end in pairwise(cuts)))
    assert (rig.answer.body, rig.answer.error) == (b"".join(body for body, _ in chunks), None)
    rig.read(b"0\r\n\r\n")
    assert (rig.answer.finished, rig.idle) == (True, 1)


@pytest.mark.parametrize(
    "read",
    [
        b"5\r\nhello!\r\n",
        b"5\r\nhell\r\n",
        b"5\nhello\r\n",
        b"5\r\nhelloxx",
        b"-5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"fffffffffffffffff\r\nx\r\n",
    ],
)
def test_a_read_between_chunks_that_is_no_chunk_is_refused(read: bytes) -> None:
    rig = Rig().read(CHUNKED, b"1\r\nx\r\n", read, b"0\r\n\r\n")
    assert isinstance(rig.answer.error, BadResponse)
    assert (rig.answer.finished, rig.transport.aborted, rig.idle) == (False, True, 0)


@pytest.mark.parametrize("begun", [b"1", b"1\r", b"1;", b"000", b"1\r\ny\r\n1", b"2\r\n\r\n"])
def test_a_size_line_that_is_not_whole_keeps_the_next_read_for_the_parser(begun: bytes) -> None:
    # Alone, the last read would be a chunk; behind the one before it is part of something else.
    reads = [CHUNKED, b"1\r\nx\r\n", begun, b"1\r\ny\r\n"]
    single = Rig().read(CHUNKED, *(bytes([byte]) for byte in b"".join(reads[1:])))
    assert Rig().read(*reads).answer.facts() == single.answer.facts()
