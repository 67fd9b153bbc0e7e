"""Real processes that are told to end, are killed, or run out of file descriptors."""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadgen.engine.launch import EngineProcess, start_engine
from tests.e2e.configs import Served, write_config
from tests.e2e.harness import (
    ROOT,
    Front,
    _wait_ready,
    caller,
    chat,
    endless,
    eventually,
    front,
    sim_state,
)

SLOW = ("--time-scale", "0.5", "--sim-state")
FDS = 120


@pytest.fixture
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Callable[..., EngineProcess]]:
    with contextlib.ExitStack() as stack:
        yield lambda *flags: stack.enter_context(start_engine(flags, tmp_path / "engine.log"))


def gateway_for(folder: Path, engine: EngineProcess, **changes: Any) -> Any:
    limits = {
        "upstream": {"first_byte_timeout_s": 2.0, "answer_timeout_s": 2.0, "idle_timeout_s": 1.0},
        "flow": {"short": {"interactive": {"max_age_s": 2.0, "principal_share": 1.0}}},
    }
    path, keys = write_config(
        folder / "gateway", {"simulated": Served([engine.url])}, **{**limits, **changes}
    )
    return front(path, keys, [engine.url])


@asynccontextmanager
async def at_work(
    gateway: Front, engine: EngineProcess, tokens: int
) -> AsyncIterator[tuple[Any, asyncio.Task[Any]]]:
    """A stream that has begun and an answer that is being made."""
    body = chat(ignore_eos=True, max_tokens=tokens)
    whole = asyncio.ensure_future(gateway.ask(body))
    async with gateway.stream(body) as stream:
        assert await stream.next() is not None

        async def both() -> bool:
            return bool((await sim_state(engine.url))["running"] == 2)

        await eventually(both)
        yield stream, whole


# -- engines -------------------------------------------------------------------------------


async def test_an_engine_that_is_told_to_end_at_once_hangs_and_its_requests_time_out(
    engine: Callable[..., EngineProcess], tmp_path: Path
) -> None:
    victim = engine(*SLOW)
    with gateway_for(tmp_path, victim) as gateway:
        async with (
            gateway.expect(stream_interrupted=1, upstream_timeout=1),
            at_work(gateway, victim, 2000) as (stream, whole),
        ):
            victim.process.send_signal(signal.SIGTERM)
            last = (await stream.rest())[-1]
            assert last["error"]["code"] == "stream_interrupted"
            assert (await whole).status_code == 504


async def test_an_engine_that_is_given_time_to_end_finishes_its_answers(
    engine: Callable[..., EngineProcess], tmp_path: Path
) -> None:
    """What it is sent meanwhile it aborts or refuses: never a success for the caller."""
    victim = engine(*SLOW, "--shutdown-timeout", "20")
    with gateway_for(tmp_path, victim, upstream={}) as gateway:
        async with at_work(gateway, victim, 100) as (stream, whole):
            victim.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.2)
            late = [await gateway.ask(chat(stream=stream)) for stream in (True, False)]
            assert (await stream.rest())[-1] == "[DONE]"
            assert (await whole).status_code == 200
        for answer in late:
            assert answer.headers["x-sluicegate-outcome"] != "completed", answer.text
        await gateway.at_rest()
        assert (await gateway.counts("sluicegate_outcomes_total", "outcome"))["completed"] == 2


async def test_an_engine_that_is_killed_interrupts_streams_and_leaves_answers_unreachable(
    engine: Callable[..., EngineProcess], tmp_path: Path
) -> None:
    victim = engine(*SLOW)
    with gateway_for(tmp_path, victim) as gateway:
        async with (
            gateway.expect(stream_interrupted=1, upstream_unreachable=1),
            at_work(gateway, victim, 2000) as (stream, whole),
        ):
            victim.process.kill()
            assert (await stream.rest())[-1]["error"]["code"] == "stream_interrupted"
            assert (await whole).status_code == 502


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("kill-after=3", "stream_interrupted"),
        ("hang-after=3", "stream_interrupted"),
        ("error-event-after=3", "stream_interrupted"),
        ("busy-event=1", "engine_rejected"),
    ],
)
async def test_a_fault_of_the_simulated_engine_has_its_named_outcome(
    engine: Callable[..., EngineProcess], tmp_path: Path, fault: str, outcome: str
) -> None:
    victim = engine("--time-scale", "5", "--sim-state", "--fault", fault)
    with gateway_for(tmp_path, victim) as gateway:
        async with gateway.expect(**{outcome: 1}):
            async with gateway.stream(endless()) as stream:
                events = await stream.rest()
            assert (stream.response.status_code == 200) == (outcome == "stream_interrupted")
            assert outcome != "stream_interrupted" or "error" in str(events[-2:])


# -- the gateway ---------------------------------------------------------------------------


