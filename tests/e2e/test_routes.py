"""Moving traffic of a running gateway: what waits follows, what runs stays, no crash forgets."""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.admin_flags import TOKEN_VARIABLE
from tests.e2e.configs import ADMIN_TOKEN, Served, write_config
from tests.e2e.harness import LIMIT_S, ROOT, Front, caller, chat, endless, eventually, front

OPERATOR = {"authorization": f"Bearer {ADMIN_TOKEN}"}
SHORT = "simulated/short"
CALLERS = [f"caller-{number}" for number in range(12)]


def config(folder: Path, stable: str, other: str, **changes: Any) -> tuple[Path, dict[str, str]]:
    """Routes to the first engine's pool, a second pool beside it, and a state directory."""
    grants = {name: {"service_class": "interactive"} for name in CALLERS}
    whole = {"state": {"directory": "state"}, **changes}
    path, keys = write_config(folder, {"simulated": Served([stable])}, grants, **whole)
    with path.open("a") as file:
        file.write(f'[pool.next]\nengines = ["{other}"]\n')
    return path, keys


async def move(gateway: Front, **body: Any) -> httpx.Response:
    async with caller() as client:
        url = f"{gateway.admin_url}/admin/routes"
        return await client.post(url, json=body, headers=OPERATOR)


async def routes(gateway: Front) -> dict[str, Any]:
    async with caller() as client:
        found: dict[str, Any] = (
            await client.get(f"{gateway.admin_url}/admin/routes", headers=OPERATOR)
        ).json()
    return found


async def pools(gateway: Front) -> dict[str, str]:
    return {row["route"]: row["stable"] for row in (await routes(gateway))["routes"]}


async def command(gateway: Front, *arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "gateway", *arguments, "--admin-url", gateway.admin_url],
        capture_output=True, text=True, cwd=ROOT, timeout=LIMIT_S, check=False,
        env={**os.environ, TOKEN_VARIABLE: ADMIN_TOKEN},
    )  # fmt: skip


async def test_what_waits_follows_a_flip_and_running_streams_stay(
    slow: str, fast: str, tmp_path: Path
) -> None:
    path, keys = config(
        tmp_path, slow, fast,
        limits={"slots": 2}, flow={"short": {"interactive": {"predict": False}}},
    )  # fmt: skip
    with front(path, keys, [slow, fast]) as gateway:
        async with gateway.stream(endless(n=2)) as running:
            assert await running.next() is not None
            waiting = [asyncio.ensure_future(gateway.ask(chat())) for _ in range(3)]

            async def all_wait() -> bool:
                return sum(flow["depth"] for flow in (await gateway.status())["flows"]) == 3

            await eventually(all_wait)
            done = await command(gateway, "routes", "flip", SHORT, "--to", "next", "--yes")
            assert done.returncode == 0, done.stderr
            assert f"{SHORT}: pool-0 -> next" in done.stdout
            assert [answer.status_code for answer in await asyncio.gather(*waiting)] == 3 * [200]
            assert (await gateway.ask(chat())).status_code == 200
            assert await running.next() is not None
        await gateway.at_rest()
        await eventually(lambda: len(gateway.requests()) == 5)
        by_engine = Counter((row["engine"], row["outcome"]) for row in gateway.requests())
        assert by_engine == {(fast, "completed"): 4, (slow, "client_cancelled"): 1}
        assert (await gateway.status())["route_revision"] == 2
        assert await gateway.total("sluicegate_route_revision") == 2


async def test_of_two_operators_at_once_one_moves_and_the_other_is_told(
    slow: str, fast: str, tmp_path: Path
) -> None:
    path, keys = config(tmp_path, fast, slow)
    with front(path, keys, [slow, fast]) as gateway:
        body = {"revision": 1, "action": "flip", "to": "next"}
        asked = [move(gateway, **body, route=route) for route in (SHORT, "simulated/long")]
        answers = sorted(await asyncio.gather(*asked), key=lambda answer: answer.status_code)
        assert [answer.status_code for answer in answers] == [200, 409]
        assert answers[1].json()["revision"] == 2
        (moved,) = [name for name, pool in (await pools(gateway)).items() if pool == "next"]
        assert answers[0].json()["changed"][0]["route"] == moved
        assert [row["revision"] for row in (await routes(gateway))["history"]] == [2, 1]


async def arms(gateway: Front) -> dict[str, str]:
    """The engine that each caller's request went to."""
    already = len(gateway.requests())
    asked = (gateway.ask(chat(max_tokens=1), key=name) for name in CALLERS)
    assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}
    await eventually(lambda: len(gateway.requests()) == already + len(CALLERS))
    return {row["key_id"]: row["engine"] for row in gateway.requests()[already:]}


