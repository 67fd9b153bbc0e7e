"""What the gateway refuses before a request could wait: each by its row of the contract."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.configs import Served, write_config
from tests.e2e.harness import CHAT, PLAIN, Front, caller, chat, eventually, front, ids, refused

KEY_OF_NOBODY = "sg_nobody_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"


async def send(
    gateway: Front, content: bytes, headers: dict[str, str] | None = None, **more: Any
) -> httpx.Response:
    """A body as it stands, with a good key unless headers say otherwise."""
    named = {"content-type": "application/json", **gateway.headers()}
    named |= headers or {}
    method, path = more.get("method", "POST"), more.get("path", CHAT)
    async with caller() as client:
        return await client.request(method, gateway.url + path, content=content, headers=named)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": ""},
        {"authorization": f"Bearer {KEY_OF_NOBODY}"},
        {"authorization": "Bearer sg_everything_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"},
        {"authorization": "Basic c2VjcmV0"},
        {"x-api-key": KEY_OF_NOBODY},
    ],
    ids=["empty", "unknown id", "wrong secret", "another scheme", "two credentials"],
)
async def test_a_caller_without_one_good_key_is_unauthenticated(
    plain: Front, headers: dict[str, str]
) -> None:
    async with plain.expect(unauthenticated=1):
        answer = await send(plain, b"{}", headers)
    refused(answer, "unauthenticated")
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_request_without_a_credential_is_unauthenticated(plain: Front) -> None:
    async with plain.expect(unauthenticated=1), caller() as client:
        answer = await client.post(plain.url + CHAT, json=chat())
    refused(answer, "unauthenticated")


async def test_the_key_may_also_come_as_an_api_key_header(plain: Front) -> None:
    async with plain.expect(completed=1), caller() as client:
        answer = await client.post(
            plain.url + CHAT, json=chat(), headers={"x-api-key": plain.keys["everything"]}
        )
    assert answer.status_code == 200


async def test_a_key_reaches_only_the_models_it_was_granted(plain: Front) -> None:
    async with plain.expect(forbidden=1, completed=1):
        error = refused(await plain.ask(chat(), key="only-other"), "forbidden")
        good = await plain.ask(chat(model="other"), key="only-other")
    assert error["param"] == "model"
    assert good.status_code == 200


async def test_an_alias_is_no_way_round_a_grant(plain: Front) -> None:
    async with plain.expect(forbidden=1):
        refused(await plain.ask(chat(model="default"), key="only-other"), "forbidden")


async def test_a_key_reaches_only_the_surfaces_it_was_granted(plain: Front) -> None:
    async with plain.expect(forbidden=1, completed=1):
        refused(await plain.ask(chat(), key="only-plain"), "forbidden")
        assert (await plain.ask(ids(3), PLAIN, key="only-plain")).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/metrics",
        "/health",
        "/invocations",
        "/admin/status",
        "/sim/state",
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/v1/chat%2Fcompletions",
        "/v1/chat/complet%69ons",
        "/V1/chat/completions",
        "/v1/models/../chat/completions",
        "/v1/%2e%2e/tokenize",
        "/v1/chat/completions;x=1",
        "/v1/chat/completions%00",
    ],
)
async def test_any_path_but_the_allowed_ones_is_not_found(plain: Front, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n"
    key = f"authorization: {plain.headers()['authorization']}\r\n\r\n"
    async with plain.expect(not_found=1):
        answer = await plain.raw((head + key).encode())
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"x-sluicegate-outcome: not_found" in answer


async def test_a_query_string_is_refused_because_an_engine_could_read_it(plain: Front) -> None:
    async with plain.expect(bad_request=1):
        refused(await plain.ask(chat(), CHAT + "?api-version=1"), "bad_request")


async def test_an_unknown_model_is_not_found(plain: Front) -> None:
    async with plain.expect(not_found=1):
        error = refused(await plain.ask(chat(model="no-such")), "not_found")
    assert error["param"] == "model"


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b'\xef\xbb\xbf{"model":"simulated"}', None),
        (b'{"model":"simulated"} {}', None),
        (b'{"model":"simulated","messages":[{"role":"user","content":NaN}]}', None),
        (b'{"model":"simulated","messages":[{"role":"user","content":"\\ud800"}]}', None),
        (b'{"model":"simulated","x":' + b"[" * 70 + b"]" * 70 + b"}", None),
        (b'{"messages":[]}', "model"),
        (b'{"model":7}', "model"),
        (b'{"model":"simulated"}', "messages"),
        (b'{"model":"simulated","messages":[]}', "messages"),
        (b'{"model":"simulated","messages":[{"role":"user","content":7}]}', "messages[0].content"),
        (b'{"model":"simulated","messages":[{"role":"x","content":"a"}]}', "messages"),
        (b'{"model":"simulated","messages":[{"role":"user","content":"a"}],"n":"2"}', "n"),
        (b'{"model":"simulated","messages":[{"role":"user","content":"a"}],"n":0}', "n"),
        (
            b'{"model":"simulated","messages":[{"role":"user","content":"a"}],"stream":"yes"}',
            "stream",
        ),
        (
            b'{"model":"simulated","messages":[{"role":"user","content":"a"}],"max_tokens":0}',
            "max_tokens",
        ),
        (
            b'{"model":"simulated","messages":[{"role":"user","content":"a"}],'
            b'"chat_template":"{{ x }}"}',
            "chat_template",
        ),
        (
            b'{"model":"simulated","messages":[{"role":"user","content":"a"}],'
            b'"continue_final_message":true}',
            "continue_final_message",
        ),
        (
            b'{"model":"simulated","messages":[{"role":"user","content":[{"type":"image_url"}]}]}',
            "messages[0].content[0]",
        ),
    ],
)
async def test_a_body_that_cannot_be_understood_is_a_bad_request(
    plain: Front, content: bytes, param: str | None
) -> None:
    async with plain.expect(bad_request=1):
        error = refused(await send(plain, content), "bad_request")
    assert error["param"] == param


@pytest.mark.parametrize("prompt", [[], [[]], ["a", 1], {"a": 1}, 7, [[1], "a"], [-1], [True]])
async def test_a_prompt_of_no_allowed_form_is_a_bad_request(plain: Front, prompt: Any) -> None:
    async with plain.expect(bad_request=1):
        error = refused(
            await plain.ask({"model": "simulated", "prompt": prompt}, PLAIN), "bad_request"
        )
    assert error["param"] == "prompt"


@pytest.mark.parametrize("wait", ["-1", "soon", "1e3", "", "nan", "1,2"])
async def test_a_wait_bound_that_is_no_number_is_a_bad_request(plain: Front, wait: str) -> None:
    async with plain.expect(bad_request=1):
        refused(await plain.ask(chat(), X_Sluicegate_Max_Wait=wait), "bad_request")


@pytest.mark.parametrize(
    ("method", "path"), [("GET", CHAT), ("PUT", PLAIN), ("DELETE", CHAT), ("POST", "/v1/models")]
)
async def test_another_method_is_told_so(plain: Front, method: str, path: str) -> None:
    async with plain.expect(bad_request=1):
        answer = await send(plain, b"", method=method, path=path)
    refused(answer, "bad_request", status=405)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "json"])
async def test_another_content_type_is_told_so(plain: Front, kind: str) -> None:
    async with plain.expect(bad_request=1):
        answer = await send(plain, b"{}", {"content-type": kind})
    refused(answer, "bad_request", status=415)


async def test_a_body_that_declares_too_many_bytes_is_too_large(plain: Front) -> None:
    async with plain.expect(body_too_large=1):
        refused(await send(plain, b" " * 65537), "body_too_large")


async def test_a_body_that_declares_nothing_is_too_large_once_it_is(plain: Front) -> None:
    async def parts() -> Any:
        for _ in range(20):
            yield b" " * 4096

    async with plain.expect(body_too_large=1), caller() as client:
        headers = {"content-type": "application/json", **plain.headers()}
        answer = await client.post(plain.url + CHAT, content=parts(), headers=headers)
    refused(answer, "body_too_large")


async def test_a_prompt_over_the_models_context_is_too_long(plain: Front) -> None:
    async with plain.expect(prompt_too_long=1, completed=1):
        error = refused(await plain.ask(ids(1001, model="narrow"), PLAIN), "prompt_too_long")
        assert (await plain.ask(ids(900, model="narrow"), PLAIN)).status_code == 200
    assert "1000" in error["message"]


async def test_a_prompt_over_the_largest_class_is_too_long(plain: Front) -> None:
    async with plain.expect(prompt_too_long=1, completed=1):
        refused(await plain.ask(ids(2001), PLAIN), "prompt_too_long")
        assert (await plain.ask(ids(2000), PLAIN)).status_code == 200


async def test_a_text_over_the_largest_class_is_too_long(plain: Front) -> None:
    async with plain.expect(prompt_too_long=1):
        refused(await plain.ask(chat("word " * 4000)), "prompt_too_long")


async def test_a_pool_that_never_had_an_engine_has_no_engine(plain: Front) -> None:
    async def long_enough() -> bool:
        answer = await plain.ask(
            chat(model="unserved"), X_Sluicegate_Max_Wait="0.01", X_Request_Id="probe"
        )
        return answer.headers["x-sluicegate-outcome"] == "no_engine"

    await eventually(long_enough)
    async with plain.expect(no_engine=1):
        answer = await plain.ask(chat(model="unserved"))
    refused(answer, "no_engine")


async def test_models_lists_what_the_key_may_use(plain: Front) -> None:
    async with caller() as client:

        async def names(key: str) -> list[str]:
            answer = await client.get(f"{plain.url}/v1/models", headers=plain.headers(key))
            assert answer.status_code == 200
            return [row["id"] for row in answer.json()["data"]]

        async with plain.expect(completed=2):
            everything, one = await names("everything"), await names("only-other")
    assert everything == ["simulated", "default", "other", "narrow", "unserved"]
    assert one == ["other"]


async def test_the_request_id_is_the_callers_if_well_formed(plain: Front) -> None:
    async with plain.expect(completed=2):
        kept = await plain.ask(chat(), X_Request_Id="trace-me.1")
        made = await plain.ask(chat(), X_Request_Id="no spaces here")
    assert kept.headers["x-request-id"] == "trace-me.1"
    assert kept.json()["id"].startswith("chatcmpl-trace-me.1-")
    assert kept.json()["id"] != f"chatcmpl-{kept.headers['x-request-id']}"
    assert len(made.headers["x-request-id"]) == 32


# -- the listener's own bounds ------------------------------------------------------------


@pytest.fixture(scope="module")
def edge(fast: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    path, keys = write_config(
        tmp_path_factory.mktemp("edge"),
        {"simulated": Served([fast])},
        server={
            "header_bytes": 2048,
            "header_timeout_s": 0.4,
            "body_timeout_s": 0.5,
            "max_requests": 3,
            "max_body_bytes": 20000,
            "max_held_bytes": 30000,
            "principal_share": 1.0,
        },
    )
    with front(path, keys, [fast]) as gateway:
        yield gateway


def post_head(gateway: Front, length: int, extra: str = "") -> bytes:
    key = gateway.headers()["authorization"]
    return (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: {key}\r\n{extra}"
        f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    ).encode()


async def holds(gateway: Front, requests: int) -> bool:
    return bool((await gateway.status())["running"] == requests)


async def test_a_body_that_does_not_come_times_out(edge: Front) -> None:
    async with edge.expect(body_timeout=1):
        answer = await edge.raw(post_head(edge, 100, "connection: close\r\n") + b"{")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"body_timeout"' in answer
    assert b"x-should-retry: false" in answer
    assert b"retry-after" not in answer


async def test_a_body_whose_chunks_break_is_refused_and_counted_once(edge: Front) -> None:
    head = post_head(edge, 0).replace(b"content-length: 0", b"transfer-encoding: chunked")
    async with edge.expect(bad_request=2):
        for broken in (b"zz\r\n", b"2\r\n{}zz\r\n"):
            answer = await edge.raw(head + broken)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert b'"code":"bad_request"' in answer


async def test_a_head_over_its_bound_is_refused(edge: Front) -> None:
    async with edge.expect(headers_too_large=1):
        answer = await edge.raw(post_head(edge, 0, f"x-filler: {'y' * 3000}\r\n"))
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b'"code":"headers_too_large"' in answer


async def test_a_head_that_does_not_end_is_cut_off(edge: Front) -> None:
    async with edge.expect(header_timeout=1):
        assert await edge.raw(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n") == b""


async def test_what_is_no_http_is_a_bad_request(edge: Front) -> None:
    before = await edge.counts("sluicegate_outcomes_total", "outcome")
    answer = await edge.raw(b"HELLO\r\n\r\n")
    after = await edge.counts("sluicegate_outcomes_total", "outcome")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert after["bad_request"] - before["bad_request"] == 1


async def test_more_requests_than_the_gateway_may_hold_are_refused(edge: Front) -> None:
    async with edge.expect(body_timeout=3, ingress_full=1):
        head = post_head(edge, 9, "connection: close\r\n")
        held = [asyncio.ensure_future(edge.raw(head)) for _ in range(3)]
        await eventually(lambda: holds(edge, 3))
        refused(await edge.ask(chat()), "ingress_full")
        await asyncio.gather(*held)


async def test_more_bytes_than_the_gateway_may_hold_are_refused(edge: Front) -> None:
    async with edge.expect(body_timeout=1, ingress_full=1, completed=1):
        head = post_head(edge, 19000, "connection: close\r\n")
        held = asyncio.ensure_future(edge.raw(head + b"{" * 18000))
        await eventually(lambda: holds(edge, 1))
        refused(await edge.ask(chat("a" * 15000)), "ingress_full")
        await held
        assert (await edge.ask(chat("a " * 100))).status_code == 200
