"""The Prometheus rules: promtool's own cases, metrics that exist, alerts that lead somewhere."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import Front
from tests.shipping.exported import Exported, exported
from tests.shipping.shipped import (
    DEPLOY,
    documents,
    grouped,
    labels_said,
    rules,
    runbook,
    sections,
    selectors,
)

PROMETHEUS = DEPLOY / "prometheus"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed (Debian: apt install prometheus)"
)
ALERTS = [rule for rule in rules() if "alert" in rule]
# Labels that Prometheus adds to what it scrapes.
SCRAPED = {"instance", "job"}


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PROMTOOL), *words], cwd=PROMETHEUS, capture_output=True, text=True, check=False
    )


@needs_promtool
def test_the_rules_do_what_their_cases_say() -> None:
    done = promtool("test", "rules", "rules_test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_a_rule_that_no_longer_fires_fails_its_case(tmp_path: Path) -> None:
    text = (PROMETHEUS / "rules.yaml").read_text()
    (tmp_path / "rules.yaml").write_text(text.replace("== 0", "== 7"))
    cases = documents(PROMETHEUS / "rules_test.yaml")[0]
    cases["tests"] = [case for case in cases["tests"] if case["name"].startswith("one engine down")]
    (tmp_path / "rules_test.yaml").write_text(json.dumps(cases))
    done = promtool("test", "rules", str(tmp_path / "rules_test.yaml"))
    assert done.returncode != 0
    assert "SluicegateEngineDown" in done.stdout + done.stderr


@needs_promtool
def test_prometheus_takes_the_configuration_of_compose() -> None:
    done = promtool("check", "config", "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    cases = documents(PROMETHEUS / "rules_test.yaml")[0]["tests"]
    fired = {
        case["alertname"]
        for test in cases
        for case in test.get("alert_rule_test", ())
        if case["exp_alerts"]
    }
    assert fired == {rule["alert"] for rule in ALERTS}


async def test_the_rules_name_metrics_and_labels_that_a_gateway_exports(running: Front) -> None:
    found = await exported(running)
    for rule in rules():
        check(found, rule["expr"], rule.get("alert") or rule["record"])


def check(found: Exported, query: str, where: str) -> None:
    """Every metric is exported, with the labels it is selected and grouped by."""
    used = {name for name, _ in selectors(query)}
    for name, labels in selectors(query):
        assert name in found.labels, f"{where}: no gateway exports {name}"
        assert labels <= found.labels[name] | SCRAPED, f"{where}: {name} has no {labels}"
    for label in grouped(query):
        anywhere = set().union(*(found.labels[name] for name in used), SCRAPED)
        assert not used or label in anywhere, f"{where}: nothing has the label {label}"


def test_alerts_use_only_recorded_series_that_are_recorded() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        assert set(re.findall(r"sluicegate:[\w:]+", rule["expr"])) <= recorded


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_leads_to_the_section_of_the_runbook_that_is_about_it(
    rule: dict[str, Any],
) -> None:
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert page == "runbook.md"
    section = sections(runbook())[anchor]
    assert f"`{rule['alert']}`" in section
    pages = re.search(rf"`{rule['alert']}`( \(|, )page\)", section) is not None
    assert rule["labels"]["severity"] == ("page" if pages else "ticket")


def test_the_command_at_the_top_of_the_rules_makes_every_link_whole(tmp_path: Path) -> None:
    text = (PROMETHEUS / "rules.yaml").read_text()
    command = next(line for line in text.splitlines() if line.startswith("#   sed "))
    words = shlex.split(command.removeprefix("#"))
    (tmp_path / "rules.yaml").write_text(text)
    subprocess.run(words, cwd=tmp_path, check=True)
    (made,) = documents(tmp_path / "rules.yaml")
    links = [
        rule["annotations"]["runbook_url"]
        for group in made["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    base = "https://git.example.com/sluicegate/deploy/"
    assert links == [base + rule["annotations"]["runbook_url"] for rule in ALERTS]


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_shows_only_labels_that_it_keeps(rule: dict[str, str]) -> None:
    annotations = dict(rule["annotations"])
    shown = set().union(*(labels_said(text) for text in annotations.values()))
    kept = grouped(rule["expr"])
    if "sluicegate:missed" in rule["expr"]:
        kept = {"size_class"}
    assert shown <= (kept or SCRAPED)
