"""Prints the table of engine faults with what came of each: ``python -m tests.faults [WORD]``.

With a word, only the rows whose name holds it. The exit code is 1 if any row ended otherwise than
the failure contract says, or left anything behind.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

import uvloop

from tests.faults.stand import Stand, play, stand
from tests.faults.table import ROWS, Row

LINE = "{:<52} {:<21} {:>6}  {:<15} {:<7} {}"


async def main(word: str) -> int:
    """Play the rows one after another; returns how many went wrong."""
    wrong = 0
    print(LINE.format("the engine's fault", "outcome", "status", "caller reads", "leaked", ""))
    with tempfile.TemporaryDirectory() as folder:
        async with stand(Path(folder)) as pair:
            for row in ROWS:
                if word in row.label:
                    wrong += await _shown(pair, row)
    print(f"{wrong} of {len(ROWS)} rows went wrong")
    return wrong


async def _shown(pair: Stand, row: Row) -> bool:
    leaked, note = "nothing", ""
    try:
        played = await play(pair, row)
    except (AssertionError, TimeoutError) as error:
        print(LINE.format(row.label, "-", "-", "-", "?", f"WRONG: {error!r:.300}"))
        await _recovered(pair)
        return True
    if not played.expected(row):
        note = f"WRONG: expected {row.outcome} {row.status} {row.reads}"
    status = played.status if played.status is not None else "-"
    print(LINE.format(row.label, played.outcome, status, played.reads, leaked, note), flush=True)
    return bool(note)


async def _recovered(pair: Stand) -> None:
    """Drop what a failed row left, so that it does not spoil the next ones."""
    pair.engine.drop_all()
    await asyncio.sleep(1.0)


if __name__ == "__main__":
    sys.exit(min(1, uvloop.run(main(sys.argv[1] if len(sys.argv) > 1 else ""))))
