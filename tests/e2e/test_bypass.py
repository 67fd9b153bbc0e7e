"""Nothing a caller says about its own rank, identity or transfer reaches an engine.

Every way of saying it that an engine's release honours on some route is tried on every surface,
in front of an engine that writes down exactly what came. A request that can mean two things does
not come at all.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from email.message import Message
from email.parser import BytesParser
from typing import Any, cast

import httpx
import pytest

from tests.e2e.configs import Served, write_config
from tests.e2e.harness import Front, caller, front, refused
from tests.e2e.recorder import Recorder, Seen, recorder

HI = [{"role": "user", "content": "Hello there."}]
# A plain body of each surface that goes to an engine, and where it goes there.
BODIES: Mapping[str, tuple[dict[str, Any], str]] = {
    "/v1/chat/completions": ({"messages": HI}, "/v1/chat/completions"),
    "/v1/completions": ({"prompt": "Hello"}, "/v1/completions"),
    "/v1/responses": ({"input": "Hello"}, "/v1/responses"),
    "/v1/messages": ({"messages": HI, "max_tokens": 4}, "/v1/messages"),
    "/v1/embeddings": ({"input": "Hello"}, "/v1/embeddings"),
    "/tokenize": ({"prompt": "Hello"}, "/tokenize"),
    "/detokenize": ({"tokens": [1, 2]}, "/detokenize"),
    "/score": ({"text_1": "a", "text_2": "b"}, "/v1/score"),
    "/v1/score": ({"text_1": "a", "text_2": "b"}, "/v1/score"),
    "/rerank": ({"query": "a", "documents": ["b"]}, "/v1/rerank"),
    "/v1/rerank": ({"query": "a", "documents": ["b"]}, "/v1/rerank"),
    "/v2/rerank": ({"query": "a", "documents": ["b"]}, "/v1/rerank"),
    "/classify": ({"input": "Hello"}, "/classify"),
    "/pooling": ({"input": "Hello"}, "/pooling"),
}
FORM = "/v1/audio/transcriptions"
ALL_PATHS = [*BODIES, FORM]
SURFACES = [
    *("chat", "completions", "responses", "messages", "count_tokens", "embeddings", "tokenize"),
    *("detokenize", "score", "rerank", "classify", "pooling", "transcriptions", "models"),
]
STRIPPED: dict[str, Any] = {
    "priority": -1000,
    "service_tier": "priority",
    "request_id": "mine",
    "session_id": "sticky",
    "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "10.0.0.9"},
    "ec_transfer_params": {"remote_host": "10.0.0.9"},
    "data_parallel_rank": 0,
    "stream_interval": 100,
}
HEADERS = [
    ("X-Vllm-Priority", "-1000"),
    ("x-vllm-priority", "-2000"),
    ("X-VLLM-PRIORITY", "-3000, -4000"),
    ("X-Data-Parallel-Rank", "0"),
    ("X-data-parallel-rank", "1"),
    ("X-Session-ID", "a"),
    ("x-session-id", "b"),
    ("X-Priority", "1"),
    ("Priority", "u=0"),
    ("X-Correlation-ID", "a"),
    ("X-Stainless-Retry-Count", "9"),
    ("vllm-metrics-format", "json"),
    ("OpenAI-Organization", "o"),
    ("anthropic-beta", "b"),
    ("Cookie", "session=1"),
    ("Forwarded", "for=1"),
    ("X-Forwarded-For", "10.0.0.1"),
    ("X-Real-IP", "10.0.0.1"),
    ("Connection", "x-vllm-priority"),
    ("Content-Encoding-Hint", "gzip"),
]
ALLOWED_HEADERS = {
    *("accept", "content-length", "content-type", "host", "traceparent", "tracestate"),
    *("x-request-id", "x-vllm-priority"),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Recorder]:
    with recorder() as found:
        yield found


@pytest.fixture(scope="module")
def gateway(engine: Recorder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A gateway that serves every surface from the engine that writes down what comes."""
    path, keys = write_config(
        tmp_path_factory.mktemp("bypass"),
        {
            "simulated": Served(
                [engine.url], more={"surfaces": SURFACES, "transcription_tokens": 50}
            )
        },
        {"everything": {"service_class": "interactive"}, "batch": {"service_class": "batch"}},
        service={"batch": {"engine_priority": 10}},
    )
    with front(path, keys, [engine.url]) as found:
        yield found


