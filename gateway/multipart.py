"""Takes a multipart form apart and writes the one that the engine gets.

Only fields on the list go on, in the gateway's own framing: a new boundary, a fixed file name, no
part headers of the caller's. So nothing depends on how two parsers read odd framing, odd
parameters or a field that comes twice; what is odd is refused. Pure: no I/O, no clock.
"""

import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b

from gateway.domain import Outcome, Refused

__all__ = ["MAX_PARTS", "Form", "parse_form", "write_form"]

MAX_PARTS = 64
MAX_HEADER_BYTES = 4096
MAX_FIELD_BYTES = 64 << 10

# A field's text, a list of texts where it may repeat, or the file's bytes.
Form = dict[str, str | list[str] | bytes]

_FILE = "file"
_REPEATED = frozenset(("timestamp_granularities[]",))
_FIELDS = _REPEATED | frozenset(
    (
        *("model", "language", "prompt", "hotwords", "response_format", "stream"),
        *("stream_include_usage", "stream_continuous_usage_stats", "max_completion_tokens"),
        *("temperature", "top_p", "top_k", "min_p", "seed"),
        *("frequency_penalty", "presence_penalty", "repetition_penalty"),
    )
)
_BOOLEANS = frozenset(("stream", "stream_include_usage", "stream_continuous_usage_stats"))
# RFC 2046, 5.1.1: at most 70 of these characters, the last one not a space.
_BOUNDARY = re.compile(
    rb"multipart/form-data\s*;\s*boundary="
    rb"(?:\"([0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-])\"|([0-9A-Za-z'+_.-]{1,70}))\s*",
    re.IGNORECASE,
)
_DISPOSITION = re.compile(
    rb'content-disposition:[ \t]*form-data;[ \t]*name="([A-Za-z0-9_\[\]-]{1,64})"'
    rb"(;[ \t]*filename\*?=[^\r\n]{0,1024})?",
    re.IGNORECASE,
)


def parse_form(raw: bytes, content_type: bytes) -> Form:
    """The form in ``raw``, of the fields that may go on; others are dropped.

    Raises:
        Refused: ``bad_request`` where the framing is not plain or a field comes twice.
    """
    form: Form = {}
    seen: set[str] = set()
    for name, is_file, content in _parts(raw, _boundary(content_type)):
        if name in seen and name not in _REPEATED:
            raise _bad(f"the field {name} comes twice")
        seen.add(name)
        if name == _FILE:
            if not is_file:
                raise _bad("the field file must be a file")
            form[_FILE] = content
        elif name in _FIELDS:
            _put(form, name, _text(name, is_file, content))
    if _FILE not in form:
        raise _bad("the field file is missing")
    return form


def write_form(form: Form, changes: Mapping[str, str]) -> tuple[bytes, bytes]:
    """The content type and body of ``form`` with the fields in ``changes`` instead of its own."""
    file = form[_FILE]
    content = file if isinstance(file, bytes) else b""
    fields = [
        (name.encode(), one.encode())
        for name, value in {**form, **changes}.items()
        for one in (value if isinstance(value, list) else [value])
        if isinstance(one, str)
    ]
    # Nobody can put a digest of all that is sent into what is sent, so the boundary does not
    # occur in it, be it the file or a text.
    digest = blake2b(content, digest_size=24)
    for _, text in fields:
        digest.update(text)
    boundary = b"sluicegate-" + digest.hexdigest().encode()
    start = b"--" + boundary + b'\r\ncontent-disposition: form-data; name="%b"'
    whole = b"".join((start % name) + b"\r\n\r\n" + text + b"\r\n" for name, text in fields)
    head = (start % b"file") + b'; filename="audio"\r\ncontent-type: application/octet-stream'
    body = b"".join((whole, head, b"\r\n\r\n", content, b"\r\n--", boundary, b"--\r\n"))
    return b"multipart/form-data; boundary=" + boundary, body


def _bad(reason: str) -> Refused:
    return Refused(Outcome.BAD_REQUEST, f"The body is not a usable form: {reason}.")


def _boundary(content_type: bytes) -> bytes:
    found = _BOUNDARY.fullmatch(content_type.strip())
    if found is None:
        raise _bad("the content type must name one boundary and nothing else")
    boundary: bytes = found[1] or found[2]
    return boundary


def _parts(raw: bytes, boundary: bytes) -> Iterator[tuple[str, bool, bytes]]:
    """Each part's field name, whether it is a file, and its content."""
    mark = b"\r\n--" + boundary
    if not raw.startswith(mark[2:] + b"\r\n"):
        raise _bad("it must begin with its boundary")
    at = len(mark) - 2
    for _ in range(MAX_PARTS):
        end = raw.find(mark, at + 2)
        if end < 0:
            raise _bad("its last boundary is missing")
        head, blank, content = raw[at + 2 : end].partition(b"\r\n\r\n")
        if not blank or len(head) > MAX_HEADER_BYTES:
            raise _bad("a part has no end of its headers, or too many of them")
        yield *_named(head), content
        at = end + len(mark)
        if raw[at:] in {b"--", b"--\r\n"}:
            return
        if raw[at : at + 2] != b"\r\n":
            raise _bad("something stands behind a boundary")
    raise _bad(f"it has more than {MAX_PARTS} parts")


def _named(head: bytes) -> tuple[str, bool]:
    """The field that a part's headers name, and whether they call it a file."""
    lines = head.split(b"\r\n")
    names = [line.partition(b":")[0].strip().lower() for line in lines]
    found = [m for line in lines if (m := _DISPOSITION.fullmatch(line))]
    if len(found) != 1 or names.count(b"content-disposition") != 1:
        raise _bad("a part must have one plain content-disposition with a name")
    if set(names) - {b"content-disposition", b"content-type", b"content-length"}:
        raise _bad("a part has a header that is not taken")
    return found[0][1].decode(), found[0][2] is not None


def _text(name: str, is_file: bool, content: bytes) -> str:
    if is_file or len(content) > MAX_FIELD_BYTES:
        raise _bad(f"the field {name} must be a text of at most {MAX_FIELD_BYTES} bytes")
    try:
        value = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad(f"the field {name} is not UTF-8") from error
    if "\0" in value or "\r" in value:
        raise _bad(f"the field {name} holds control characters")
    if name in _BOOLEANS and value not in {"true", "false"}:
        raise _bad(f"the field {name} must be true or false")
    return value


def _put(form: Form, name: str, value: str) -> None:
    known = form.get(name)
    if name not in _REPEATED:
        form[name] = value
    elif isinstance(known, list):
        known.append(value)
    else:
        form[name] = [value]
