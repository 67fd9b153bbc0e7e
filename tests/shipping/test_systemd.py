"""The systemd unit: valid, hardened, and patient enough for a drain."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gateway.schema import Document
from gateway.serve import LAST_ANSWERS_S
from tests.e2e.harness import ROOT
from tests.shipping.shipped import DEPLOY, MARGIN_S

UNIT = DEPLOY / "systemd/sluicegate.service"
ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(
    ANALYZE is None, reason="systemd-analyze is not installed (Debian: apt install systemd)"
)
# As "systemd-analyze security" counts: 0 is shut, 10 is open; it calls less than 2 "OK".
EXPOSURE = 2.0


def said(key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", UNIT.read_text(), re.MULTILINE)


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(ANALYZE), *words], capture_output=True, text=True, check=False)


@needs_systemd
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    here = tmp_path / UNIT.name
    # The command must be there for the check: this Python stands for it.
    here.write_text(UNIT.read_text().replace("/opt/sluicegate/bin/sluicegate", sys.executable))
    done = analyze("verify", str(here))
    # Other units of this machine may have faults of their own.
    ours = [line for line in done.stderr.splitlines() if "sluicegate" in line]
    assert not ours, done.stderr


@needs_systemd
def test_the_unit_is_hardened() -> None:
    done = analyze("security", "--offline=true", f"--threshold={int(EXPOSURE * 10)}", str(UNIT))
    assert done.returncode == 0, done.stdout[-300:]


def test_it_is_killed_only_after_its_drain() -> None:
    server = Document.model_validate(
        tomllib.loads((ROOT / "config/gateway.toml").read_text())
    ).server
    needs_s = server.shutdown_delay_s + server.drain_deadline_s + LAST_ANSWERS_S
    assert float(said("TimeoutStopSec")[0]) >= needs_s + MARGIN_S
    assert said("KillSignal") == ["SIGTERM"]
    assert said("SuccessExitStatus") == ["3"]


def test_a_reload_is_a_hangup_and_a_start_is_checked_first() -> None:
    assert said("ExecReload") == ["/bin/kill -HUP $MAINPID"]
    config = ["--config", "/etc/sluicegate/gateway.toml"]
    assert said("ExecStartPre")[0].split()[1:4] == ["check", *config]
    assert said("ExecStart")[0].split()[1:] == ["serve", *config]
