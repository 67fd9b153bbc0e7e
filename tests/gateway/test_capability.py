"""Whether an engine honours priorities: what it says, and what the experiment shows."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import capability
from gateway.capability import _some_wait, _Tasks, policy_of, probe_priority, stated
from gateway.cli import main
from gateway.progress import PriorityState
from gateway.scrape import Scrape
from loadgen.engine.launch import EngineProcess, start_engine
from tests.gateway.certificates import Authority
from tests.gateway.fake_engine import FakeEngine, listening, page


@asynccontextmanager
async def encrypted(fake: FakeEngine, authority: Authority, *, asks: bool) -> AsyncIterator[int]:
    """That engine behind a certificate of the authority; with ``asks`` it wants one too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    signed = authority.sign("engine")
    context.load_cert_chain(signed.cert, signed.key)
    if asks:
        context.load_verify_locations(authority.file)
        context.verify_mode = ssl.CERT_REQUIRED
    async with await asyncio.start_server(fake.serve, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]


SEATS = ("--max-num-seqs", "12", "--time-scale", "0.5")


@pytest.fixture(params=["priority", "fcfs"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, EngineProcess]]:
    flags = (*SEATS, "--scheduling-policy", request.param)
    with start_engine(flags, tmp_path / "engine.log") as running:
        yield request.param, running


async def test_the_experiment_tells_the_two_policies_apart(
    engine: tuple[str, EngineProcess],
) -> None:
    policy, running = engine
    for _ in range(5):  # on a busy machine an experiment may end without a result, and says so
        report = await probe_priority(running.url, "simulated")
        if report.honoured is not None:
            break
    assert report.honoured is (policy == "priority"), report
    assert report.verdict == (
        "priority honoured" if policy == "priority" else "not honoured (fcfs)"
    )
    assert report.ok is report.honoured
    assert report.advice is None
    assert len(report.evidence) == 3


async def test_an_engine_that_is_not_there_or_does_not_say_what_waits_tells_nothing() -> None:
    gone = await probe_priority("http://127.0.0.1:9", "m")
    assert (gone.honoured, gone.verdict, gone.ok) == (None, "could not tell", False)
    assert "did not answer" in gone.evidence[0]
    for metrics, why in (
        ("", "does not say what runs"),
        (page(running=0, waiting=0), "answered 404"),
    ):
        async with listening(FakeEngine(metrics=metrics)) as port:
            report = await probe_priority(f"http://127.0.0.1:{port}", "m")
        assert report.honoured is None
        assert why in report.evidence[0]


@pytest.mark.parametrize("asks", [False, True])
def test_an_engine_that_speaks_tls_is_probed_if_it_is_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asks: bool
) -> None:
    authority, stranger = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    own = authority.sign("gateway")
    shown = ["--cert-file", str(own.cert), "--key-file", str(own.key)] if asks else []

    async def probe(ca_file: Path) -> int:
        async with encrypted(FakeEngine(metrics=""), authority, asks=asks) as port:
            url = f"https://localhost:{port}"
            words = ["engines", "probe", url, "--model", "m", "--ca-file", str(ca_file), *shown]
            return await asyncio.to_thread(main, words)

    # It is no vLLM, so nothing can be told of it: but it was spoken to.
    assert asyncio.run(probe(authority.file)) == 1
    assert "does not say what runs" in capsys.readouterr().out
    assert asyncio.run(probe(stranger.file)) == 1
    said = capsys.readouterr().out
    assert "did not answer" in said
    assert "  this says nothing of how it schedules: try again" in said


@pytest.mark.parametrize(
    ("url", "flags", "reason"),
    [
        ("https://h:1", ["--ca-file", "gone.crt"], "--ca-file: gone.crt can't be read"),
        ("https://h:1", ["--cert-file", "a"], "--cert-file and --key-file need each other"),
        ("http://h:1", ["--ca-file", "gone.crt"], "http://h:1: --ca-file"),
    ],
)
def test_a_probe_with_files_that_cannot_be_used_is_wrong_usage(
    capsys: pytest.CaptureFixture[str], url: str, flags: list[str], reason: str
) -> None:
    assert main(["engines", "probe", url, "--model", "m", *flags]) == 2
    assert capsys.readouterr().err.startswith(f"error: {reason}")


class Slow:
    """An engine that shows these counts of running and waiting, look by look."""

    def __init__(self, *looks: tuple[float, float]) -> None:
        self.looks = list(looks)

    async def page(self) -> Scrape:
        running, waiting = self.looks.pop(0)
        return Scrape(running=running, waiting=waiting)


@pytest.mark.parametrize(
    ("looks", "full"),
    [
        ([*(20 * [(3, 1)]), (8, 0)], False),  # they come slowly, and all find a seat
        ([(5, 3), (7, 1), (8, 0)], False),  # who has just come waits for a step
        ([(4, 2), (4, 4), (4, 3), (4, 4), (4, 4), (4, 4)], True),
    ],
)
async def test_seats_are_full_when_all_have_come_and_some_go_on_waiting(
    monkeypatch: pytest.MonkeyPatch, looks: list[tuple[float, float]], full: bool
) -> None:
    monkeypatch.setattr(capability, "POLL_S", 0.0)
    engine: Any = Slow(*looks)
    assert await _some_wait(engine, _Tasks(), 8) is full
    assert engine.looks == []


async def test_seats_are_freed_until_those_who_are_queued_have_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capability, "POLL_S", 0.0)
    tasks, freed = _Tasks(), asyncio.Semaphore(0)

    async def seat() -> float:
        try:
            return await asyncio.Event().wait()
        finally:
            freed.release()

    async def start() -> float:
        for _ in range(995):
            await freed.acquire()
        return 0.0

    tasks.fillers = [tasks.start(seat()) for _ in range(2000)]
    queued = tasks.start(start())
    await asyncio.sleep(0)
    await tasks.release_fillers(1000, [queued])
    # 992 of those who wait at once, then one by one; nobody waits for the other thousand.
    assert queued.done()
    assert sum(task.cancelling() > 0 for task in tasks.all) < 1010
    await tasks.cancel()


async def test_an_experiment_that_takes_too_long_is_given_up() -> None:
    async with listening(FakeEngine(hangs=True)) as port:
        report = await probe_priority(f"http://127.0.0.1:{port}", "m", timeout_s=0.1)
    assert report.evidence == ("not over in 0.1 s",)
    assert "a longer --timeout" in str(report.advice)


def test_a_policy_is_found_where_releases_put_it() -> None:
    assert policy_of({"vllm_config": {"scheduler_config": {"policy": "priority"}}}) == "priority"
    assert policy_of({"scheduler_config": {"policy": "fcfs"}}) == "fcfs"
    assert policy_of({"vllm_config": "SchedulerConfig(policy='priority')"}) is None
    assert policy_of([]) is None


@given(st.integers(), st.binary())
def test_an_answer_that_is_not_understood_verifies_nothing(status: int, body: bytes) -> None:
    assert stated(status, body) is PriorityState.UNVERIFIED
