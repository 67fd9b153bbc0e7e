"""Every failure scenario of the bench on a real gateway, and one that must fail."""

import asyncio
import json
import subprocess
import sys

import pytest

from loadgen.engine.textmodel import TextModel
from loadgen.scenario_list import SCENARIOS, scenario_named
from loadgen.scenario_run import Prompts, perform
from loadgen.stack import stack


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_failure_scenario_holds(tmp_path):
    command = [sys.executable, "-m", "gateway", "bench", "scenario", "all", "--json"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], capture_output=True, text=True, check=False
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    bad = [(r["name"], c) for r in rows for c in r["checks"] if not c["passed"]]
    assert not bad, bad
    assert done.returncode == 0, done.stderr
    assert {r["name"] for r in rows} == set(SCENARIOS)
    for name in SCENARIOS:
        record = json.loads((tmp_path / name / "scenario.json").read_text())
        assert record["synthetic"] is True
        assert record["offered"] == sum(record["outcomes"].values()) == len(record["calls"])


@pytest.mark.slow
def test_without_admission_a_burst_is_not_refused_and_the_scenario_says_so(tmp_path):
    async def burst():
        more = ("--engines", "2")
        async with stack("off", "shared", tmp_path, 2.0, more) as endpoint:
            scenario = scenario_named("long-burst", 16384)
            return await perform(scenario, endpoint, 2.0, Prompts(TextModel()))

    _, checks = asyncio.run(burst())
    failed = {check.name for check in checks if not check.passed}
    assert "burst_refused" in failed
    assert "no_leaked_lease" not in failed
