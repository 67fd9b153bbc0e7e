"""A real Prometheus scrapes the gateway, and the queries of the runbook answer."""

import asyncio
import contextlib
import json
import math
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.harness import ROOT, Front, caller, chat, eventually, ids

PROMETHEUS = shutil.which("prometheus")
pytestmark = pytest.mark.skipif(
    PROMETHEUS is None,
    reason="Prometheus is not installed (Debian: apt install prometheus)",
)

SCRAPES = "scrape_interval: 200ms\n  scrape_timeout: 200ms\n  evaluation_interval: 1s"
CONFIG = """global:
  {scrapes}
scrape_configs:
  - job_name: sluicegate
    static_configs:
      - targets: ["{target}"]
"""


def readme_queries() -> list[str]:
    """The queries of the runbook's promql block, one a line, comments left out."""
    block = re.search(r"```promql\n(.*?)```", (ROOT / "deploy/runbook.md").read_text(), re.DOTALL)
    assert block is not None
    lines = [line.strip() for line in block[1].splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


@contextlib.contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """Prometheus scraping ``target``; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = folder / "prometheus.yml"
    config.write_text(CONFIG.format(scrapes=SCRAPES, target=target))
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                str(PROMETHEUS),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


async def ask(url: str, path: str, **params: str) -> Any:
    async with caller() as client:
        answer = await client.get(f"{url}/api/v1/{path}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


@contextlib.asynccontextmanager
async def traffic(gateway: Front) -> AsyncIterator[None]:
    """Short and long prompts, streamed and not, and a refusal, over and over."""

    async def go_on() -> None:
        while True:
            async with gateway.stream(chat(max_tokens=8)) as stream:
                await stream.rest()
            assert (await gateway.ask(ids(1000), "/v1/completions")).status_code == 200
            assert (await gateway.ask(chat(), key="only-other")).status_code == 403
            await asyncio.sleep(0.02)

    task = asyncio.ensure_future(go_on())
    try:
        yield
    finally:
        if not task.done():
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_the_readmes_queries_answer(plain: Front, tmp_path: Path) -> None:
    queries = readme_queries()
    assert len(queries) >= 6
    with prometheus(tmp_path, plain.admin_url.removeprefix("http://")) as url:

        async def scraped() -> bool:
            try:
                return bool((await ask(url, "query", query="up == 1"))["result"])
            except (httpx.TransportError, AssertionError):  # it is still starting
                return False

        await eventually(scraped, 20.0)
        async with traffic(plain):
            waiting = set(queries)

            async def all_answer() -> bool:
                for query in list(waiting):
                    found = (await ask(url, "query", query=query))["result"]
                    values = [float(row["value"][1]) for row in found]
                    if values and not any(math.isnan(value) for value in values):
                        waiting.discard(query)
                return not waiting

            try:
                await eventually(all_answer, 30.0)
            except TimeoutError:
                pytest.fail(f"no answer to {json.dumps(sorted(waiting), indent=1)}")
        targets = (await ask(url, "targets"))["activeTargets"]
        assert [t["lastError"] for t in targets] == [""]