async def test_a_gateway_that_is_told_to_end_finishes_what_runs_and_what_waits(
    engine: Callable[..., EngineProcess], tmp_path: Path
) -> None:
    busy = engine(*SLOW)
    flow = {"short": {"interactive": {"max_age_s": 20.0, "principal_share": 1.0}}}
    with gateway_for(tmp_path, busy, limits={"slots": 2}, flow=flow, upstream={}) as gateway:
        async with gateway.stream(chat(ignore_eos=True, max_tokens=60, n=2)) as stream:
            assert await stream.next() is not None
            waits = asyncio.ensure_future(gateway.ask(chat()))

            async def queued() -> bool:
                return await gateway.total("sluicegate_queue_depth") == 1

            await eventually(queued)
            assert gateway.process is not None
            gateway.process.send_signal(signal.SIGTERM)
            assert (await stream.rest())[-1] == "[DONE]"
            assert (await waits).status_code == 200
        assert await asyncio.to_thread(gateway.process.wait, 10) == 0
    assert [line["outcome"] for line in gateway.requests()] == ["completed"] * 2


def few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (FDS, FDS))


@contextlib.contextmanager
def poor_front(config: Path, keys: dict[str, str], engines: list[str]) -> Iterator[Front]:
    """As ``front``, but the gateway may open few files."""
    log = config.with_name("gateway.log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve", "--config", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            preexec_fn=few_descriptors,  # noqa: PLW1509 - no threads of ours run yet
        )
    gateway = Front("", "", keys, log, process)
    try:
        _wait_ready(gateway, process, set(engines))
        yield gateway
    finally:
        process.kill()
        process.wait()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_a_gateway_out_of_file_descriptors_turns_callers_away_and_recovers(
    engine: Callable[..., EngineProcess], tmp_path: Path
) -> None:
    """Its health is still told, work under way goes on, and it does not spin."""
    sound = engine(*SLOW)
    path, keys = write_config(
        tmp_path / "gateway",
        {"simulated": Served([sound.url])},
        server={"max_connections": 4096, "header_timeout_s": 60.0},
    )
    with poor_front(path, keys, [sound.url]) as gateway:
        assert gateway.process is not None
        host, port = gateway.url.removeprefix("http://").rsplit(":", 1)
        async with gateway.stream(chat(ignore_eos=True, max_tokens=100)) as stream:
            assert await stream.next() is not None
            held = [socket.create_connection((host, int(port))) for _ in range(2 * FDS)]
            await asyncio.sleep(0.5)
            before_s = cpu_s(gateway.process.pid)
            async with caller() as client:
                live = await client.get(f"{gateway.admin_url}/health/live", timeout=5.0)
            assert live.status_code == 200
            await asyncio.sleep(2.0)
            assert cpu_s(gateway.process.pid) - before_s < 1.0
            assert (await stream.rest())[-1] == "[DONE]"
        for sock in held:
            sock.close()

        async def serves() -> bool:
            try:
                return (await gateway.ask(chat())).status_code == 200
            except httpx.TransportError:
                return False

        await eventually(serves)
        await gateway.at_rest()
        assert gateway.events("internal_error") == []
        # Its own want of descriptors is no fault of the engine's.
        assert gateway.events("engine_down") == []


MANY = 10_000
GROWTH_MIB = 128


def rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.fixture
def many_descriptors() -> Iterator[int]:
    """How many connections this process may open, up to what the test would like."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield min(MANY, hard - 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
async def test_ten_thousand_idle_connections_leave_the_work_alone(
    engine: Callable[..., EngineProcess], tmp_path: Path, many_descriptors: int
) -> None:
    sound = engine(*SLOW)
    server = {"max_connections": 64, "header_timeout_s": 60.0}
    with gateway_for(tmp_path, sound, server=server, upstream={}) as gateway:
        assert gateway.process is not None
        host, port = gateway.url.removeprefix("http://").rsplit(":", 1)
        before_mib = rss_mib(gateway.process.pid)
        async with gateway.stream(chat(ignore_eos=True, max_tokens=100)) as stream:
            assert await stream.next() is not None

            def open_all() -> list[socket.socket]:
                address = (host, int(port))
                return [socket.create_connection(address) for _ in range(many_descriptors)]

            held = await asyncio.to_thread(open_all)
            assert (await gateway.status())["engines"]
            assert (await stream.rest())[-1] == "[DONE]"
        assert rss_mib(gateway.process.pid) - before_mib < GROWTH_MIB
        for sock in held:
            sock.close()

        async def serves() -> bool:
            try:
                return (await gateway.ask(chat())).status_code == 200
            except httpx.TransportError:
                return False

        await eventually(serves)
        await gateway.at_rest()
        assert gateway.events("internal_error") == []
