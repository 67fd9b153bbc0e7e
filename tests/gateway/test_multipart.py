"""A form goes on rebuilt, from its listed fields only; odd framing is refused."""

from email.message import Message
from email.parser import BytesParser
from typing import Any, cast

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import Outcome, Refused
from gateway.multipart import MAX_PARTS, Form, parse_form, write_form

KIND = b"multipart/form-data; boundary=b"


def part(name: str, content: bytes, more: str = "", headers: str = "") -> bytes:
    head = f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n{headers}\r\n'
    return head.encode() + content + b"\r\n"


FILE = part("file", b"RIFF\r\n--not", '; filename="x.wav"', "Content-Type: audio/wav\r\n")


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--b--\r\n"


def read(content_type: bytes, body: bytes) -> list[tuple[str | None, str | None, bytes]]:
    """The form as another parser reads it: name, file name and content of each part."""
    whole = BytesParser().parsebytes(b"Content-Type: " + content_type + b"\r\n\r\n" + body)
    found = []
    for one in cast("list[Message]", whole.get_payload()):
        name = cast("str | None", one.get_param("name", header="content-disposition"))
        found.append((name, one.get_filename(), cast("bytes", one.get_payload(decode=True))))
    return found


def test_a_form_is_read_and_written_anew() -> None:
    given = parse_form(form(part("model", b"m"), FILE, part("language", b"de")), KIND)
    assert given == {"model": "m", "file": b"RIFF\r\n--not", "language": "de"}
    assert read(*write_form(given, {"model": "engine"})) == [
        ("model", None, b"engine"),
        ("language", None, b"de"),
        ("file", "audio", b"RIFF\r\n--not"),
    ]


def test_what_is_not_on_the_list_does_not_go_on() -> None:
    smuggled = [
        part(name, b"-1000")
        for name in ("priority", "request_id", "vllm_xargs", "use_beam_search", "n", "session_id")
    ]
    assert set(parse_form(form(*smuggled, FILE), KIND)) == {"file"}


def test_the_callers_file_name_and_types_do_not_go_on() -> None:
    odd = part("file", b"x", '; filename="../../etc; name=model"', "Content-Type: text/x-evil\r\n")
    content_type, body = write_form(parse_form(form(odd), KIND), {})
    assert b"etc" not in body
    assert b"evil" not in body
    assert read(content_type, body) == [("file", "audio", b"x")]


def test_a_list_may_repeat_and_nothing_else() -> None:
    words = part("timestamp_granularities[]", b"word")
    segments = part("timestamp_granularities[]", b"segment")
    given = parse_form(form(words, segments, FILE), KIND)
    assert given["timestamp_granularities[]"] == ["word", "segment"]
    for twice in (part("model", b"a") + part("model", b"b"), FILE + FILE, part("x", b"") * 2):
        with pytest.raises(Refused, match="twice"):
            parse_form(form(twice, FILE), KIND)


BROKEN: list[tuple[bytes, bytes]] = [
    (b"", KIND),
    (b"--b--\r\n", KIND),
    (b"--b\r\n--b--\r\n", KIND),
    (b"preamble\r\n" + form(FILE), KIND),
    (b"\r\n" + form(FILE), KIND),
    (FILE, KIND),
    (form(FILE) + b"more", KIND),
    (form(FILE).replace(b"--b--", b"--b-x"), KIND),
    (form(FILE).replace(b"\r\n", b"\n"), KIND),
    (form(FILE), b"multipart/form-data"),
    (form(FILE), b"multipart/form-data; boundary=b; boundary=c"),
    (form(FILE), b"multipart/form-data; boundary=b; charset=utf-16"),
    (form(FILE), b"multipart/form-data; boundary=" + b"b" * 71),
    (form(FILE), b"multipart/form-data; boundary="),
    (form(FILE), b"multipart/mixed; boundary=b"),
    (form(part("model", b"m")), KIND),
    (form(part("file", b"no file")), KIND),
    (form(FILE, part("model", b"m", '; filename="m"')), KIND),
    (form(FILE, part("model", b"m", '; name="prompt"')), KIND),
    (form(FILE, part("model", b"\xff")), KIND),
    (form(FILE, part("model", b"a\x00b")), KIND),
    (form(FILE, part("model", b"a\rb")), KIND),
    (form(FILE, part("prompt", b"x" * 70_000)), KIND),
    (form(FILE, part("stream", b"1")), KIND),
    (form(FILE, part("model", b"m", "", "Content-Transfer-Encoding: base64\r\n")), KIND),
    (form(FILE, part("model", b"m", "", "X-Vllm-Priority: -5\r\n")), KIND),
    (form(FILE, part("model", b"m", "", 'Content-Disposition: form-data; name="x"\r\n')), KIND),
    (form(FILE, part("mod\u00e9l", b"m")), KIND),
    (form(FILE, part("model", b"m", "", "X: " + "y" * 5000 + "\r\n")), KIND),
    (form(FILE, *(part(f"f{n}", b"") for n in range(MAX_PARTS))), KIND),
]


@pytest.mark.parametrize(("raw", "content_type"), BROKEN)
def test_odd_framing_is_refused(raw: bytes, content_type: bytes) -> None:
    with pytest.raises(Refused) as refused:
        parse_form(raw, content_type)
    assert refused.value.outcome is Outcome.BAD_REQUEST


@given(st.binary(max_size=200), st.text(max_size=20).filter(lambda t: not set(t) & {"\0", "\r"}))
def test_what_a_common_client_sends_arrives(file: bytes, prompt: str) -> None:
    request = httpx.Request(
        "POST",
        "http://x",
        files={"file": ("speech.mp3", file, "audio/mpeg")},
        data={"prompt": prompt, "stream": "true"},
    )
    raw = request.read()
    given = parse_form(raw, request.headers["content-type"].encode())
    assert given == {"prompt": prompt, "stream": "true", "file": file}


@given(st.binary(max_size=400), st.dictionaries(st.sampled_from(["prompt", "language"]), st.text()))
def test_a_written_form_reads_as_the_same_form(file: bytes, fields: dict[str, str]) -> None:
    texts: dict[str, Any] = {k: v.replace("\0", "").replace("\r", "") for k, v in fields.items()}
    given: Form = {**texts, "file": file}
    try:
        content_type, body = write_form(given, {})
    except UnicodeEncodeError:  # lone surrogates can't come out of a parsed form
        return
    assert parse_form(body, content_type) == given


@given(st.binary(max_size=300))
def test_any_bytes_are_a_form_or_a_bad_request(raw: bytes) -> None:
    for body in (raw, b"--b\r\n" + raw + b"\r\n--b--"):
        found = form_or_outcome(body)
        assert found is Outcome.BAD_REQUEST or isinstance(found, dict)


def form_or_outcome(raw: bytes) -> Form | Outcome:
    try:
        return parse_form(raw, KIND)
    except Refused as refused:
        return refused.outcome


def test_a_text_that_guesses_the_boundary_from_the_file_does_not_meet_it() -> None:
    given = parse_form(form(FILE), KIND)
    guessed = write_form(given, {})[0].rpartition(b"=")[2].decode()
    smuggled = f'\n--{guessed}\ncontent-disposition: form-data; name="priority"\n\n-100'
    content_type, body = write_form({**given, "prompt": smuggled}, {})
    boundary = content_type.rpartition(b"=")[2]
    assert boundary.decode() != guessed
    assert body.count(boundary) == 3
