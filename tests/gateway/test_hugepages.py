"""Which memory is asked to be in huge pages, and that the process goes on living with it."""

import subprocess
import sys
from pathlib import Path

import pytest

from gateway import hugepages
from gateway.hugepages import whole_pages

MAPS = """\
00400000-00a00000 r-xp 00000000 fe:00 123                 /usr/bin/python3
00a00000-00e00000 rw-p 00600000 fe:00 123                 /usr/bin/python3
01000000-01400000 rw-p 00000000 00:00 0                   [heap]
7f0000100000-7f0000700000 rw-p 00000000 00:00 0
7f0001000000-7f0001400000 r--p 00000000 00:00 0
7f0002000000-7f0002400000 rw-s 00000000 00:00 0
7f0003100000-7f0003300000 rw-p 00000000 00:00 0
"""

CHILD = """
from gateway.hugepages import collapse

kept = [str(n) * 4 for n in range(300_000)]
print(collapse())
assert kept == [str(n) * 4 for n in range(300_000)]
with open("/proc/self/smaps_rollup") as lines:
    print(sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("AnonHuge")))
"""


def test_only_whole_huge_pages_of_private_writable_memory_without_a_file_count() -> None:
    found = list(whole_pages(MAPS.splitlines()))
    assert found == [(0x01000000, 0x400000), (0x7F0000200000, 0x400000)]


def test_what_the_kernel_agrees_to_is_in_huge_pages_and_holds_what_it_held() -> None:
    said = subprocess.run([sys.executable, "-c", CHILD], check=True, capture_output=True, text=True)
    refused, huge = said.stdout.splitlines()
    assert (int(huge) >= 2 << 20) == (refused == "None"), said.stdout


def test_a_system_that_does_not_show_its_memory_is_told_and_nothing_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hugepages, "MAPS", tmp_path / "none")
    assert "not on this system" in (hugepages.collapse() or "")


def test_a_file_whose_name_is_no_text_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "maps"
    odd.write_bytes(b"00400000-00a00000 r-xp 00000000 fe:00 123 /lib-\xe9.bin\n")
    monkeypatch.setattr(hugepages, "MAPS", odd)
    assert "refused" in (hugepages.collapse() or "")
