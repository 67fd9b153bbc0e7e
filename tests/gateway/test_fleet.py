"""The engines of a gateway: which there are, what is seen of them, and what follows."""

import asyncio
import io
import json
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gateway.admission import Admission
from gateway.domain import AdmissionMode, EngineLimits, FlowKey, MisuseError, Outcome, Refused
from gateway.endpoint import EngineTlsError
from gateway.fleet import Fleet
from gateway.journal import Journal
from gateway.lifetime import Ending
from gateway.membership import topology
from gateway.turnstile import Turnstile
from gateway.verdicts import Offer
from tests.gateway.certificates import Authority
from tests.gateway.fake_engine import FakeEngine, listening, page
from tests.gateway.minimal import CONFIG, settings
from tests.gateway.scripted import eventually

PROBE = "[probe]\ninterval_s = 0.01\nfailures = 1\nstall_s = 0.05\n"
BASE = PROBE + CONFIG


@dataclass
class World:
    """A fleet before a real core, and what it told."""

    folder: Path
    config: str
    fleet: Fleet
    turnstile: Turnstile
    log: io.BytesIO
    journal: Journal
    found: list[str]

    def events(self, word: str) -> list[dict[str, Any]]:
        """The log's lines of one kind; the journal ends by asking."""
        self.journal.close()
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [line for line in lines if line["event"] == word]

    def usable(self) -> set[str]:
        return {view.engine for view in self.turnstile.core.engine_views() if view.usable}

    async def enter(self, tokens: int = 10) -> Any:
        key = FlowKey("m", "short", "interactive")
        offer = Offer(key, "alice", tokens, asyncio.get_running_loop().time())
        return await self.turnstile.enter(offer, AdmissionMode.ENFORCE, Ending())

    def use(self, config: str, **changes: Any) -> None:
        fresh = replace(settings(self.folder, config), **changes)
        self.fleet.use(fresh, fresh.route_table(b"salt"), fresh.flows)


@asynccontextmanager
async def world(folder: Path, config: str, found: Sequence[str] = ()) -> AsyncIterator[World]:
    """A fleet that runs; ``found`` is what looking any name up gives."""
    known = settings(folder, config)
    table = known.route_table(b"salt")
    clock = asyncio.get_running_loop().time
    empty = topology(table, {pool: {} for pool in known.document.pool}, {})
    turnstile = Turnstile(Admission(known.flows, empty, clock()), clock, lambda *_: None)
    log = io.BytesIO()
    journal, answers = Journal(log), list(found)

    async def look_up(_: str) -> Sequence[str]:
        if not answers:
            raise OSError("no such name")
        return tuple(answers)

    fleet = Fleet(known, table, turnstile, journal, clock, look_up)
    running = asyncio.ensure_future(fleet.run())
    try:
        yield World(folder, config, fleet, turnstile, log, journal, answers)
    finally:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        fleet.close()
        turnstile.close()
        journal.close()


def engines(*ports: int, more: str = "") -> str:
    """The configuration with pool ``a`` of these engines."""
    named = json.dumps([f"http://127.0.0.1:{port}" for port in ports])
    return BASE.replace('["http://127.0.0.1:8001"]', f"{named}\n{more}")


def by_dns(**keys: Any) -> str:
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    return BASE.replace('engines = ["http://127.0.0.1:8001"]', f'dns = "http://vllm:1"\n{lines}')


@asynccontextmanager
async def several(*all_: FakeEngine) -> AsyncIterator[list[int]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(listening(engine)) for engine in all_]


# -- what is seen of them --------------------------------------------------------------------


async def test_an_engine_serves_once_it_was_probed_and_not_while_it_is_stalled(
    tmp_path: Path,
) -> None:
    engine = FakeEngine(metrics=page(start=1.0, steps=5, running=1))
    async with several(engine) as (port,), world(tmp_path, engines(port)) as gate:
        url = f"http://127.0.0.1:{port}"
        assert gate.usable() == set()
        assert await gate.fleet.first_round(5.0)
        assert gate.usable() == {url}
        await eventually(lambda: gate.usable() == set())
        assert gate.fleet.status()[0]["progress"] == "stalled"
        engine.metrics = page(start=1.0, steps=6, running=1)
        await eventually(lambda: gate.usable() == {url})
        engine.metrics = page(start=1.0, steps=6, running=0)
        down, *_ = gate.events("engine_down")
    assert down["reason"].startswith("no progress: 1 running")


