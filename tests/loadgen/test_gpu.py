import asyncio
import stat
import sys

import pytest

from loadgen.gpu import gpu_names, gpu_row, watching_gpus
from loadgen.probe import hardware_id

# As nvidia-smi prints them, to the queries that are asked.
FAKE = f"""#!{sys.executable}
import sys, time
words = " ".join(sys.argv)
if "name,driver_version" in words:
    print("NVIDIA H200, 570.00\\nNVIDIA H200, 570.00")
else:
    for _ in range(100):
        print("0, 1980, 312.50, 97, 40000, 0x0000000000000004", flush=True)
        time.sleep(0.05)
"""


@pytest.fixture
def card(tmp_path, monkeypatch):
    path = tmp_path / "nvidia-smi"
    path.write_text(FAKE)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


def test_a_printed_line_is_a_row_and_what_the_card_lacks_is_absent():
    assert gpu_row("1, 1980, [N/A], 97, 40000, 0x4") == {
        "source": "gpu",
        "gpu": 1,
        "sm_clock_mhz": 1980,
        "utilisation": 97,
        "memory_mib": 40000,
        "throttle_reasons": "0x4",
    }


@pytest.mark.parametrize("line", ["", "No devices were found", "x, 1, 2, 3, 4, 5"])
def test_anything_else_is_no_row(line):
    assert gpu_row(line) is None


def test_the_hardware_names_its_gpus(card):
    assert gpu_names() == "2 x NVIDIA H200, driver 570.00"
    assert hardware_id().startswith("2 x NVIDIA H200, driver 570.00; ")


async def test_gpus_are_watched_while_inside_and_not_after(card):
    rows, seen = [], asyncio.Event()

    def emit(row):
        rows.append(row)
        seen.set()

    async with watching_gpus(emit):
        await seen.wait()
    count = len(rows)
    await asyncio.sleep(0.15)
    assert len(rows) == count
    assert rows[0]["power_w"] == 312.5
    assert "at_ns" in rows[0]


async def test_a_machine_without_gpus_has_no_rows(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    rows = []
    async with watching_gpus(rows.append):
        pass
    assert rows == []
    assert gpu_names() is None
