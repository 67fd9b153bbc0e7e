"""Which memory is asked to be in huge pages, and that the process goes on living with it."""

import subprocess
import sys

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

def huge():
    with open("/proc/self/smaps_rollup") as lines:
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("AnonHuge"))

kept = [str(n) * 4 for n in range(300_000)]
agreed = collapse()
assert kept == [str(n) * 4 for n in range(300_000)]
print(agreed, huge())
"""


def test_only_whole_huge_pages_of_private_writable_memory_without_a_file_count() -> None:
    found = list(whole_pages(MAPS.splitlines()))
    assert found == [(0x01000000, 0x400000), (0x7F0000200000, 0x400000)]


def test_what_the_kernel_agreed_to_is_in_huge_pages_and_holds_what_it_held() -> None:
    said = subprocess.run([sys.executable, "-c", CHILD], check=True, capture_output=True, text=True)
    agreed, huge = map(int, said.stdout.split())
    assert huge >= agreed
