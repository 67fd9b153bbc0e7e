"""Takes a multipart form apart: fields as texts, files as bytes.

Pure: no I/O, no clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message

from loadgen.engine.refusals import ApiError

__all__ = ["Form", "read_form"]


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form, the last of each name, and its files."""

    fields: Mapping[str, str]
    files: Mapping[str, bytes]


def read_form(content_type: str, body: bytes) -> Form:
    """Take a body apart by the boundary that its content type names.

    Raises:
        ApiError: It is no multipart form, or not a whole one.
    """
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_param("boundary")
    if header.get_content_type() != "multipart/form-data" or not isinstance(boundary, str):
        return Form({}, {})
    # The first delimiter may stand at the very start, where no line ends before it.
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary.encode("latin-1"))
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise ApiError(400, "There was an error parsing the body", "Bad Request")
    fields: dict[str, str] = {}
    files: dict[str, bytes] = {}
    for piece in pieces[1:-1]:
        head, found, content = piece.partition(b"\r\n\r\n")
        name, filename = _names(head)
        if not found or name is None:
            raise ApiError(400, "There was an error parsing the body", "Bad Request")
        if filename is None:
            fields[name] = content.decode("utf-8", "replace")
        else:
            files[name] = content
    return Form(fields, files)


def _names(head: bytes) -> tuple[str | None, str | None]:
    """The name of a part, and that of its file if it is one."""
    for line in head.decode("utf-8", "replace").split("\r\n"):
        label, _, value = line.partition(":")
        if label.strip().lower() == "content-disposition":
            message = Message()
            message["content-disposition"] = value.strip()
            name = message.get_param("name", header="content-disposition")
            return (None if name is None else str(name)), message.get_filename()
    return None, None
