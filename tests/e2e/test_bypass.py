"""Nothing a caller says about its own rank, identity or transfer reaches an engine."""

from typing import Any

import orjson
import pytest

from tests.e2e.harness import CHAT, PLAIN, Front, caller, chat, ids, sim_state

STRIPPED: dict[str, Any] = {
    "priority": -1000,
    "service_tier": "priority",
    "request_id": "mine",
    "session_id": "sticky",
    "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "10.0.0.9"},
}
SURFACES = pytest.mark.parametrize("path", [CHAT, PLAIN], ids=["chat", "completions"])
ALLOWED_HEADERS = {
    *("accept", "content-length", "content-type", "host", "traceparent", "tracestate"),
    *("x-request-id", "x-vllm-priority"),
}


def body_for(path: str, **fields: Any) -> dict[str, Any]:
    return chat(**fields) if path == CHAT else ids(5, **fields)


async def seen(
    gateway: Front, engine: str, content: bytes, path: str, headers: list[tuple[str, str]]
) -> dict[str, Any]:
    """What the engine saw of one completed request."""
    before = (await sim_state(engine))["requests_total"]
    sent = [
        ("content-type", "application/json"),
        ("authorization", gateway.headers()["authorization"]),
        *headers,
    ]
    async with gateway.expect(completed=1), caller() as client:
        answer = await client.post(gateway.url + path, content=content, headers=sent)
        assert answer.status_code == 200, answer.text
    state = await sim_state(engine)
    assert state["requests_total"] == before + 1
    found: dict[str, Any] = state["requests"][-1]
    return found


def assert_only_ours(request: dict[str, Any], priority: int = -10) -> None:
    """The engine's view of rank is the gateway's, and none of the stripped names arrived."""
    assert request["priority"] == priority
    assert request["body_priority"] == priority
    assert request["headers"]["x-vllm-priority"] == str(priority)
    assert set(request["header_names"]) <= ALLOWED_HEADERS
    assert not set(request["body_keys"]) & (set(STRIPPED) - {"priority"})
    assert "session_id" not in request["vllm_xargs_keys"]


def as_json(body: dict[str, Any]) -> bytes:
    return orjson.dumps(body)


@SURFACES
@pytest.mark.parametrize("name", STRIPPED)
async def test_a_field_that_is_the_gateways_to_say_is_removed(
    plain: Front, fast: str, path: str, name: str
) -> None:
    content = as_json(body_for(path, **{name: STRIPPED[name]}))
    assert_only_ours(await seen(plain, fast, content, path, []))


@SURFACES
async def test_a_nested_session_is_removed_and_the_rest_beside_it_kept(
    plain: Front, fast: str, path: str
) -> None:
    content = as_json(body_for(path, vllm_xargs={"session_id": "sticky", "harmless": 1}))
    request = await seen(plain, fast, content, path, [])
    assert_only_ours(request)
    assert request["vllm_xargs_keys"] == ["harmless"]


@SURFACES
@pytest.mark.parametrize(
    "name",
    [
        *("X-Vllm-Priority", "x-vllm-priority", "X-VLLM-PRIORITY"),
        *("X-data-parallel-rank", "X-Data-Parallel-Rank", "X-Session-ID", "x-session-id"),
    ],
)
async def test_a_header_that_is_the_gateways_to_say_is_removed(
    plain: Front, fast: str, path: str, name: str
) -> None:
    content = as_json(body_for(path))
    assert_only_ours(await seen(plain, fast, content, path, [(name, "-1000")]))


@SURFACES
async def test_everything_at_once_and_twice_changes_nothing(
    plain: Front, fast: str, path: str
) -> None:
    headers = [
        ("X-Vllm-Priority", "-1000"),
        ("x-vllm-priority", "-2000"),
        ("X-VLLM-Priority", "-3000, -4000"),
        ("X-Session-ID", "a"),
        ("X-Session-Id", "b"),
        ("X-data-parallel-rank", "0"),
        ("X-Priority", "1"),
        ("Priority", "u=0"),
        ("Cookie", "session=1"),
        ("Forwarded", "for=1"),
    ]
    content = as_json(body_for(path, **STRIPPED, vllm_xargs={"session_id": "x", "priority": 1}))
    request = await seen(plain, fast, content, path, headers)
    assert_only_ours(request)
    assert request["vllm_xargs_keys"] == []


@SURFACES
@pytest.mark.parametrize(
    "twice",
    [
        b'"priority":-1000,"priority":5,',
        b'"priority":-1000,"\\u0070riority":-999,',
        b'"priority":-1000,"pri\\u006frity":-999,"priority":-998,',
        b'"request_id":"a","request_id":"b",',
    ],
)
async def test_a_key_written_twice_or_in_escapes_changes_nothing(
    plain: Front, fast: str, path: str, twice: bytes
) -> None:
    content = b"{" + twice + as_json(body_for(path))[1:-1] + b"," + twice[:-1] + b"}"
    assert_only_ours(await seen(plain, fast, content, path, []))


async def test_a_model_named_twice_is_the_one_that_was_judged(plain: Front, fast: str) -> None:
    content = b'{"model":"no-such",' + as_json(chat())[1:]
    assert_only_ours(await seen(plain, fast, content, CHAT, []))
    async with plain.expect(not_found=1), caller() as client:
        answer = await client.post(
            plain.url + CHAT,
            content=as_json(chat())[:-1] + b',"model":"no-such"}',
            headers={**plain.headers(), "content-type": "application/json"},
        )
    assert answer.status_code == 404


async def test_the_stamp_follows_the_service_class_of_the_key(plain: Front, fast: str) -> None:
    async with plain.expect(completed=1):
        await plain.ask(chat(priority=-1000), key="batch", X_Vllm_Priority="-1000")
    assert_only_ours((await sim_state(fast))["requests"][-1], priority=10)


async def test_no_credential_reaches_the_engine(plain: Front, fast: str) -> None:
    async with plain.expect(completed=1), caller() as client:
        answer = await client.post(
            plain.url + CHAT, json=chat(), headers={"x-api-key": plain.keys["everything"]}
        )
        assert answer.status_code == 200
    names = (await sim_state(fast))["requests"][-1]["header_names"]
    assert "x-api-key" not in names
    assert "authorization" not in names


async def test_trace_context_passes_if_well_formed(plain: Front, fast: str) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with plain.expect(completed=1):
        await plain.ask(chat(), traceparent=parent, tracestate="vendor=1")
    assert "traceparent" in (await sim_state(fast))["requests"][-1]["header_names"]
    assert plain.requests()[-1]["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
    await plain.ask(chat(), traceparent="00-short-01")
    assert "traceparent" not in (await sim_state(fast))["requests"][-1]["header_names"]
