"""``sluicegate routes rehearse``: the real command, by itself and on a running gateway."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gateway.manifest import canonical
from gateway.rehearsal_verdict import unsealed, with_client
from loadgen.engine.launch import EngineProcess
from tests.e2e.configs import ADMIN_TOKEN, Served, toml, write_config
from tests.e2e.conftest import FAST, Engines
from tests.e2e.harness import LIMIT_S, ROOT, Front, caller, chat, front
from tests.e2e.processes import alive, descendants, none_left
from tests.e2e.rollout import CALLERS, OTHER, ROUTE, STABLE, route, routes

# A machine that is busy with other tests is slow: only what a rehearsal decides is asked here.
SLOW_MACHINE = (
    "ttft_attainment=0", "stall_attainment=0", "oldest_age_s=60", "recovery_s=60", "min_count=3",
    "warm_probe_ratio=60",
)  # fmt: skip
SIZES = {"short": {"max_prompt_tokens": 600}, "long": {"max_prompt_tokens": 9000}}


def flags(*given: str) -> list[str]:
    limits = [word for text in SLOW_MACHINE for word in ("--limit", text)]
    return [sys.executable, "-m", "gateway", "routes", "rehearse", *limits, *given]


class Rehearsing:
    """A running command, and what it printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def until(self, words: str) -> None:
        """Read until a line has these words."""
        assert self.process.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            while line := (await self.process.stdout.readline()).decode():
                self.lines.append(line)
                if words in line:
                    return
        raise AssertionError(f"{words!r} is not in {''.join(self.lines)}")

    async def ends(self) -> tuple[int, str]:
        """Its exit code, and all of its output."""
        async with asyncio.timeout(LIMIT_S):
            rest, _ = await self.process.communicate()
        return self.process.returncode or 0, "".join(self.lines) + rest.decode()


@asynccontextmanager
async def rehearsing(*given: str) -> AsyncIterator[Rehearsing]:
    process = await asyncio.create_subprocess_exec(
        *flags(*given),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SLUICEGATE_ADMIN_TOKEN": ADMIN_TOKEN},
    )
    try:
        yield Rehearsing(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def live(gateway: Front, *given: str) -> tuple[str, ...]:
    return (ROUTE, "--live", "--admin-url", gateway.admin_url, "--to", OTHER, "--yes", *given)


async def rehearsals(gateway: Front) -> list[dict[str, Any]]:
    async with caller() as client:
        headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
        answer = await client.get(f"{gateway.admin_url}/admin/rehearsals", headers=headers)
    rows: list[dict[str, Any]] = answer.json()["rehearsals"]
    return rows


@asynccontextmanager
async def traffic(gateway: Front, callers: int = 6) -> AsyncIterator[None]:
    """Callers that ask all the time, whatever they are answered."""

    async def ask(key: str) -> None:
        async with caller() as client:
            while True:
                body, headers = chat(max_tokens=8), gateway.headers(key)
                await client.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers)

    tasks = [asyncio.ensure_future(ask(key)) for key in CALLERS[:callers]]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def configured(folder: Path, stable: str, other: str) -> tuple[Path, dict[str, str]]:
    grants = {name: {"service_class": "interactive"} for name in CALLERS}
    model = {"simulated": Served([stable], max_model_len=16384)}
    path, keys = write_config(folder, model, grants, size=SIZES, state={"directory": "state"})
    with path.open("a") as file:
        file.write(toml({OTHER: {"engines": [other]}}, "pool."))
    return path, keys


@pytest.fixture(scope="module")
def pair(engines: Engines) -> list[EngineProcess]:
    return engines(FAST, FAST)