async def test_a_restart_drops_idle_connections_and_what_was_learnt(tmp_path: Path) -> None:
    engine = FakeEngine(metrics=page(start=1.0))
    async with several(engine) as (port,), world(tmp_path, engines(port)) as gate:
        await gate.fleet.first_round(5.0)
        (client,) = gate.fleet.clients.values()
        exchange = client.exchange(b"GET", b"/health")
        await exchange.start()
        assert await exchange.read() == b""
        assert client.idle == 1
        (ledger,) = gate.turnstile.core.engines.values()
        ledger.rate = 5.0
        engine.metrics = page(start=2.0)
        await eventually(lambda: client.idle == 0)
        assert ledger.rate == 39_000.0
        assert ledger.slot_limit < 128  # it ramps
        (restart,) = gate.events("engine_restarted")
    assert restart["epoch"] == 2


async def test_an_address_that_is_several_engines_is_said_to_be(tmp_path: Path) -> None:
    engine = FakeEngine(metrics=page(start=1.0))
    async with several(engine) as (port,), world(tmp_path, engines(port)) as gate:
        await gate.fleet.first_round(5.0)

        async def turn(number: int) -> None:
            engine.metrics = page(start=float(number % 2))
            before = len(engine.requests)
            await eventually(lambda: len(engine.requests) > before + 3)

        for number in range(4):
            await turn(number)
        assert gate.fleet.status()[0]["not_one_engine"]
        assert gate.usable()  # it is served all the same
        assert len(gate.events("not_one_engine")) == 1
        assert len(gate.events("engine_restarted")) == 1


async def test_engines_that_are_there_at_the_start_do_not_ramp_and_later_ones_do(
    tmp_path: Path,
) -> None:
    first, second = FakeEngine(), FakeEngine()
    async with several(first, second) as (one, two):
        config = engines(one, more="max_engines = 2")
        async with world(tmp_path, config) as gate:
            await gate.fleet.first_round(5.0)
            urls = [f"http://127.0.0.1:{port}" for port in (one, two)]
            await gate.fleet.change_pool("a", urls)
            await eventually(lambda: gate.usable() == set(urls))
            views = {v.engine: v.slot_limit for v in gate.turnstile.core.engine_views()}
            assert views[urls[0]] == 128
            assert views[urls[1]] < 128


async def test_adapted_limits_follow_the_engine_and_never_rise_above_the_configured(
    tmp_path: Path,
) -> None:
    engine = FakeEngine(metrics=page(start=1.0, preemptions=0, kv_usage=0.2, waiting=0, running=1))
    config = "[adaptation]\nenabled = true\n" + engines(0)
    async with (
        several(engine) as (port,),
        world(tmp_path, config.replace(":0", f":{port}")) as gate,
    ):
        await gate.fleet.first_round(5.0)
        (ledger,) = gate.turnstile.core.engines.values()
        engine.metrics = page(start=1.0, preemptions=9, kv_usage=0.99, waiting=0, running=1)
        await eventually(lambda: ledger.limits.slots == 102)
        assert ledger.limits.prefill_tokens == 16383 + 8192 + 2 * 8192
        assert ledger.configured.slots == 128
        gate.use(gate.config.replace(":0", f":{port}"))  # a reload that changes nothing keeps it
        assert ledger.limits.slots == 102
        engine.metrics = page(start=2.0, preemptions=0, kv_usage=0.2, waiting=0, running=1)
        await eventually(lambda: ledger.limits.slots == 128)
        (told,) = gate.events("limits_adapted")
    assert told["slots"] == 102


# -- which there are -------------------------------------------------------------------------


