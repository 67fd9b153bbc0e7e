"""Carries scenarios out: sets limits, plays callers, breaks engines, looks on, writes a record.

The gateway's own status is read ten times a second beside the callers; its limits are set by the
same call that operators use and taken back afterwards. A record is one JSON file.
"""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from loadgen.asker import Asker
from loadgen.corpus import Shape, make_prompt, reference_text
from loadgen.engine.textmodel import TextModel
from loadgen.files import write_json
from loadgen.probe import engine_row, parse_metrics
from loadgen.record import BenchError
from loadgen.scenario import Check, Fault, Scenario, Story, Told
from loadgen.scenario_checks import PHASES, checks_of
from loadgen.scenario_client import Server, payload_of, play_call
from loadgen.stack import Endpoint

__all__ = ["Prompts", "perform", "record_of", "write_record"]

Json = dict[str, Any]
LOOK_EVERY_S = 0.1
REST_S = 10.0
PIECES = 400
SMALL_TOKENS = 1024
MANY, FEW = 12, 3


class Prompts:
    """Makes prompts of exact sizes, several of each, and keeps them.

    Args:
        model: tokenizer and chat template of the engines.
    """

    def __init__(self, model: TextModel) -> None:
        self._model = model
        self._pieces: dict[str, int] = {}
        self._made: dict[tuple[int, int], str] = {}

    def of(self, tokens: int, number: int = 0) -> str:
        """Return a prompt of so many tokens, template included; large ones are few.

        Callers that all said the same would be sent to one engine, for its prefix cache.

        Raises:
            BenchError: it can't be made.
        """
        if not self._pieces:
            count = self._model.count_text
            texts = reference_text()[:PIECES]
            self._pieces = {p: count(p, add_special_tokens=False) for p in texts}
        key = tokens, number % (MANY if tokens <= SMALL_TOKENS else FEW)
        if key not in self._made:
            shape = Shape("scenario", tokens, 1, 1)
            self._made[key] = make_prompt(shape, key[1], 5, self._pieces, self._model).text
        return self._made[key]


class _Stage:
    """One scenario on one running stack."""

    def __init__(self, endpoint: Endpoint, scale: float, asker: Asker, open_asker: Asker) -> None:
        if endpoint.admin_url is None:
            raise BenchError("scenario: the gateway's operators' listener is not known")
        self._endpoint, self._scale = endpoint, scale
        self._admin = endpoint.admin_url
        self._asker, self._open = asker, open_asker
        self._begin_s = 0.0
        self._samples: list[Json] = []
        self._struck: list[tuple[float, Fault]] = []

    async def limits(self) -> Json:
        found: Json = await self._asker.json(f"{self._admin}/admin/limits")
        return found

    async def set_limits(self, changes: Mapping[str, Any]) -> Json:
        """Set limits by path; "engine.*." stands for every engine. Returns those in force."""
        now = await self.limits()
        engines = [row["engine"] for row in now["engines"]]
        paths: Json = {}
        for path, value in changes.items():
            wild = path.startswith("engine.*.")
            for name in engines if wild else [""]:
                paths[path.replace("*", name, 1) if wild else path] = value
        if paths:
            body = {"revision": now["revision"], "set": paths}
            await self._asker.json(f"{self._admin}/admin/limits", body)
        return await self.limits()

    async def counters(self) -> dict[str, float]:
        """Return the gateway's cancellations by phase, and the engines' preemptions."""
        found: dict[str, float] = {"engine preemptions": 0.0}
        page = await self._open.text(f"{self._admin}/metrics")
        for name, labels, value in parse_metrics(page, (PHASES,)):
            found[f"{name}{{{labels.get('phase', '')}}}"] = value
        for row in await self._engine_pages():
            found["engine preemptions"] += row.get("preemptions_total", 0.0)
        return found

    async def _engine_pages(self) -> list[Json]:
        rows = []
        for url in self._endpoint.engine_urls:
            try:
                rows.append({"up": True, **engine_row(await self._open.text(f"{url}/metrics"))})
            except BenchError as error:
                rows.append({"up": False, "reason": str(error)})
        return rows

    async def look(self) -> Json:
        """Return the gateway's status and the engines' gauges at this moment."""
        begin_s = time.monotonic() - self._begin_s
        status = await self._asker.json(f"{self._admin}/admin/status")
        at_s = time.monotonic() - self._begin_s
        kept = {key: status[key] for key in ("running", "flows", "engines")}
        kept["engines"].sort(key=self._position)
        return {
            "begin_s": begin_s,
            "at_s": at_s,
            **kept,
            "engine_pages": await self._engine_pages(),
        }

    def _position(self, view: Mapping[str, Any]) -> int:
        """The engine's place among the addresses, so that faults are found by it."""
        urls = self._endpoint.engine_urls
        return urls.index(view["engine"]) if view["engine"] in urls else len(urls)

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            self._samples.append(await self.look())
            await asyncio.sleep(LOOK_EVERY_S)

    async def strike(self, faults: Sequence[Fault]) -> None:
        """Break engines when it is time."""
        for fault in faults:
            due_s = self._begin_s + fault.at_s / self._scale
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            url = self._endpoint.engine_urls[fault.engine]
            await self._open.json(f"{url}/sim/fault", {"fault": fault.fault})
            self._struck.append((time.monotonic() - self._begin_s, fault))

    async def rest(self) -> Json:
        """Return the first look at which nothing is held any more, or the last one."""
        until_s = time.monotonic() + REST_S
        while True:
            found = await self.look()
            held = found["running"] or any(v["slots"] for v in found["engines"])
            busy = any(e.get("running") or e.get("waiting") for e in found["engine_pages"])
            if not (held or busy) or time.monotonic() > until_s:
                return found
            await asyncio.sleep(LOOK_EVERY_S)

    async def play(self, scenario: Scenario, payloads: Sequence[bytes]) -> list[Told]:
        """Play all callers while looking on and breaking what is to break."""
        self._begin_s = time.monotonic()
        until_s = self._begin_s + scenario.deadline_s / self._scale
        server = Server(
            self._endpoint.gateway_url, self._endpoint.keys, self._scale, self._begin_s, until_s
        )
        watching = asyncio.ensure_future(self.watch())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.strike(scenario.faults))
                callers = [
                    group.create_task(play_call(server, call, payload, random.Random(n)))
                    for n, (call, payload) in enumerate(zip(scenario.calls, payloads, strict=True))
                ]
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
        return [caller.result() for caller in callers]

    def seen(self) -> tuple[tuple[Json, ...], tuple[tuple[float, Fault], ...]]:
        """Return the looks, and the faults with the time at which they struck."""
        return tuple(self._samples), tuple(self._struck)


