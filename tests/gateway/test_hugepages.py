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
import ctypes, mmap
from gateway.hugepages import ENABLED, HUGE_BYTES, collapse

# Whether this kernel agrees at all, asked about memory of our own.
own = mmap.mmap(-1, 3 * HUGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
own.write(b"x" * len(own))
first = -(-ctypes.addressof(ctypes.c_char.from_buffer(own)) // HUGE_BYTES) * HUGE_BYTES
madvise = ctypes.CDLL(None).madvise
madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
agrees = "[never]" not in ENABLED.read_text() and madvise(first, HUGE_BYTES, 25) == 0

def huge_bytes():
    with open("/proc/self/smaps_rollup") as lines:
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("AnonHuge"))

kept, before = [str(n) * 4 for n in range(300_000)], huge_bytes()
print(collapse())
assert kept == [str(n) * 4 for n in range(300_000)]
print(agrees, huge_bytes() - before >= 4 * HUGE_BYTES)
"""


def test_only_whole_huge_pages_of_private_writable_memory_without_a_file_count() -> None:
    found = list(whole_pages(MAPS.splitlines()))
    assert found == [(0x01000000, 0x400000), (0x7F0000200000, 0x400000)]


def test_what_the_kernel_agrees_to_is_in_huge_pages_and_holds_what_it_held() -> None:
    said = subprocess.run([sys.executable, "-c", CHILD], check=True, capture_output=True, text=True)
    refused, facts = said.stdout.splitlines()
    agrees, grew = facts.split()
    if agrees == "True":  # 30 MB of small texts were there
        assert (refused, grew) == ("None", "True"), said.stdout
    else:
        assert (refused != "None", grew) == (True, "False"), said.stdout


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
    assert hugepages.collapse() == "too little memory"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("ENABLED", "always madvise [never]\n", "transparent huge pages are off"),
        ("MAPS", "garbage\n", "not on this system: not enough values to unpack"),
        ("SUMS", "AnonHugePages:\n", "refused: "),
    ],
)
def test_what_an_operator_or_an_odd_system_says_is_told_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, said: str
) -> None:
    odd = tmp_path / name
    odd.write_text(text)
    monkeypatch.setattr(hugepages, name, odd)
    assert (hugepages.collapse() or "").startswith(said)
