"""Puts a gateway before engines that run already, and confirms what those engines are.

With `direct` there is none: the engine itself is measured. Then the only waiting that shows is
the engine's own.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from loadgen.asking import configuration, served_model, version
from loadgen.confirm import Confirmed, confirm
from loadgen.launching import Need
from loadgen.record import BenchError
from loadgen.stack import Endpoint, stack

__all__ = ["confirmed_at", "front", "versions_of"]


@asynccontextmanager
async def front(
    urls: Sequence[str], need: Need, folder: Path, text: tuple[str | None, str | None], direct: bool
) -> AsyncIterator[Endpoint]:
    """Have a gateway before the engines, or none.

    Args:
        urls: of the engines.
        need: its admission, topology and time scale.
        folder: takes the gateway's configuration and log.
        text: tokenizer and chat template of the engines; a gateway needs both.
        direct: measure the engine itself.

    Raises:
        BenchError: the gateway did not start, or something it needs is not given.
    """
    if direct:
        if len(urls) != 1:
            raise BenchError("launcher.direct: measures one engine, without a gateway to choose")
        model = await served_model(urls[0])
        yield Endpoint(urls[0], None, tuple(urls), model, {}, {"direct": True})
        return
    if text[0] is None or text[1] is None:
        raise BenchError("launcher: a gateway needs tokenizer and chat_template, or direct = true")
    more = ["--tokenizer", text[0], "--chat-template", text[1]]
    for url in urls:
        more += ["--engine-url", url]
    async with stack(need.admission, need.topology, folder, need.time_scale, more) as endpoint:
        yield endpoint


async def confirmed_at(urls: Sequence[str], need: Need, logs: Sequence[Path]) -> Confirmed:
    """Compare what every engine tells with the cell; the least that one confirms counts."""
    found = []
    for n, url in enumerate(urls):
        log = logs[n].read_text(errors="replace") if n < len(logs) and logs[n].is_file() else ""
        found.append(confirm(need.args, need.critical, await configuration(url), log))
    order = ("unverified", "launch-record", "engine")
    least = min(found, key=lambda c: order.index(c.source))
    return Confirmed(
        source=least.source,
        args=least.args,
        unconfirmed=least.unconfirmed,
        differences=tuple(dict.fromkeys(d for c in found for d in c.differences)),
        facts=least.facts,
    )


async def versions_of(urls: Sequence[str]) -> Mapping[str, Any]:
    """Return the engines' version as a fact, if they tell."""
    told = await version(urls[0])
    return {} if told is None else {"versions": {"engine": told}}
