"""Puts a gateway before engines that run already, and confirms what those engines are.

With `direct` there is none: the engine itself is measured. Then the only waiting that shows is
the engine's own.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.asking import configuration, served_model, version
from loadgen.confirm import Confirmed, confirm
from loadgen.files import file_digest
from loadgen.launching import Need
from loadgen.record import BenchError
from loadgen.stack import Endpoint, stack

__all__ = ["Before", "confirmed_at", "front", "versions_of"]


@dataclass(frozen=True, slots=True)
class Before:
    """What a gateway before engines is made of: their tokenizer and template, its own limits.

    `limits` is a file that `bench limits` printed; without it the gateway has its default ones.
    """

    tokenizer: str | None
    chat_template: str | None
    limits: str | None = None
    direct: bool = False

    def digests(self) -> dict[str, str]:
        """Return the digest of the limits, where there are any: a sweep is held to it.

        Raises:
            BenchError: the file cannot be read.
        """
        return {} if self.limits is None else {"limits_sha256": file_digest(Path(self.limits))}


@asynccontextmanager
async def front(
    urls: Sequence[str], need: Need, folder: Path, made: Before
) -> AsyncIterator[Endpoint]:
    """Have a gateway before the engines, or none.

    Args:
        urls: of the engines.
        need: its admission, topology and time scale.
        folder: takes the gateway's configuration and log.
        made: what the gateway is made of.

    Raises:
        BenchError: the gateway did not start, or something it needs is not given.
    """
    if made.direct:
        if need.admission != "off":
            raise BenchError(f"{need.name}: direct measures no admission {need.admission!r}")
        if len(urls) != 1:
            raise BenchError("launcher.direct: measures one engine, without a gateway to choose")
        model = await served_model(urls[0])
        yield Endpoint(urls[0], None, tuple(urls), model, {}, {"direct": True})
        return
    if made.tokenizer is None or made.chat_template is None:
        raise BenchError("launcher: a gateway needs tokenizer and chat_template, or direct = true")
    more = ["--tokenizer", made.tokenizer, "--chat-template", made.chat_template]
    more += need.split_words()
    if made.limits is not None:
        more += ["--limits", made.limits]
    if need.args.get("scheduling_policy") is not None:
        more += ["--engine-policy", str(need.args["scheduling_policy"])]
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
