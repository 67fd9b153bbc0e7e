"""Forms taken apart."""

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.engine.multipart import Form, read_form
from loadgen.engine.refusals import ApiError


def encoded(fields: dict[str, str], files: dict[str, bytes]) -> tuple[str, bytes]:
    parts = {name: ("n.wav", content) for name, content in files.items()}
    request = httpx.Request("POST", "http://x", data=fields, files=parts)
    return request.headers["content-type"], request.read()


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r\n")), st.binary())
def test_what_a_client_sends_is_read_back(text: str, audio: bytes) -> None:
    content_type, body = encoded({"prompt": text, "model": "m"}, {"file": audio})
    form = read_form(content_type, body)
    assert form == Form({"prompt": text, "model": "m"}, {"file": audio})


def test_a_form_that_is_cut_off_or_nameless_is_refused() -> None:
    content_type, body = encoded({}, {"file": b"abc"})
    for broken in (body[:-8], body.replace(b'name="file"', b"x"), b""):
        with pytest.raises(ApiError, match="parsing the body"):
            read_form(content_type, broken)


def test_another_type_of_body_has_no_fields() -> None:
    assert read_form("application/json", b"{}") == Form({}, {})
    assert read_form("multipart/form-data", b"{}") == Form({}, {})