async def test_addresses_of_a_name_come_and_go_and_running_work_is_left_alone(
    tmp_path: Path,
) -> None:
    all_ = [FakeEngine() for _ in range(3)]
    async with several(*all_) as ports:
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        config = by_dns(dns_interval_s=0.05, max_engines=3)
        async with world(tmp_path, config, urls[:1]) as gate:
            assert await gate.fleet.first_round(5.0)
            assert gate.usable() == {"a#0"}
            held = await gate.enter()
            gate.found[:] = urls[1:]
            await _look(gate)
            await eventually(lambda: gate.usable() == {"a#1", "a#2"})
            # Its work runs on under the name, which is nobody else's until it has ended.
            assert held.engine in gate.fleet.clients
            gate.found[:] = urls
            await _look(gate)
            assert set(gate.fleet.engines) == {"a#1", "a#2"}
            gate.turnstile.give_back(held)
            await _look(gate)
            await eventually(lambda: gate.usable() == {"a#0", "a#1", "a#2"})
            assert set(gate.fleet.clients) == {"a#0", "a#1", "a#2"}
            assert set(gate.turnstile.core.engines) == {"a#0", "a#1", "a#2"}
            gate.found[:] = urls[:2]
            await _look(gate)
            await eventually(lambda: set(gate.fleet.clients) == {"a#0", "a#1"})


async def _look(gate: World) -> None:
    gate.fleet._looked_s.clear()
    await gate.fleet._resolve()


async def test_a_name_that_can_not_be_looked_up_keeps_the_engines_there_are(
    tmp_path: Path,
) -> None:
    engine = FakeEngine()
    async with several(engine) as (port,):
        url = f"http://127.0.0.1:{port}"
        async with world(tmp_path, by_dns(dns_interval_s=0.05), [url]) as gate:
            await gate.fleet.first_round(5.0)
            gate.found.clear()
            await _look(gate)
            await _look(gate)
            assert gate.usable() == {"a#0"}
            gate.found.append(url)
            await _look(gate)
            assert len(gate.events("lookup_failed")) == 1
            assert len(gate.events("lookup_works_again")) == 1


async def test_a_pool_without_an_address_yet_has_no_engine(tmp_path: Path) -> None:
    async with world(tmp_path, by_dns(), ()) as gate:
        assert await gate.fleet.first_round(5.0)
        assert gate.fleet.pools == {"a": ()}
        with pytest.raises(Refused) as refused:
            await gate.enter()
        assert refused.value.outcome is Outcome.NO_ENGINE


async def test_an_operator_gives_a_pool_other_engines_and_what_runs_ends_where_it_is(
    tmp_path: Path,
) -> None:
    first, second = FakeEngine(), FakeEngine()
    async with several(first, second) as (one, two):
        urls = [f"http://127.0.0.1:{port}" for port in (one, two)]
        config = engines(one)
        async with world(tmp_path, config) as gate:
            await gate.fleet.first_round(5.0)
            held = await gate.enter()
            await gate.fleet.change_pool("a", urls[1:])
            await eventually(lambda: gate.usable() == {urls[1]})
            later = await gate.enter()
            assert (held.engine, later.engine) == (urls[0], urls[1])
            assert set(gate.fleet.clients) == set(urls)
            gate.use(config.replace("slots = 128", "slots = 100"))
            assert gate.fleet.pools == {"a": (urls[1],)}  # the pool's own keys are as before
            assert gate.turnstile.core.engines[urls[1]].limits.slots == 100
            gate.turnstile.give_back(held)
            gate.turnstile.give_back(later)
            await eventually(lambda: set(gate.fleet.clients) == {urls[1]})
            gate.use(engines(one, two))
            assert gate.fleet.pools == {"a": tuple(urls)}
            (told,) = gate.events("pool_changed")
    assert (told["before"], told["engines"]) == (urls[:1], urls[1:])


@pytest.mark.parametrize(
    ("pool", "named", "reason"),
    [
        ("b", ["http://127.0.0.1:1"], "no pool 'b'"),
        ("a", [], "at least one"),
        ("a", ["http://127.0.0.1:1"] * 2, "once"),
        ("a", ["http://127.0.0.1:1", "http://127.0.0.1:2"], "may have 1 engines"),
        ("a", ["127.0.0.1"], "'127.0.0.1'"),
    ],
)
async def test_engines_that_a_pool_can_not_have_change_nothing(
    tmp_path: Path, pool: str, named: list[str], reason: str
) -> None:
    async with world(tmp_path, engines(9)) as gate:
        with pytest.raises(ValueError, match=reason):
            await gate.fleet.change_pool(pool, named)
        assert gate.fleet.pools == {"a": ("http://127.0.0.1:9",)}


