"""Engines that hang, die, come back, move and lie, before a gateway as a process of its own."""

import asyncio
import os
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from loadgen.engine.launch import EngineProcess, start_engine
from tests.e2e.configs import Served, write_config
from tests.e2e.harness import ROOT, Front, caller, chat, eventually, front
from tests.gateway.certificates import Authority
from tests.gateway.scripted import Peer, Script, plain, scripted_engine

Started = Callable[..., Front]
CONTROLLED = ("--time-scale", "20", "--sim-state", "--sim-control")
PROBE = {"interval_s": 0.1, "timeout_s": 1.0, "stall_s": 0.5}


async def set_fault(engine: str, fault: str | None) -> None:
    async with caller() as client:
        answer = await client.post(f"{engine}/sim/fault", json={"fault": fault})
    assert answer.status_code == 200, answer.text


async def health(gateway: Front) -> dict[str, dict[str, object]]:
    return {row["engine"]: row for row in (await gateway.status())["health"]}


# -- progress ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hanging(engines: Callable[..., list[EngineProcess]]) -> EngineProcess:
    return engines(CONTROLLED)[0]


async def test_an_engine_that_answers_and_makes_no_progress_is_taken_out_until_it_does(
    hanging: EngineProcess, fast: str, started: Started
) -> None:
    gateway = started(
        {"simulated": Served([hanging.url, fast]), "alone": Served([hanging.url])},
        (hanging.url, fast),
        probe=PROBE,
    )
    await set_fault(hanging.url, "hang-scheduler")
    stuck = asyncio.ensure_future(gateway.ask(chat(model="alone")))
    await eventually(lambda: any(_of(gateway, "engine_down", hanging.url)))
    row = (await health(gateway))[hanging.url]
    assert (row["up"], row["progress"]) == (False, "stalled")
    assert str(row["reason"]).startswith("no progress: 1 running")
    for number in range(5):
        answer = await gateway.ask(chat(f"Anybody there? {number}"))
        assert answer.status_code == 200
    await set_fault(hanging.url, None)

    async def well() -> bool:
        return bool((await health(gateway))[hanging.url]["up"])

    await eventually(well)
    assert (await stuck).status_code == 200
    assert (await gateway.ask(chat(model="alone"))).status_code == 200
    await gateway.at_rest()


def _of(gateway: Front, word: str, engine: str) -> list[object]:
    return [line for line in gateway.events(word) if line["engine"] == engine]


# -- death and return --------------------------------------------------------------------------


async def test_an_engine_that_was_killed_and_comes_back_is_another_epoch(
    fast: str, started: Started, tmp_path: Path
) -> None:
    with start_engine(CONTROLLED, tmp_path / "first.log") as first:
        port = first.url.rpartition(":")[2]
        gateway = started({"simulated": Served([first.url])}, (first.url,), probe=PROBE)
        assert (await gateway.ask(chat())).status_code == 200
        first.kill()
        await eventually(lambda: any(_of(gateway, "engine_down", first.url)))
        # It waits for the engine, in front of whatever comes later.
        waiting = asyncio.ensure_future(gateway.ask(chat()))
    with start_engine((*CONTROLLED, "--port", port), tmp_path / "second.log"):
        assert (await waiting).status_code in {200, 503}
        await eventually(lambda: any(_of(gateway, "engine_restarted", first.url)))
        assert (await gateway.ask(chat())).status_code == 200
        assert (await health(gateway))[first.url]["epoch"] == 2
        assert (await gateway.total("sluicegate_engine_epoch")) == 2
        await gateway.at_rest()


# -- the breaker -------------------------------------------------------------------------------

METRICS = plain(b"process_start_time_seconds 1.0\n")


def resetting(asked: list[bytes]) -> Script:
    """Well by its health checks; every other request is reset before an answer."""

    async def serve(peer: Peer) -> None:
        while True:
            request = await peer.request()
            if request.startswith(b"GET"):
                await peer.send(METRICS if b"/metrics" in request else plain(b""))
                continue
            asked.append(request)
            peer.reset()
            return

    return serve


async def test_an_engine_that_only_resets_gets_few_requests_and_no_caller_notices(
    fast: str, started: Started
) -> None:
    asked: list[bytes] = []
    async with scripted_engine(resetting(asked)) as broken:
        gateway = await asyncio.to_thread(
            started,
            {"simulated": Served([broken.url, fast])},
            (broken.url, fast),
            probe=PROBE,
            upstream={"breaker_failures": 3, "breaker_open_s": 30.0},
        )
        for number in range(40):
            answer = await gateway.ask(chat(f"{number} is a number of its own beginning"))
            assert answer.status_code == 200, answer.text
        assert len(asked) == 3
        row = (await health(gateway))[broken.url]
        assert (row["up"], row["breaker"]) == (False, "open")
        assert str(row["reason"]) == "breaker open: disconnected"
        assert await gateway.total("sluicegate_retries_total") == 3
        await gateway.at_rest()


