"""The Grafana dashboard: every query names what a gateway exports, and shows something."""

import json
import math
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.e2e.harness import Front, eventually
from tests.e2e.test_prometheus import PROMETHEUS, ask, prometheus
from tests.shipping.exported import WITHOUT_SERIES, exported, use
from tests.shipping.shipped import DEPLOY, dashboard, labels_said, panel_queries, plain, selectors
from tests.shipping.test_rules import check, needs_promtool

PROMTOOL = shutil.which("promtool")
ROWS = ("Traffic", "Short against long", "Queues and ages", "Refusals", "Engines", "Rollout")
QUERIES = list(panel_queries())


async def test_every_query_names_metrics_and_labels_that_a_gateway_exports(running: Front) -> None:
    found = await exported(running)
    for title, query, legend in QUERIES:
        check(found, query, title)
        shown = labels_said(legend)
        assert all(f"{label}" in query for label in shown), f"{title}: {legend} is not kept"


def test_no_metric_of_the_gateway_is_left_out(running: Front) -> None:
    from gateway.observe import METRICS  # noqa: PLC0415

    named = {name for _, query, _ in QUERIES for name, _ in selectors(query)}
    bare = {name.removesuffix("_total").removesuffix("_bucket") for name in named}
    assert set(METRICS) - bare == set()


@needs_promtool
def test_every_query_is_promql(tmp_path: Path) -> None:
    made = [{"record": f"q{n}", "expr": plain(q)} for n, (_, q, _) in enumerate(QUERIES)]
    file = tmp_path / "queries.yaml"
    file.write_text(json.dumps({"groups": [{"name": "queries", "rules": made}]}))
    done = subprocess.run(
        [str(PROMTOOL), "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rows_are_there_and_no_panel_lies_over_another() -> None:
    panels = dashboard()["panels"]
    heads = [panel["title"] for panel in panels if panel["type"] == "row"]
    assert len(heads) == len(ROWS)
    assert all(head.startswith(row) for head, row in zip(heads, ROWS, strict=True))
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    numbers = [panel["id"] for panel in panels]
    assert len(set(numbers)) == len(numbers)


def test_the_data_source_is_the_one_that_compose_provides() -> None:
    variables = {v["name"]: v for v in dashboard()["templating"]["list"]}
    provided = (DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text()
    assert f"uid: {variables['datasource']['current']['value']}" in provided
    used = {t["datasource"]["uid"] for p in dashboard()["panels"] for t in p.get("targets", ())}
    assert used == {"${datasource}"}


@pytest.mark.skipif(
    PROMETHEUS is None, reason="Prometheus is not installed (Debian: apt install prometheus)"
)
async def test_a_real_prometheus_has_an_answer_for_every_panel(
    running: Front, tmp_path: Path
) -> None:
    waiting = {q for _, q, _ in QUERIES if not any(name in q for name in WITHOUT_SERIES)}
    # A refusal of the queues' needs more load than a test should make.
    waiting -= {q for q in waiting if "queue_full|" in q}
    with prometheus(tmp_path, running.admin_url.removeprefix("http://")) as url:

        async def scraped() -> bool:
            try:
                return bool((await ask(url, "query", query="up == 1"))["result"])
            except (httpx.TransportError, AssertionError):  # it is still starting
                return False

        await eventually(scraped, 20.0)

        async def all_answer() -> bool:
            await use(running)
            for query in list(waiting):
                found = (await ask(url, "query", query=plain(query)))["result"]
                if any(not math.isnan(float(row["value"][1])) for row in found):
                    waiting.discard(query)
            return not waiting

        try:
            await eventually(all_answer, 30.0)
        except TimeoutError:
            pytest.fail(f"no answer to {json.dumps(sorted(waiting), indent=1)}")
