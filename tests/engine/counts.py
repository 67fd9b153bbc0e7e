"""Compares the gateway's prompt counts with the engine's ``usage``, and prints the table.

Run: python -m tests.engine.counts

Every body goes through a gateway to the engine. Three figures must be one: what the gateway
counted before (its log), what the engine said in its answer, and what the gateway read of that. A
body that gateway or engine answers with an error is told apart: it has no count.
"""

import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.e2e.harness import Front, caller, eventually
from tests.engine.bodies import Body, bodies
from tests.engine.conftest import ENGINES, gateway_before
from tests.engine.vllm import Engine, begin, end_in_order, model, ready

__all__ = ["Row", "compare", "table"]

AT_ONCE = 4
REFUSED = (
    "* not counted in `of`: engine or gateway answers these with an error, and there is no count\n"
    "  to compare; bodies made by chance need not be valid ones"
)
TOKENIZERS = {"first": "Mistral v1", "qwen": "Qwen3"}


@dataclass(frozen=True)
class Row:
    """One body with its figures; ``None``: it has none. ``error`` is who refused, and why."""

    body: Body
    counted: int | None
    logged: int | None
    usage: int | None
    error: str | None = None

    @property
    def equal(self) -> bool:
        """Whether all three say the same."""
        return self.usage is not None and self.counted == self.logged == self.usage


def usage_of(answer: httpx.Response) -> int:
    """The prompt's tokens as the engine counts them, by the surface's name for it."""
    told = answer.json()["usage"]
    return int(told["prompt_tokens"] if "prompt_tokens" in told else told["input_tokens"])


async def compare(gateway: Front, wanted: Sequence[Body]) -> list[Row]:
    """Send all bodies, a few at a time, and look each up in the gateway's log."""
    answers: dict[int, httpx.Response] = {}
    numbers = iter(range(len(wanted)))

    async def send(client: httpx.AsyncClient) -> None:
        for number in numbers:
            body = wanted[number]
            named = {**gateway.headers(), "x-request-id": f"count-{number}"}
            url = gateway.url + body.path
            answers[number] = await client.post(url, json=body.json, headers=named)

    async with caller() as client:
        await asyncio.gather(*(send(client) for _ in range(AT_ONCE)))
    await eventually(lambda: len(gateway.requests()) >= len(wanted))
    lines = {line["request_id"]: line for line in gateway.requests()}
    rows = []
    for number, body in enumerate(wanted):
        line, answer = lines[f"count-{number}"], answers[number]
        whole = answer.status_code == 200
        error = None if whole else f"{line['outcome']}: {answer.text[:300]}"
        logged = line.get("engine_prompt_tokens")
        usage = usage_of(answer) if whole else None
        rows.append(Row(body, line.get("prompt_tokens"), logged, usage, error))
    return rows


def table(results: dict[str, Iterable[Row]]) -> str:
    """Bodies by tokenizer and kind: how many have equal counts, of how many answered ones."""
    lines = [f"{'tokenizer':<12}{'kind':<38}{'equal':>7}{'of':>6}{'refused*':>9}"]
    for name, rows in results.items():
        total, equal, refused = Counter[str](), Counter[str](), Counter[str]()
        for row in rows:
            for kind in (row.body.kind, "all"):
                total[kind] += row.error is None
                equal[kind] += row.equal
                refused[kind] += row.error is not None
        for kind in sorted(total, key=lambda kind: (kind == "all", kind)):
            line = f"{name:<12}{kind:<38}{equal[kind]:>7}{total[kind]:>6}{refused[kind]:>9}"
            lines.append(line)
    return "\n".join([*lines, REFUSED])


async def measure(engine: Engine, folder: Path) -> list[Row]:
    """Compare on one engine, through a gateway of its own."""
    with gateway_before(engine, folder) as gateway:
        return await compare(gateway, bodies())


def say(line: str) -> None:
    """Print how far it is, beside the table that may be read by a program."""
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Start both engines, print the table and what differs; 1 where something does."""
    end_in_order()
    results: dict[str, list[Row]] = {}
    say(f"starting {len(TOKENIZERS)} engines; all of it takes one to two minutes")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engines = {}
        for name in TOKENIZERS:
            served, flags = ENGINES[name]
            engine = begin(model(served).parent, served, flags, folder / f"{name}.log")
            stack.callback(engine.stop)
            engines[name] = engine
        for name, engine in engines.items():
            ready(engine)
            say(f"{TOKENIZERS[name]}: comparing {len(bodies())} bodies")
            results[TOKENIZERS[name]] = asyncio.run(measure(engine, folder / name))
    print(table(results))
    wrong = [row for rows in results.values() for row in rows if not row.equal and not row.error]
    for row in wrong:
        print(
            f"{row.body.path} {json.dumps(row.body.json)}: {row.counted} {row.logged} {row.usage}"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