# -- aliases -----------------------------------------------------------------------------------


@pytest.fixture
def isolated(fast: str, tmp_path: Path) -> Path:
    """Two pools that must be isolated and are one engine under two names."""
    alias = fast.replace("127.0.0.1", "localhost")
    models = {"simulated": Served([fast]), "other": Served([alias])}
    path, _ = write_config(tmp_path / "isolated", models, isolation="required")
    return path


def test_pools_that_must_be_isolated_and_are_one_engine_are_refused_at_the_start(
    isolated: Path,
) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "gateway", "serve", "--config", str(isolated)],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert finished.returncode == 2, finished.stdout + finished.stderr
    assert "isolation" in finished.stderr
    assert "the same address 127.0.0.1:" in finished.stderr


async def test_without_required_isolation_an_alias_is_said_and_served(
    fast: str, started: Started
) -> None:
    alias = fast.replace("127.0.0.1", "localhost")
    gateway = started(
        {"simulated": Served([fast]), "other": Served([alias])}, (fast, alias), probe=PROBE
    )
    await eventually(lambda: gateway.events("engines_are_one"))
    assert (await health(gateway))[fast]["same_as"] == [alias]
    assert (await gateway.ask(chat(model="other"))).status_code == 200


# -- addresses ---------------------------------------------------------------------------------


async def test_the_addresses_of_a_name_are_engines(fast: str, tmp_path: Path) -> None:
    port = fast.rpartition(":")[2]
    path, keys = write_config(tmp_path / "dns", {"simulated": Served([fast])}, probe=PROBE)
    text = path.read_text()
    assert f'["{fast}"]' in text
    path.write_text(text.replace(f'"engines" = ["{fast}"]', f'dns = "http://localhost:{port}"'))
    with front(path, keys) as gateway:
        await eventually(lambda: gateway.events("engine_up"))
        up = {line["engine"] for line in gateway.events("engine_up")}
        assert up <= {"pool-0#0", "pool-0#1"}
        answer = await gateway.ask(chat())
        assert answer.status_code == 200
        rows = await health(gateway)
        assert {row["address"] for row in rows.values()} <= {
            f"http://127.0.0.1:{port}",
            f"http://[::1]:{port}",
        }
        await gateway.at_rest()


async def test_an_engine_behind_tls_and_one_behind_a_unix_socket_serve(
    fast: str, started: Started, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "ca")
    signed = authority.sign("engine")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(signed.cert, signed.key)
    host, _, port = fast.removeprefix("http://").partition(":")
    path = tmp_path / "engine.sock"
    pipes = []

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pipes.append(asyncio.current_task())
        ends = [writer]
        try:
            behind, onward = await asyncio.open_connection(host, int(port))
            ends.append(onward)
            await asyncio.gather(_copy(reader, onward), _copy(behind, writer))
        except asyncio.CancelledError:  # the test is over
            for end in ends:
                end.transport.abort()

    tls = await asyncio.start_server(pipe, "127.0.0.1", 0, ssl=context)
    unix = await asyncio.start_unix_server(pipe, path)
    async with tls, unix:
        by_tls = f"https://localhost:{tls.sockets[0].getsockname()[1]}"
        by_unix = f"unix:{path}"
        # The servers live on this loop: starting the gateway may not block it.
        gateway = await asyncio.to_thread(
            started,
            {"simulated": Served([by_tls]), "other": Served([by_unix])},
            (by_tls, by_unix),
            upstream={"tls": {"ca_file": str(authority.file)}},
            probe=PROBE,
        )
        for model in ("simulated", "other"):
            assert (await gateway.ask(chat(model=model))).status_code == 200
            async with gateway.stream(chat(model=model)) as stream:
                assert (await stream.rest())[-1] == "[DONE]"
        await gateway.at_rest()
    for task in pipes:  # the gateway goes on probing until its fixture ends
        task.cancel()
    await asyncio.gather(*pipes)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except (ConnectionError, ssl.SSLError):
        pass
    finally:
        writer.close()


# -- priorities --------------------------------------------------------------------------------


async def test_what_is_known_of_an_engines_priorities_is_always_said(
    fast: str, started: Started
) -> None:
    gateway = started(
        {"simulated": Served([fast])}, (fast,), probe=PROBE, limits={"policy": "priority"}
    )
    await eventually(lambda: gateway.events("engine_priority"))
    assert gateway.events("engine_priority")[0]["state"] == "unverified"
    assert (await health(gateway))[fast]["priority"] == "unverified"
    assert await gateway.total("sluicegate_engine_priority", priority="unverified") == 1
    assert await gateway.total("sluicegate_engine_priority") == 1
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"{fast}/server_info?config_format=json")).status_code == 404
