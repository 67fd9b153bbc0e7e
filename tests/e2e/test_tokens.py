"""Callers with tokens, at a gateway that fetches its issuer's keys."""

import signal
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from tests.e2e.configs import Served
from tests.e2e.harness import Front, caller, chat, eventually, refused
from tests.gateway.mint import AUDIENCE, ISSUER, KeyServer, jwk, jwks, key_server, token

Start = Callable[..., Front]

STAFF = {
    "issuer": ISSUER,
    "audience": [AUDIENCE],
    "algorithms": ["ES256", "RS256"],
    "service_class_claim": "groups",
    "service_classes": {"live": "interactive"},
    "models_claim": "models",
}


@pytest.fixture
async def certs() -> AsyncIterator[KeyServer]:
    async with key_server(jwks(jwk("ES256"))) as server:
        yield server


def minted(kid: str = "k", **changed: Any) -> str:
    now_s = datetime.now(UTC).timestamp()
    good = {"iat": now_s, "exp": now_s + 600, "groups": ["live"], "models": ["simulated"]}
    return token("ES256", kid, **{**good, **changed})


async def ask(gateway: Front, credential: str, header: str = "authorization") -> httpx.Response:
    value = f"Bearer {credential}" if header == "authorization" else credential
    async with caller() as client:
        return await client.post(
            gateway.url + "/v1/chat/completions", json=chat(), headers={header: value}
        )


def behind(started: Start, engine: str, url: str, **changes: Any) -> Front:
    issuer = {**STAFF, "jwks_url": url}
    models = {"simulated": Served([engine])}
    return started(models, (engine,), auth={"jwt": {"staff": issuer}}, **changes)


async def test_a_token_is_as_good_as_a_key_and_grants_what_its_claims_say(
    fast: str, started: Start, certs: KeyServer
) -> None:
    gateway = behind(started, fast, certs.url)
    secret = minted(jti="never in a log")
    async with gateway.expect(completed=3, forbidden=2, unauthenticated=4):
        assert (await ask(gateway, secret)).status_code == 200
        assert (await ask(gateway, secret)).status_code == 200
        assert (await ask(gateway, gateway.keys["interactive"])).status_code == 200
        refused(await ask(gateway, minted(groups=["other"])), "forbidden")
        refused(await ask(gateway, minted(models=["other"])), "forbidden")
        refused(await ask(gateway, minted(aud="other")), "unauthenticated")
        refused(await ask(gateway, minted(exp=1.0)), "unauthenticated")
        refused(await ask(gateway, minted("made up")), "unauthenticated")
        refused(await ask(gateway, secret, "x-api-key"), "unauthenticated")
    assert any("staff:alice" in line.values() for line in gateway.requests())
    log = gateway.log.read_text()
    assert not any(part in log for part in secret.split("."))
    assert [line["keys"] for line in gateway.events("jwks_refreshed")] == [1]


async def test_a_token_is_revoked_and_allowed_again_without_a_restart(
    fast: str, started: Start, certs: KeyServer
) -> None:
    gateway = behind(started, fast, certs.url)
    keys = gateway.log.with_name("keys.toml")
    good, before = minted(), keys.read_text()
    assert (await ask(gateway, good)).status_code == 200
    keys.write_text('revoked = ["staff:alice"]\n' + before)
    reload(gateway)
    await eventually(lambda: _status(gateway, good, 401))
    assert (await ask(gateway, minted(sub="bob"))).status_code == 200
    keys.write_text(before)
    reload(gateway)
    await eventually(lambda: _status(gateway, good, 200))
    assert certs.asked == 1


async def test_keys_serve_while_an_issuer_can_not_be_reached(
    fast: str, started: Start, certs: KeyServer
) -> None:
    certs.status = "500 Down"
    gateway = behind(started, fast, certs.url)
    answer = await ask(gateway, minted())
    assert (answer.status_code, answer.headers["x-should-retry"]) == (503, "true")
    assert answer.json()["error"]["code"] == "identity_unavailable"
    assert 1 <= int(answer.headers["retry-after"]) <= 30
    assert (await ask(gateway, gateway.keys["interactive"])).status_code == 200
    await eventually(lambda: bool(gateway.events("jwks_failed")))
    assert gateway.events("jwks_failed")[-1]["reason"] == "answered 500"
    certs.status = "200 OK"
    await eventually(lambda: _status(gateway, minted(), 200))


def reload(gateway: Front) -> None:
    assert gateway.process is not None
    gateway.process.send_signal(signal.SIGHUP)


async def _status(gateway: Front, credential: str, status: int) -> bool:
    return (await ask(gateway, credential)).status_code == status
