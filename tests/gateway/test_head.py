"""The head of a request: allowed paths and methods, declared length, content type, wait bound."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import Outcome, Refused, Surface
from gateway.head import (
    TARGETS,
    check_content_type,
    check_declared_length,
    check_query,
    max_wait_s,
    model_named,
    surface_of,
)
from gateway.sent import Sent, by_name
from gateway.surfaces import SURFACES
from gateway.traceparent import trace_id


def scope(path: str, method: str = "POST", raw: bytes | None = None) -> dict[str, Any]:
    return {"path": path, "raw_path": path.encode() if raw is None else raw, "method": method}


@pytest.mark.parametrize(
    ("path", "target"),
    [(path, row.paths[0]) for row in SURFACES.values() for path in row.paths],
)
def test_an_allowed_path_is_its_surface_and_goes_to_the_engine_by_its_first_spelling(
    path: str, target: str
) -> None:
    row = next(surface for surface, row in SURFACES.items() if path in row.paths)
    assert surface_of(scope(path, SURFACES[row].method)) is row
    assert TARGETS[row] == target.encode()


def test_a_models_name_may_be_encoded_and_hold_slashes() -> None:
    path = "/v1/models/org/name"
    asked = scope(path, "GET", raw=b"/v1/models/org%2Fname")
    assert surface_of(asked) is Surface.MODELS
    assert model_named(path) == "org/name"
    assert model_named("/v1/models") is None


@pytest.mark.parametrize("name", ["", "..", "../chat/completions", "a/../b", "a//b", "./a", "a b"])
def test_steps_along_the_path_are_no_models_name(name: str) -> None:
    with pytest.raises(Refused) as refused:
        surface_of(scope(f"/v1/models/{name}", "GET"))
    assert refused.value.outcome is Outcome.NOT_FOUND


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize("path", ["/v1/responses/resp_1", "/v1/responses/resp_1/cancel"])
def test_a_call_for_a_stored_response_says_that_none_are_stored(method: str, path: str) -> None:
    with pytest.raises(Refused, match="not stored") as refused:
        surface_of(scope(path, method))
    assert refused.value.outcome is Outcome.BAD_REQUEST


@pytest.mark.parametrize("query", [b"a=1", b"beta=true&a=1", b"beta=false", b"priority=-5", b"%00"])
@pytest.mark.parametrize("surface", list(SURFACES))
def test_a_query_that_could_say_something_is_refused(query: bytes, surface: Surface) -> None:
    with pytest.raises(Refused) as refused:
        check_query({"query_string": query}, surface)
    assert refused.value.outcome is Outcome.BAD_REQUEST


def test_no_query_is_fine_and_anthropics_mark_is_let_be() -> None:
    check_query({"query_string": b""}, Surface.CHAT)
    check_query({"query_string": b"beta=true"}, Surface.MESSAGES)
    with pytest.raises(Refused):
        check_query({"query_string": b"beta=true"}, Surface.CHAT)


@given(st.text(max_size=40))
def test_any_other_path_is_not_found(path: str) -> None:
    known = {path for row in SURFACES.values() for path in row.paths}
    if path not in known and not path.startswith(("/v1/models/", "/v1/responses/")):
        with pytest.raises(Refused) as refused:
            surface_of(scope(path, raw=path.encode("utf-8", "surrogatepass")))
        assert refused.value.outcome is Outcome.NOT_FOUND


def test_an_encoded_spelling_of_an_allowed_path_is_another_path() -> None:
    with pytest.raises(Refused) as refused:
        surface_of(scope("/v1/completions", raw=b"/v1/complet%69ons"))
    assert refused.value.outcome is Outcome.NOT_FOUND


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "OPTIONS", "post"])
def test_another_method_is_a_405_that_names_the_right_one(method: str) -> None:
    with pytest.raises(Refused, match="POST") as refused:
        surface_of(scope("/v1/completions", method))
    assert (refused.value.outcome, refused.value.status) == (Outcome.BAD_REQUEST, 405)


def test_a_body_declared_larger_than_allowed_is_refused_before_it_comes() -> None:
    check_declared_length(by_name([(b"content-length", b"17")]), 17)
    check_declared_length(by_name([]), 17)
    check_declared_length(by_name([(b"transfer-encoding", b"chunked")]), 17)
    with pytest.raises(Refused) as refused:
        check_declared_length(by_name([(b"content-length", b"18")]), 17)
    assert refused.value.outcome is Outcome.BODY_TOO_LARGE


@pytest.mark.parametrize(
    "kind", [b"application/json", b"Application/JSON", b"application/json; charset=utf-8"]
)
def test_json_is_taken(kind: bytes) -> None:
    check_content_type(by_name([(b"content-type", kind)]))


@pytest.mark.parametrize(
    "kinds", [[], [b"text/plain"], [b"application/jsonx"], [b"application/json"] * 2, [b""]]
)
def test_what_is_not_once_declared_as_json_is_a_415(kinds: list[bytes]) -> None:
    with pytest.raises(Refused) as refused:
        check_content_type(by_name([(b"content-type", kind) for kind in kinds]))
    assert refused.value.status == 415


@given(st.floats(min_value=0, max_value=999_999).map(lambda s: f"{s:.3f}"))
def test_a_plain_number_of_seconds_bounds_the_wait(seconds: str) -> None:
    assert max_wait_s(by_name([(b"x-sluicegate-max-wait", seconds.encode())])) == float(seconds)


def test_no_header_is_no_bound() -> None:
    assert max_wait_s(by_name([(b"x-other", b"1")])) is None


@pytest.mark.parametrize("values", [[b"-1"], [b"1e9"], [b"inf"], [b""], [b"0x1"], [b"1", b"2"]])
def test_any_other_wait_is_refused(values: list[bytes]) -> None:
    with pytest.raises(Refused) as refused:
        max_wait_s(by_name([(b"x-sluicegate-max-wait", value) for value in values]))
    assert refused.value.outcome is Outcome.BAD_REQUEST


def trace_of(sent: Sent) -> str | None:
    return trace_id(sent.get(b"traceparent"))


def test_a_trace_id_comes_from_one_well_formed_traceparent() -> None:
    parent = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert trace_of(by_name([(b"traceparent", parent)])) == "0af7651916cd43dd8448eb211c80319c"
    assert trace_of(by_name([(b"traceparent", parent)] * 2)) is None
    assert trace_of(by_name([(b"traceparent", parent.upper())])) is None
    assert trace_of(by_name([])) is None