async def post(
    gateway: Front,
    path: str,
    content: bytes,
    headers: list[tuple[str, str]] | None = None,
    key: str = "everything",
) -> httpx.Response:
    sent = [("authorization", f"Bearer {gateway.keys[key]}"), *(headers or [])]
    if not any(name.lower() == "content-type" for name, _ in sent):
        sent.append(("content-type", "application/json"))
    async with caller() as client:
        return await client.post(gateway.url + path, content=content, headers=sent)


async def came(
    gateway: Front, engine: Recorder, path: str, content: bytes, **more: Any
) -> tuple[httpx.Response, Seen]:
    """The answer, and the one request that the engine saw of it."""
    before = len(engine.seen)
    answer = await post(gateway, path, content, **more)
    assert answer.status_code == 200, answer.text
    (seen,) = engine.seen[before:]
    return answer, seen


async def did_not_come(gateway: Front, engine: Recorder, path: str, content: bytes) -> None:
    before = len(engine.seen)
    answer = await post(gateway, path, content)
    assert answer.status_code == 400, answer.text
    assert answer.headers["x-sluicegate-outcome"] == "bad_request"
    assert len(engine.seen) == before


def whole(path: str, **more: Any) -> dict[str, Any]:
    return {"model": "simulated", **BODIES[path][0], **more}


def assert_only_ours(seen: Seen, path: str, priority: int = -10) -> None:
    """The engine's view is the gateway's: target, headers and keys of the body."""
    assert seen.target == BODIES[path][1]
    assert len(set(seen.names)) == len(seen.names)
    assert set(seen.names) <= ALLOWED_HEADERS
    assert seen.header("x-vllm-priority") == str(priority)
    assert "mine" not in seen.header("x-request-id")
    forced = {"store": False} if path == "/v1/responses" else {}
    assert seen.json() == {**whole(path), "priority": priority, **forced}


def dumped(body: Any) -> bytes:
    return json.dumps(body).encode()


@pytest.mark.parametrize("path", BODIES)
async def test_a_plain_body_comes_with_the_gateways_priority(
    gateway: Front, engine: Recorder, path: str
) -> None:
    _, seen = await came(gateway, engine, path, dumped(whole(path)))
    assert_only_ours(seen, path)
    _, seen = await came(gateway, engine, path, dumped(whole(path)), key="batch")
    assert_only_ours(seen, path, priority=10)


@pytest.mark.parametrize("path", BODIES)
async def test_fields_that_are_the_gateways_to_say_are_removed(
    gateway: Front, engine: Recorder, path: str
) -> None:
    for name, value in STRIPPED.items():
        _, seen = await came(gateway, engine, path, dumped(whole(path, **{name: value})))
        assert_only_ours(seen, path)
    _, seen = await came(gateway, engine, path, dumped(whole(path, **STRIPPED)))
    assert_only_ours(seen, path)


@pytest.mark.parametrize("path", BODIES)
async def test_headers_that_are_the_gateways_to_say_are_removed(
    gateway: Front, engine: Recorder, path: str
) -> None:
    for header in HEADERS:
        _, seen = await came(gateway, engine, path, dumped(whole(path)), headers=[header])
        assert_only_ours(seen, path)
    _, seen = await came(gateway, engine, path, dumped(whole(path)), headers=HEADERS)
    assert_only_ours(seen, path)


@pytest.mark.parametrize("path", BODIES)
async def test_what_is_nested_for_extensions_is_removed_and_the_rest_kept(
    gateway: Front, engine: Recorder, path: str
) -> None:
    nested = {**STRIPPED, "harmless": 1}
    _, seen = await came(gateway, engine, path, dumped(whole(path, vllm_xargs=nested)))
    body = seen.json()
    assert body.pop("vllm_xargs") == {"harmless": 1}
    assert body["priority"] == -10


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "twice",
    [
        b'"priority":-1000,"priority":5,',
        b'"priority":-1000,"\\u0070riority":-999,',
        b'"priority":-1000,"pri\\u006frity":-999,"priority":-998,',
        b'"request_id":"mine","request_id":"b",',
        b'"vllm_xargs":{"session_id":"a"},"vllm_xargs":null,',
    ],
)
async def test_a_key_written_twice_or_in_escapes_comes_once_or_not_at_all(
    gateway: Front, engine: Recorder, path: str, twice: bytes
) -> None:
    content = b"{" + twice + dumped(whole(path))[1:-1] + b"," + twice[:-1] + b"}"
    _, seen = await came(gateway, engine, path, content)
    body = seen.json()
    body.pop("vllm_xargs", None)
    assert body["priority"] == -10
    assert not set(STRIPPED) - {"priority"} & set(body)


