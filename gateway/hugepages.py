"""Asks the kernel to keep the memory there is in huge pages, which costs less to find again.

A gateway that shares its cores with what it serves finds the processor's table of addresses taken
by others at every request. In pages of 2 MiB all it has needs a hundred entries of that table, in
place of some fifty thousand. Linux does so at once since 6.1 (madvise(2), MADV_COLLAPSE), for
anonymous memory; where an operator has set transparent huge pages to ``never``, it is not asked.
"""

import ctypes
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = ["collapse", "whole_pages"]

HUGE_BYTES = 2 << 20
MAPS, SUMS = Path("/proc/self/maps"), Path("/proc/self/smaps_rollup")
ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
# Of the kernel's header file mman-common.h.
_MADV_COLLAPSE = 25
_SOME_HUGE = re.compile(r"^AnonHugePages: *[1-9]", re.MULTILINE)


def whole_pages(maps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Address and length in bytes of all huge pages that fit into private, writable memory.

    Args:
        maps: lines of ``/proc/PID/maps``, see proc(5).
    """
    for line in maps:
        span, rights, _, _, inode, *_ = line.split(maxsplit=5)
        if not rights.startswith("rw") or not rights.endswith("p") or inode != "0":
            continue
        begin, end = (int(address, 16) for address in span.split("-"))
        first = -(-begin // HUGE_BYTES) * HUGE_BYTES
        length = end // HUGE_BYTES * HUGE_BYTES - first
        if length > 0:
            yield first, length


def collapse() -> str | None:
    """Put this process's memory into huge pages; returns why nothing came of it, if nothing did.

    The kernel passes over a page that was never touched, and leaves the rest of a span as it is
    once it has no memory in one piece.
    """
    try:
        if "[never]" in ENABLED.read_text():
            return "transparent huge pages are off"
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        with MAPS.open(encoding="utf-8", errors="surrogateescape") as maps:
            spans = list(whole_pages(maps))
        if not spans:
            return "too little memory"
        # A whole span in one call: each makes the kernel gather pages from all processors first.
        # It tells of a failure if one page of the span stays as it is.
        for first, length in spans:
            madvise(first, length, _MADV_COLLAPSE)
        refused = f"refused: {os.strerror(ctypes.get_errno())}"
        return None if _SOME_HUGE.search(SUMS.read_text()) else refused
    except (AttributeError, OSError, ValueError) as error:
        return f"not on this system: {error}"