async def test_a_configuration_that_does_not_hold_together_changes_nothing(tmp_path: Path) -> None:
    async with world(tmp_path, engines(9)) as gate:
        fresh = settings(tmp_path, engines(9, 7))
        with pytest.raises(MisuseError):
            gate.fleet.use(fresh, fresh.route_table(b"salt"), (*fresh.flows, fresh.flows[0]))
        assert gate.fleet.pools == {"a": ("http://127.0.0.1:9",)}
        assert set(gate.fleet.clients) == set(gate.turnstile.core.engines) == {"http://127.0.0.1:9"}


async def test_limits_that_an_operator_adjusts_are_those_in_force(tmp_path: Path) -> None:
    async with world(tmp_path, engines(9)) as gate:

        def halved(_: str, limits: EngineLimits) -> EngineLimits:
            return replace(limits, slots=limits.slots // 2)

        known = settings(tmp_path, engines(9))
        table = known.route_table(b"salt")
        gate.fleet.use(known, table, known.flows, halved)
        assert gate.fleet.engines["http://127.0.0.1:9"].slots == 64
        assert gate.fleet.configured(known, table)["http://127.0.0.1:9"].slots == 128
        assert gate.turnstile.core.engine_views()[0].slot_limit == 64


# -- who is who ------------------------------------------------------------------------------

TWO_POOLS = """
[pool.b]
engines = ["OTHER"]
[[route]]
model = "m"
size = "long"
pool = "b"
"""


def isolated(one: str, other: str) -> str:
    whole = BASE.replace('["http://127.0.0.1:8001"]', json.dumps([one]))
    routes = whole.replace('size = "long"\npool = "a"\n', 'size = "long"\npool = "b"\n')
    pool = f"[pool.b]\nengines = {json.dumps([other])}\n"
    return 'isolation = "required"\n' + routes.replace("[[route]]", f"{pool}[[route]]", 1)


async def test_two_names_of_one_address_are_found_out_at_the_start(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with several(engine) as (port,):
        config = isolated(f"http://127.0.0.1:{port}", f"http://localhost:{port}")
        async with world(tmp_path, config) as gate:
            await gate.fleet.first_round(5.0)
            fault = gate.fleet.isolation_fault()
            assert fault is not None
            assert f"the same address 127.0.0.1:{port}" in fault
            assert gate.fleet.status()[0]["same_as"] == [f"http://localhost:{port}"]
            (told,) = gate.events("engines_are_one")
    assert told["pools"] == ["a", "b"]


async def test_two_addresses_of_one_process_are_found_out_by_what_they_say(tmp_path: Path) -> None:
    engine = FakeEngine(metrics=page(start=1700.5, cpu=7.25, blocks=100))
    async with several(engine, engine) as ports:
        config = isolated(*(f"http://127.0.0.1:{port}" for port in ports))
        async with world(tmp_path, config) as gate:
            await gate.fleet.first_round(5.0)
            assert "the same process start" in (gate.fleet.isolation_fault() or "")


@pytest.mark.parametrize(("start", "cpu"), [(1701.5, 7.25), (1700.5, 7.5), (1700.5, 6.0)])
async def test_two_engines_are_two_also_where_they_started_at_once(
    tmp_path: Path, start: float, cpu: float
) -> None:
    first = FakeEngine(metrics=page(start=1700.5, cpu=7.25, blocks=100))
    second = FakeEngine(metrics=page(start=start, cpu=cpu, blocks=100))
    async with several(first, second) as ports:
        config = isolated(*(f"http://127.0.0.1:{port}" for port in ports))
        async with world(tmp_path, config) as gate:
            await gate.fleet.first_round(5.0)
            assert gate.fleet.isolation_fault() is None
            assert [row["same_as"] for row in gate.fleet.status()] == [[], []]


def with_policy(policy: str) -> Callable[[int], str]:
    return lambda port: engines(port).replace(
        "token_budget = 8192\n", f'token_budget = 8192\npolicy = "{policy}"\n'
    )


@pytest.mark.parametrize(
    ("policy", "says", "state"),
    [
        ("fcfs", '{"vllm_config": {"scheduler_config": {"policy": "priority"}}}', "not_asked"),
        ("priority", '{"vllm_config": {"scheduler_config": {"policy": "priority"}}}', "verified"),
        ("priority", '{"vllm_config": {"scheduler_config": {"policy": "fcfs"}}}', "contradicted"),
        ("priority", "not JSON", "unverified"),
        ("priority", None, "unverified"),
    ],
)
async def test_what_an_engine_says_of_its_priorities_is_told_and_never_assumed(
    tmp_path: Path, policy: str, says: str | None, state: str
) -> None:
    engine = FakeEngine(answers={} if says is None else {"/server_info": says})
    async with several(engine) as (port,), world(tmp_path, with_policy(policy)(port)) as gate:
        await gate.fleet.first_round(5.0)
        assert gate.fleet.priority(f"http://127.0.0.1:{port}") == state
        assert gate.fleet.status()[0]["priority"] == state
        told = [event["state"] for event in gate.events("engine_priority")]
    assert told == ([] if state == "not_asked" else [state])


async def test_an_engine_that_did_not_answer_in_time_is_asked_for_its_policy_again(
    tmp_path: Path,
) -> None:
    says = {"/server_info": '{"vllm_config": {"scheduler_config": {"policy": "priority"}}}'}
    engine = FakeEngine(answers=says, hangs_at="/server_info")
    async with several(engine) as (port,), world(tmp_path, with_policy("priority")(port)) as gate:
        await gate.fleet.first_round(5.0)
        assert gate.fleet.priority(f"http://127.0.0.1:{port}") == "unverified"
        engine.hangs_at = "no path"
        await gate.fleet.first_round(5.0)
        assert gate.fleet.priority(f"http://127.0.0.1:{port}") == "verified"
        assert [event["state"] for event in gate.events("engine_priority")] == ["verified"]


async def test_a_request_that_is_late_for_a_vanished_class_is_told_so(tmp_path: Path) -> None:
    async with world(tmp_path, engines(9)) as gate:
        known = settings(tmp_path, engines(9))
        table = known.route_table(b"salt")
        left = [s for s in known.flows if s.service_class != "interactive"]
        gate.fleet.use(known, table, left)
        with pytest.raises(Refused) as refused:
            await gate.enter()
        assert refused.value.outcome is Outcome.NOT_FOUND


async def test_certificates_that_were_renewed_are_read_on_a_reload_and_bad_ones_change_nothing(
    tmp_path: Path,
) -> None:
    before, after = Authority(tmp_path / "before"), Authority(tmp_path / "after")
    signed = after.sign("engine")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(signed.cert, signed.key)
    trusted = tmp_path / "ca.crt"
    trusted.write_bytes(before.file.read_bytes())
    server = await asyncio.start_server(FakeEngine().serve, "127.0.0.1", 0, ssl=context)
    async with server:
        url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
        config = engines(9).replace("http://127.0.0.1:9", url)
        config += '[upstream.tls]\nca_file = "ca.crt"\n'
        async with world(tmp_path, config) as gate:
            await gate.fleet.first_round(5.0)
            assert "CERTIFICATE_VERIFY_FAILED" in gate.fleet.status()[0]["reason"]
            trusted.write_bytes(after.file.read_bytes())
            known = settings(tmp_path, config)
            gate.fleet.use(known, known.route_table(b"salt"), known.flows)
            await eventually(lambda: gate.usable() == {url})
            fresh = settings(tmp_path, config)
            trusted.write_text("no certificate")
            with pytest.raises(EngineTlsError):
                gate.fleet.use(fresh, fresh.route_table(b"salt"), fresh.flows)
            assert gate.usable() == {url}
            gate.fleet.use(known, known.route_table(b"salt"), known.flows)  # limits alone
            assert gate.usable() == {url}