def _payloads(scenario: Scenario, endpoint: Endpoint, prompts: Prompts) -> list[bytes]:
    made = []
    for number, call in enumerate(scenario.calls):
        text = prompts.of(call.prompt_tokens, number)
        body = {
            "model": endpoint.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": call.output_tokens,
            "min_tokens": call.output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        key = endpoint.keys.get(call.service, next(iter(endpoint.keys.values()), None))
        made.append(payload_of(endpoint.gateway_url, key, orjson.dumps(body)))
    return made


async def perform(
    scenario: Scenario, endpoint: Endpoint, scale: float, prompts: Prompts
) -> tuple[Story, list[Check]]:
    """Carry one scenario out on a running stack; returns what happened and the checks.

    Raises:
        BenchError: the stack does not answer, or refuses the scenario's limits.
    """
    payloads = _payloads(scenario, endpoint, prompts)
    async with Asker(endpoint.admin_token) as asker, Asker() as open_asker:
        stage = _Stage(endpoint, scale, asker, open_asker)
        limits = await stage.set_limits(scenario.limits)
        try:
            before = await stage.counters()
            told = await stage.play(scenario, payloads)
            rest = await stage.rest()
            after = await stage.counters()
        finally:
            await stage.set_limits(dict.fromkeys(scenario.limits))
    samples, struck = stage.seen()
    story = Story(tuple(told), limits, samples, rest, before, after, struck)
    return story, checks_of(scenario, story)


def _call_row(told: Told) -> Json:
    last = told.tries[-1]
    own = {
        "role": told.call.role,
        "at_s": told.call.at_s,
        "outcome": told.outcome,
        "code": last.code,
        "status": last.status,
        "tries": len(told.tries),
        "retry_after_s": last.retry_after_s,
        "events": last.events,
        "open_s": sum(t.end_s - t.begin_s for t in told.tries),
    }
    return {k: v for k, v in own.items() if v is not None}


def record_of(
    scenario: Scenario, story: Story, checks: Sequence[Check], more: Mapping[str, Any]
) -> Json:
    """Return the record of a scenario: its checks first, then what they rest on."""
    roles = dict.fromkeys(call.role for call in scenario.calls)
    return {
        "kind": "scenario",
        "name": scenario.name,
        "said": scenario.said,
        "passed": all(check.passed for check in checks),
        "checks": [check.as_json() for check in checks],
        "offered": len(scenario.calls),
        "outcomes": dict(story.outcomes()),
        "by_role": {role: dict(story.outcomes(role)) for role in roles},
        "limits": dict(scenario.limits),
        "faults": [[at_s, fault.engine, fault.fault] for at_s, fault in story.faults],
        "counters": {name: story.risen(name) for name in sorted(story.after)},
        "calls": [_call_row(told) for told in story.told],
        "samples": [_sample_row(sample) for sample in story.samples],
        **more,
    }


def _sample_row(sample: Mapping[str, Any]) -> Json:
    return {
        "at_s": sample["at_s"],
        "running": sample["running"],
        "flows": {
            f"{v['key']['size_class']}.{v['key']['service_class']}": [v["depth"], v["oldest_age_s"]]
            for v in sample["flows"]
        },
        "slots": [v["slots"] for v in sample["engines"]],
        "engine_running": [e.get("running") for e in sample["engine_pages"]],
    }


def write_record(out: Path, record: Json) -> str:
    """Write the record into a folder of its name; returns its SHA-256."""
    return write_json(out / record["name"] / "scenario.json", record)
