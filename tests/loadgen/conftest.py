import io
import math
import os
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from loadgen.demo import run_demo
from loadgen.plan import Intervals
from loadgen.trace import TraceSpec
from tests.loadgen.swept import write_sweep

ROOT = Path(__file__).resolve().parents[2]
SHORT_SPEC = TraceSpec("poisson-stratified", 5, 20.0, (("short", 0.8), ("long", 0.2)), 0.5, 1.5)
SHORT_INTERVALS = Intervals(0.5, 1.5, 15.0, 15.0)


def stand_in(folder, source):
    """Lay a `gateway` package in a folder: `python -m gateway` from there finds it first."""
    package = folder / "gateway"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(source)


SERVES = "from tests.loadgen.standin import main\nmain()\n"


@pytest.fixture
def stand_in_gateway(tmp_path, monkeypatch):
    stand_in(tmp_path, SERVES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def foretold(trace, way):
    told = {"short": {"ttft_p50_s": 0.01, "ttft_p95_s": 0.02}}
    unbounded = {"long": {"ttft_p50_s": 0.01, "ttft_p95_s": math.inf}}
    return {**told, **unbounded} if way.topology == "isolated" else told


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    """One whole short demonstration against the stand-in: (folder, exit status, printed)."""
    base = tmp_path_factory.mktemp("demo")
    stand_in(base, SERVES)
    printed = io.StringIO()
    before, path = Path.cwd(), os.environ.get("PYTHONPATH")
    os.chdir(base)
    os.environ["PYTHONPATH"] = str(ROOT)
    try:
        code = run_demo(
            base / "out",
            console=Console(file=printed, width=220),
            simulate=foretold,
            spec=SHORT_SPEC,
            intervals=SHORT_INTERVALS,
        )
    finally:
        os.chdir(before)
        if path is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = path
    return base / "out", code, printed.getvalue()


@pytest.fixture(scope="session")
def sweep_once(tmp_path_factory):
    """A small decided sweep, to be read only."""
    folder = tmp_path_factory.mktemp("sweep")
    write_sweep(folder)
    return folder


@pytest.fixture
def swept(sweep_once, tmp_path):
    """A copy of that sweep, to be altered."""
    return shutil.copytree(sweep_once, tmp_path / "swept")