@pytest.mark.parametrize("path", BODIES)
async def test_the_model_that_is_judged_is_the_one_that_comes(
    gateway: Front, engine: Recorder, path: str
) -> None:
    _, seen = await came(gateway, engine, path, b'{"model":"no-such",' + dumped(whole(path))[1:])
    assert seen.json()["model"] == "simulated"
    before = len(engine.seen)
    answer = await post(gateway, path, dumped(whole(path))[:-1] + b',"model":"no-such"}')
    assert answer.status_code == 404
    assert len(engine.seen) == before


@pytest.mark.parametrize("path", [*BODIES, "/v1/messages/count_tokens"])
async def test_a_body_that_two_parsers_read_differently_does_not_come(
    gateway: Front, engine: Recorder, path: str
) -> None:
    plain = dumped({"model": "simulated", **BODIES.get(path, BODIES["/v1/messages"])[0]})
    odd = [
        b"\xef\xbb\xbf" + plain,
        plain + plain,
        plain + b"\x00",
        plain[:-1] + b',"a":NaN}',
        plain[:-1] + b',"a":-Infinity}',
        plain[:-1] + b',"a":1e999}',
        plain[:-1] + b',"seed":18446744073709551616}',
        plain[:-1] + b',"a":"\\ud800"}',
        plain[:-1] + b',"a":"\xff"}',
        plain[:-1] + b',"a":' + b"[" * 200 + b"]" * 200 + b"}",
        plain[:-1] + b",}",
        plain[:-1] + b",/**/}",
        plain.replace(b'"', b"'"),
        plain.decode().encode("utf-16"),
        b"[" + plain + b"]",
    ]
    for content in odd:
        await did_not_come(gateway, engine, path, content)


@pytest.mark.parametrize("path", ALL_PATHS)
@pytest.mark.parametrize(
    "spelling",
    [
        *("{}/", "{}//", "/{}", "{}?priority=-1000", "{};priority=1", "{}/..", "/x/..{}"),
        *("/v1/../invocations", "{}%00", "{}%2f", "/%2e{}", "{}/../../invocations", "/./{}"),
        *("{}/render", "{}/batch", "{}/derender", "/inference{}", "/invocations"),
    ],
)
async def test_another_spelling_of_a_path_is_no_way_to_an_engine(
    gateway: Front, engine: Recorder, path: str, spelling: str
) -> None:
    before = len(engine.seen)
    target = spelling.format(path)
    status = await raw_status(gateway, f"POST {target} HTTP/1.1", dumped(whole("/tokenize")))
    assert status in {400, 404, 415}, target
    assert len(engine.seen) == before


@pytest.mark.parametrize("path", ALL_PATHS)
async def test_an_absolute_target_is_the_same_path_or_none(
    gateway: Front, engine: Recorder, path: str
) -> None:
    content = dumped(whole(path)) if path in BODIES else b"{}"
    before = len(engine.seen)
    status = await raw_status(
        gateway, f"POST http://elsewhere{path} HTTP/1.1", content, "X-Vllm-Priority: -5"
    )
    if status == 200:
        (seen,) = engine.seen[before:]
        assert_only_ours(seen, path)
        assert "elsewhere" not in seen.header("host")
    else:
        assert status in {400, 404, 415}
        assert len(engine.seen) == before


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "extra",
    [
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: identity",
        "Content-Length: 0",
        "Content-Length: +5",
        "X-Vllm-Priority : -5",
        "X-Folded: a\r\n X-Vllm-Priority: -5",
        "X-Bare: a\nX-Vllm-Priority: -5",
        "X-Null: a\x00b",
    ],
)
async def test_framing_and_header_lines_with_two_meanings_do_not_come(
    gateway: Front, engine: Recorder, path: str, extra: str
) -> None:
    before = len(engine.seen)
    status = await raw_status(gateway, f"POST {path} HTTP/1.1", dumped(whole(path)), extra)
    if status == 200:
        (seen,) = engine.seen[before:]
        assert_only_ours(seen, path)
    else:
        assert status == 400
        assert len(engine.seen) == before