async def test_a_killed_gateway_comes_back_with_its_table_and_every_caller_in_its_arm(
    slow: str, fast: str, tmp_path: Path
) -> None:
    path, keys = config(tmp_path, fast, slow)
    with front(path, keys, [fast, slow]) as gateway:
        canary = {"action": "canary", "route": SHORT, "to": "next", "without_record": "a test"}
        answer = await move(gateway, **canary, weight=50, revision=1)
        assert answer.status_code == 200, answer.text
        answer = await move(gateway, action="flip", route="simulated/long", to="next", revision=2)
        assert answer.status_code == 200, answer.text
        assert gateway.process is not None
        before, table = await arms(gateway), await routes(gateway)
        assert set(before.values()) == {fast, slow}
        gateway.process.kill()
    with front(path, keys, [fast, slow]) as gateway:
        again = await routes(gateway)
        for key in ("revision", "table_digest", "routes", "history"):
            assert again[key] == table[key]
        assert (again["state"], await arms(gateway)) == ("ok", before)
        done = await command(gateway, "routes", "rollback", "--yes", "--json")
        assert json.loads(done.stdout)[0]["changed"][0]["route"] == "simulated/long"
        done = await command(gateway, "routes", "audit")
        assert (done.returncode, "chain whole" in done.stdout) == (0, True)


@pytest.mark.parametrize("after_s", [0.05, 0.15])
async def test_a_gateway_killed_in_the_middle_of_moves_has_the_last_one_it_answered(
    slow: str, fast: str, tmp_path: Path, after_s: float
) -> None:
    path, keys = config(tmp_path, fast, slow)
    told = [1]
    with front(path, keys, [slow, fast]) as gateway:
        process = gateway.process
        assert process is not None
        killer = asyncio.get_running_loop().call_later(after_s, process.send_signal, signal.SIGKILL)
        try:
            while True:
                to = "next" if told[-1] % 2 else "pool-0"
                answer = await move(gateway, action="flip", route="simulated", to=to)
                told.append(answer.json()["revision"])
        except httpx.TransportError:
            killer.cancel()
    with front(path, keys, [slow, fast]) as gateway:
        seen = await routes(gateway)
        assert seen["revision"] in {told[-1], told[-1] + 1}
        expected = "next" if seen["revision"] % 2 == 0 else "pool-0"
        assert set((await pools(gateway)).values()) == {expected}
        assert (await gateway.ask(chat())).status_code == 200


async def test_where_the_disk_takes_no_more_moves_are_refused_and_requests_are_served(
    slow: str, fast: str, tmp_path: Path
) -> None:
    path, keys = config(tmp_path, fast, slow)
    with front(path, keys, [slow, fast]) as gateway:
        assert gateway.process is not None
        pid, file = gateway.process.pid, tmp_path / "state" / "state.sqlite"
        _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (file.stat().st_size, most))
        answers, flip = [], {"action": "flip", "route": "simulated", "why": "x" * 1000}
        while not answers or answers[-1].status_code == 200:
            to = "pool-0" if len(answers) % 2 else "next"
            answers.append(await move(gateway, **flip, to=to))
        assert answers[-1].status_code == 503
        assert answers[-1].json()["error"].startswith(f"state: {file}: ")
        seen = await routes(gateway)
        assert (seen["state"], seen["revision"]) == ("read_only", len(answers))
        assert set((await pools(gateway)).values()) == {"pool-0" if to == "next" else "next"}
        assert (await gateway.ask(chat())).status_code == 200
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))
        assert (await move(gateway, **flip, to=to)).status_code == 200
        assert (await routes(gateway))["state"] == "ok"
        done = await command(gateway, "routes", "audit")
        assert (done.returncode, "chain whole" in done.stdout) == (0, True)


async def test_a_second_gateway_on_the_same_state_is_refused_with_file_key_and_reason(
    slow: str, fast: str, tmp_path: Path
) -> None:
    path, keys = config(tmp_path, fast, slow)
    with front(path, keys, [fast]):
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "gateway", "serve", "--config", str(path)],
            capture_output=True, text=True, cwd=ROOT, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    where = tmp_path / "state"
    assert f"error: {path}: state.directory: {where}: another gateway uses" in done.stderr


async def test_engines_come_and_go_in_a_pool_and_nothing_that_runs_is_cut(
    slow: str, fast: str, tmp_path: Path
) -> None:
    path, keys = config(tmp_path, slow, fast)
    with front(path, keys, [slow, fast]) as gateway:
        async with gateway.stream(chat(ignore_eos=True, max_tokens=30)) as running:
            assert await running.next() is not None
            done = await command(gateway, "pools", "set", "pool-0", fast, "--why", "it is faster")
            assert done.returncode == 0, done.stderr
            assert (await gateway.ask(chat())).status_code == 200
            assert (await running.rest())[-1] == "[DONE]"
        await eventually(lambda: len(gateway.requests()) == 2)
        assert {row["engine"] for row in gateway.requests()} == {slow, fast}
        done = await command(gateway, "pools", "show", "--json")
        shown = json.loads(done.stdout)[0]["pools"]["pool-0"]["engines"]
        assert [row["engine"] for row in shown] == [fast]