@pytest.fixture(scope="module")
def gateway(pair: list[EngineProcess], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    urls = [engine.url for engine in pair]
    path, keys = configured(tmp_path_factory.mktemp("rehearsed"), *urls)
    with front(path, keys, urls) as running:
        yield running


async def as_it_was(gateway: Front) -> None:
    row = await route(gateway)
    assert (row["stable"], row["candidate"], row["candidate_weight"]) == (STABLE, None, 0)
    seen = await routes(gateway)
    assert not any(pool["draining"] for pool in seen["pools"].values())
    assert not any(row["draining"] for row in seen["routes"])


@pytest.mark.slow
async def test_by_itself_it_starts_everything_rehearses_and_leaves_a_sealed_record(
    tmp_path: Path,
) -> None:
    out = tmp_path / "rehearsal.json"
    scale = ("--time-scale", "2", "--rate", "3", "--engines", "1", "--hold", "2")
    async with rehearsing("demo/short", "--out", str(out), *scale) as command:
        code, text = await command.ends()
    assert code == 0, text
    record = unsealed(json.loads(out.read_text()))
    assert (record["verdict"], record["synthetic"], record["why"]) == ("pass", True, [])
    assert record["load"]["trace_sha256"]
    assert record["load"]["corpus_sha256"]
    assert {e["pool"] for e in record["engines"]} == {"baseline", "candidate"}
    assert {e["version"] for e in record["engines"]} == {"0.32.0+simulated"}
    assert record["table_digest"]["before"] == record["table_digest"]["after"]
    steps = ("before", "canary", "flip", "rollback", "drain", "undrain", "after")
    assert [record["revisions"][step] for step in steps] == [1, 2, 3, 4, 5, 6, 6]
    before, canary, flip, back = record["phases"]
    assert (set(before["by_pool"]), set(flip["by_pool"])) == ({"baseline"}, {"candidate"})
    assert canary["by_pool"]["candidate"] >= 3
    assert set(canary["by_pool"]) <= {"baseline", "candidate"}
    assert set(back["by_pool"]) == {"baseline"}
    assert record["client"]["failed"] == 0
    assert "PASS  (synthetic" in text


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own signal")
async def test_one_that_is_killed_outright_leaves_no_gateway_no_engine_and_no_load() -> None:
    async with rehearsing("demo/short", "--engines", "1", "--rate", "3") as command:
        await command.until("before: all")
        started = descendants(command.process.pid)
        assert len(alive(started)) >= 4  # two engines, the gateway, the load and its workers
        command.process.kill()
        await command.process.wait()
    assert await asyncio.to_thread(none_left, started)


@pytest.mark.parametrize("words", ["before: all", "canary: 50%", "flip: all", "rollback: all"])
async def test_ctrl_c_in_any_phase_puts_the_routes_back_before_it_leaves(
    gateway: Front, words: str
) -> None:
    async with traffic(gateway), rehearsing(*live(gateway, "--hold", "0.6")) as command:
        await command.until(words)
        command.process.send_signal(signal.SIGINT)
        code, text = await command.ends()
    assert code == 130, text
    nothing = words.startswith("before")
    assert ("nothing had been moved" if nothing else "the routes are back as they were") in text
    await as_it_was(gateway)
    assert (await rehearsals(gateway))[0]["state"] == "stopped"


async def test_who_moves_the_route_meanwhile_has_the_last_word(gateway: Front) -> None:
    async with traffic(gateway), rehearsing(*live(gateway, "--hold", "1")) as command:
        await command.until("flip: all")
        async with caller() as client:
            back = {"action": "rollback", "route": ROUTE, "to_revision": 1, "why": "no"}
            headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
            url = f"{gateway.admin_url}/admin/routes"
            assert (await client.post(url, json=back, headers=headers)).status_code == 200
        code, text = await command.ends()
    assert code == 1, text
    assert "tests moved the route meanwhile (rollback): no" in text
    await as_it_was(gateway)


@pytest.mark.parametrize(
    ("number", "state", "why"),
    [
        (signal.SIGKILL, "cut_off", "the route was taken back at its start"),
        (signal.SIGTERM, "stopped", "the gateway ends"),
    ],
)
async def test_a_gateway_that_ends_in_the_middle_has_its_route_taken_back(
    pair: list[EngineProcess], tmp_path: Path, number: signal.Signals, state: str, why: str
) -> None:
    urls = [engine.url for engine in pair]
    path, keys = configured(tmp_path, *urls)
    with front(path, keys, urls) as first:
        async with traffic(first), rehearsing(*live(first, "--hold", "0.5")) as command:
            await command.until("flip: all")
            assert first.process is not None
            first.process.send_signal(number)
            await asyncio.to_thread(first.process.wait, LIMIT_S)
            await command.ends()
    with front(path, keys, urls) as second:
        await as_it_was(second)
        row = (await rehearsals(second))[0]
        assert (row["state"], why in row["why"]) == (state, True), row


async def test_it_is_refused_where_the_baseline_is_down_and_says_what_is(
    pair: list[EngineProcess], tmp_path: Path
) -> None:
    path, keys = configured(tmp_path, "http://127.0.0.1:9", pair[1].url)
    with front(path, keys, [pair[1].url]) as gateway:
        async with rehearsing(*live(gateway)) as command:
            code, text = await command.ends()
        assert code == 2, text
        assert "pool 'pool-0': no engine of it is up, so it could not take back" in text
        await as_it_was(gateway)


async def test_how_late_a_warm_probe_may_be_is_a_limit_like_the_others(gateway: Front) -> None:
    strict = live(gateway, "--limit", "warm_probe_ratio=0.000001")
    async with rehearsing(*strict) as command:
        code, text = await command.ends()
    assert code == 2, text
    assert "could not take the load back" in text
    assert ", later than " in text
    await as_it_was(gateway)


async def test_a_reload_that_moves_the_route_meanwhile_has_the_last_word(
    pair: list[EngineProcess], tmp_path: Path
) -> None:
    urls = [engine.url for engine in pair]
    path, keys = configured(tmp_path, *urls)
    with front(path, keys, urls) as gateway:
        async with traffic(gateway), rehearsing(*live(gateway, "--hold", "1")) as command:
            await command.until("canary: ")
            text = path.read_text()
            old, new = (f'"size" = "short"\n"pool" = "{name}"' for name in (STABLE, OTHER))
            assert text.count(old) == 1
            path.write_text(text.replace(old, new))
            async with caller() as client:
                headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
                url = f"{gateway.admin_url}/admin/reload"
                assert (await client.post(url, json={}, headers=headers)).status_code == 200
            code, said = await command.ends()
        assert code == 1, said
        assert "the configuration moved the route meanwhile (reload)" in said
        assert (await route(gateway))["stable"] == OTHER


async def test_a_canary_that_nobody_went_to_fails_and_the_candidate_of_the_file_is_back(
    pair: list[EngineProcess], tmp_path: Path
) -> None:
    urls = [engine.url for engine in pair]
    path, keys = configured(tmp_path, *urls)
    old = f'"size" = "short"\n"pool" = "{STABLE}"'
    assert path.read_text().count(old) == 1
    new = f'{old}\n"candidate_pool" = "{OTHER}"\n"candidate_weight" = 0.0'
    path.write_text(path.read_text().replace(old, new))
    with front(path, keys, urls) as gateway:
        few = live(gateway, "--hold", "0.7", "--weight", "0.01")  # one caller: not one in 10,000
        async with traffic(gateway, callers=1), rehearsing(*few) as command:
            code, text = await command.ends()
        assert code == 1, text
        assert f"too few requests in the canary phase: {OTHER} served 0, at least 3: " in text
        assert "0 of 1 callers went to it: bring more callers" in text
        assert "too few requests in the flip phase" not in text
        row = await route(gateway)
        assert (row["stable"], row["candidate"], row["candidate_weight"]) == (STABLE, OTHER, 0)
        assert not any(pool["draining"] for pool in (await routes(gateway))["pools"].values())


async def test_a_record_that_says_more_than_the_one_kept_and_its_client_is_refused(
    gateway: Front,
) -> None:
    async with traffic(gateway), rehearsing(*live(gateway, "--hold", "0.5")) as command:
        await command.ends()
    row = (await rehearsals(gateway))[0]
    headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
    url = f"{gateway.admin_url}/admin/rehearsals"
    async with caller() as client:
        kept = (await client.get(f"{url}?id={row['id']}", headers=headers)).json()["record"]
        made = with_client(kept, {"ended": 5, "failed": 0})
        forged = resealed({**made, "verdict": "pass", "why": [], "checks": []})
        unknown = resealed({**made, "id": "nobody", "parent": None})
        for record in (forged, unknown):
            answer = await client.post(url, json={"record": record}, headers=headers)
            assert answer.status_code == 400, answer.text
        answer = await client.post(url, json={"record": made}, headers=headers)
        assert answer.status_code == 200, answer.text
    assert (await rehearsals(gateway))[0]["digest"] == made["digest"]


def resealed(record: dict[str, Any]) -> dict[str, Any]:
    """The record with the digest of its content as it is now."""
    body = {key: value for key, value in record.items() if key != "digest"}
    return {**body, "digest": sha256(canonical(body)).hexdigest()}


async def test_a_candidate_that_dies_fails_it_by_name_and_callers_are_back_at_once(
    gateway: Front, pair: list[EngineProcess], tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("\n".join(gateway.keys.values()))
    load = ("--load", gateway.url, "--load-key-file", str(keys), "--rate", "8")
    async with rehearsing(*live(gateway, "--hold", "1.5", *load)) as command:
        await command.until("flip: all")
        pair[1].kill()  # the last test that needs it
        code, text = await command.ends()
    assert code == 1, text
    assert f"flip: no engine of pool '{OTHER}' is up any more" in text
    await as_it_was(gateway)
    row = (await rehearsals(gateway))[0]
    assert (row["state"], row["result"]) == ("done", "fail")