async def raw_status(gateway: Front, first: str, body: bytes, *headers: str) -> int:
    """The status of a request written by hand; 400 also where the connection is just closed."""
    lines = [
        first,
        "Host: gateway",
        f"Authorization: Bearer {gateway.keys['everything']}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
    ]
    async with asyncio.timeout(10):
        answer = await gateway.raw("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
    return int(answer.split(b" ", 2)[1]) if answer else 400


# -- forms -----------------------------------------------------------------------------------


def form_fields(seen: Seen) -> list[tuple[str, str | None, bytes]]:
    kind = seen.header("content-type").encode()
    parsed = BytesParser().parsebytes(b"Content-Type: " + kind + b"\r\n\r\n" + seen.body)
    return [
        (
            cast("str", part.get_param("name", header="content-disposition")),
            part.get_filename(),
            cast("bytes", part.get_payload(decode=True)),
        )
        for part in cast("list[Message]", parsed.get_payload())
    ]


async def test_of_a_form_only_listed_fields_come_in_the_gateways_own_framing(
    gateway: Front, engine: Recorder
) -> None:
    request = httpx.Request(
        "POST",
        "http://x",
        files={"file": ('a"; name="priority', b"RIFF", "audio/x-evil")},
        data={
            "model": "simulated",
            "language": "de",
            "use_beam_search": "true",
            "vllm_xargs": json.dumps(STRIPPED),
            "to_language": "x",
            **dict.fromkeys(STRIPPED, "-1000"),
        },
    )
    content_type = ("content-type", request.headers["content-type"])
    _, seen = await came(gateway, engine, FORM, request.read(), headers=[content_type, *HEADERS])
    assert seen.target == FORM
    assert set(seen.names) <= ALLOWED_HEADERS
    assert len(set(seen.names)) == len(seen.names)
    assert seen.header("x-vllm-priority") == "-10"
    assert request.headers["content-type"].partition("=")[2] not in seen.header("content-type")
    assert form_fields(seen) == [
        ("model", None, b"simulated"),
        ("language", None, b"de"),
        ("file", "audio", b"RIFF"),
    ]
    assert b"evil" not in seen.body


async def test_a_form_with_a_field_twice_does_not_come(gateway: Front, engine: Recorder) -> None:
    files: list[tuple[str, Any]] = [
        ("file", ("a", b"RIFF")),
        ("model", (None, "simulated")),
        ("model", (None, "other")),
    ]
    request = httpx.Request("POST", "http://x", files=files)
    before = len(engine.seen)
    answer = await post(
        gateway, FORM, request.read(), [("content-type", request.headers["content-type"])]
    )
    refused(answer, "bad_request")
    assert len(engine.seen) == before


# -- what passes, and what comes back --------------------------------------------------------


async def test_no_credential_reaches_the_engine(gateway: Front, engine: Recorder) -> None:
    path = "/v1/messages"
    before = len(engine.seen)
    async with caller() as client:
        answer = await client.post(
            gateway.url + path,
            json=whole(path),
            headers={"x-api-key": gateway.keys["everything"], "anthropic-version": "2023-06-01"},
        )
    assert answer.status_code == 200, answer.text
    (seen,) = engine.seen[before:]
    assert_only_ours(seen, path)
    assert gateway.keys["everything"] not in str(seen)


@pytest.mark.parametrize("path", BODIES)
async def test_an_engines_own_headers_do_not_come_back(
    gateway: Front, engine: Recorder, path: str
) -> None:
    answer, _ = await came(gateway, engine, path, dumped(whole(path)))
    assert "x-engine-host" not in answer.headers
    assert "set-cookie" not in answer.headers
    assert "python" not in answer.headers.get("server", "").lower()


async def test_trace_context_passes_if_well_formed(gateway: Front, engine: Recorder) -> None:
    path, content = "/v1/completions", dumped(whole("/v1/completions"))
    parent = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    _, seen = await came(gateway, engine, path, content, headers=[parent, ("tracestate", "v=1")])
    assert seen.header("traceparent").startswith("00-0af7651916cd43dd8448eb211c80319c-")
    _, seen = await came(gateway, engine, path, content, headers=[("traceparent", "00-short-01")])
    assert "traceparent" not in seen.names
    _, seen = await came(gateway, engine, path, content, headers=[parent, parent])
    assert "traceparent" not in seen.names
