"""Measures a running engine, a few minutes long, and fits the cost of its steps.

Prompts alone, one token each, give the cost of prefill; batches that only decode, at small and
large context, give that of decoding. Prompts are token ids, so that no tokenizer's time is in
them, and never the same twice, so that no prefix cache answers. Where the engine exports its own
prefill times those are taken; else the client's. The engine must have nothing else to do.
"""

import asyncio
import platform
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from loadgen.asker import Asker
from loadgen.capture import Capture
from loadgen.events import read_events
from loadgen.probe import parse_metrics
from loadgen.quantiles import quantile
from loadgen.record import BenchError
from loadgen.step_fit import Fit, Point, fit_steps, predicted_s, step_model
from loadgen.stream import Pool, request_bytes

__all__ = ["EngineFacts", "Wish", "calibrate_engine", "decode_grid", "prefill_sizes"]

PREFILL_SUM = "vllm:request_prefill_time_seconds_sum"
PREFILL_COUNT = "vllm:request_prefill_time_seconds_count"
BUSY = ("vllm:num_requests_running", "vllm:num_requests_waiting")
WORDS = "The gate opens when the water behind it stands high enough to turn the wheel below. "
ANSWER_S = 120.0
OUTPUT_TOKENS = 48
# Sequences at once by context tokens: what one more costs shows only against the step's own time.
DECODE_BATCHES = {256: (1, 16, 64), 8000: (1, 8, 24)}
LARGEST_OF_KV = 0.8
SETTLE_TOKENS = 4


Batch = tuple[int, int, int]  # sequences, context tokens, output tokens


@dataclass(frozen=True, slots=True)
class Wish:
    """What to calibrate; `token_budget` is the engine's --max-num-batched-tokens."""

    engine_url: str
    model: str
    token_budget: int = 8192
    repeats: int = 5
    time_scale: float = 1.0
    key: str | None = None


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """How large requests may be, and ids that the model knows."""

    max_model_len: int
    kv_tokens: int
    ids: tuple[int, ...]
    version: str
    prefill_metric: bool


def prefill_sizes(facts: EngineFacts, budget_tokens: int) -> list[int]:
    """Return prompt sizes: what one step can take, each about half of the next, and two steps'.

    What attention to earlier chunks costs shows only where there are some.
    """
    longest = facts.max_model_len - 2
    largest = min(budget_tokens, longest)
    sizes = [largest >> k for k in range(6) if largest >> k >= 64]
    twice = [2 * budget_tokens] if 2 * budget_tokens < longest else []
    return sorted({*sizes, largest * 3 // 4, *twice})


def decode_grid(facts: EngineFacts, budget_tokens: int) -> Iterator[Batch]:
    """Yield the batches that memory holds, at a small and a large context."""
    for wanted, counts in DECODE_BATCHES.items():
        for count in counts:
            batch = _decode_batch(facts, budget_tokens, count, wanted)
            if batch is not None:
                yield batch


def _decode_batch(
    facts: EngineFacts, budget_tokens: int, count: int, wanted_tokens: int
) -> Batch | None:
    """Return a batch of about so large a context; None where memory does not hold it.

    The first sequence must still decode when the last one's prompt has been read, so outputs are
    longer by the steps that all prompts take.
    """
    reading = -(-count * wanted_tokens // max(1, budget_tokens - count)) + count
    output = OUTPUT_TOKENS + (reading if count > 1 else 0)
    context = min(wanted_tokens, facts.max_model_len - output - 1)
    fits = count * (context + output) <= facts.kv_tokens * LARGEST_OF_KV
    return (count, context, output) if context > 0 and (fits or count == 1) else None


async def _facts(asker: Asker, wish: Wish) -> EngineFacts:
    url = wish.engine_url
    page = await asker.text(f"{url}/metrics")
    samples = list(parse_metrics(page, ("vllm:",)))
    if busy := sum(value for name, _, value in samples if name in BUSY):
        raise BenchError(f"{url}: {busy:.0f} requests are in the engine; calibrate it idle")
    models = (await asker.json(f"{url}/v1/models"))["data"]
    own = next((m for m in models if m["id"] == wish.model), None)
    if own is None:
        raise BenchError(f"{url}: serves no model {wish.model!r}")
    told = await asker.json(f"{url}/tokenize", {"model": wish.model, "prompt": WORDS})
    return EngineFacts(
        max_model_len=int(own["max_model_len"]),
        kv_tokens=_kv_tokens(samples, int(own["max_model_len"])),
        ids=tuple(told["tokens"]),
        version=str((await asker.json(f"{url}/version")).get("version", "unknown")),
        prefill_metric=any(name == PREFILL_COUNT for name, _, _ in samples),
    )


def _kv_tokens(samples: Sequence[tuple[str, dict[str, str], float]], default: int) -> int:
    """Return the engine's KV capacity; that of one request where it does not say."""
    for name, labels, _ in samples:
        if name == "vllm:cache_config_info":
            blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
            if blocks.isdigit() and size.isdigit():
                return int(blocks) * int(size)
    return default


class _Bench:
    """Sends prompts of token ids and hands back when their tokens came."""

    def __init__(self, wish: Wish, facts: EngineFacts, asker: Asker) -> None:
        self.wish, self.facts, self._asker = wish, facts, asker
        self._pool = Pool(wish.engine_url, spare=max(map(max, DECODE_BATCHES.values())))
        self._rng = random.Random(17)
        self._seq = 0

    def _payload(self, prompt_tokens: int, output_tokens: int) -> bytes:
        body = {
            "model": self.wish.model,
            "prompt": self._rng.choices(self.facts.ids, k=prompt_tokens),
            "max_tokens": output_tokens,
            "min_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        host = self.wish.engine_url.split("://", 1)[1]
        headers = {"Authorization": f"Bearer {self.wish.key}"} if self.wish.key else {}
        return request_bytes(host, "/v1/completions", headers, orjson.dumps(body))

    async def batch(self, count: int, prompt_tokens: int, output_tokens: int) -> list[Capture]:
        """Send so many requests at once and wait for all.

        Raises:
            BenchError: one failed; the engine's words are in the message.
        """
        payloads = [self._payload(prompt_tokens, output_tokens) for _ in range(count)]
        await self._pool.fill()
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Future[Capture]] = []
        for payload in payloads:
            self._seq += 1
            future: asyncio.Future[Capture] = loop.create_future()
            waiting.append(future)
            self._pool.send(Capture(self._seq), payload, future.set_result)
        async with asyncio.timeout(ANSWER_S):
            captures = await asyncio.gather(*waiting)
        for c in captures:
            if c.status != 200 or c.fault is not None:
                raise BenchError(f"{self.wish.engine_url}: {c.fault or bytes(c.body)[:300]!r}")
        return list(captures)

    async def prefill_metric(self) -> tuple[float, float]:
        """Return the sum and count of the engine's own prefill times."""
        page = await self._asker.text(f"{self.wish.engine_url}/metrics")
        found = {PREFILL_SUM: 0.0, PREFILL_COUNT: 0.0}
        for name, _, value in parse_metrics(page, (PREFILL_SUM, PREFILL_COUNT)):
            found[name] += value
        return found[PREFILL_SUM], found[PREFILL_COUNT]

    async def close(self) -> None:
        await self._pool.close()


def _times_s(capture: Capture, scale: float) -> list[float]:
    """Return when each token came, in the engine's seconds."""
    told = read_events(bytes(capture.body), [(at, length) for at, length in capture.reads])
    return [at * 1e-9 * scale for at in told.event_us]


async def _prefill(bench: _Bench, tokens: int) -> Point:
    """Measure a prompt alone; the median, as one that the machine disturbed is far off."""
    wish = bench.wish
    took_s = [await _alone_s(bench, tokens) for _ in range(wish.repeats)]
    return _prefill_point(tokens, quantile(took_s, 0.5), wish.token_budget, wish.repeats)


async def _alone_s(bench: _Bench, tokens: int) -> float:
    """Send one prompt for one token; returns what its prefill took, in the engine's seconds."""
    before_s, before = await bench.prefill_metric()
    capture = (await bench.batch(1, tokens, 1))[0]
    after_s, after = await bench.prefill_metric()
    if bench.facts.prefill_metric and after - before == 1:
        return after_s - before_s
    return (capture.reads[0][0] - (capture.sent_ns or 0)) * 1e-9 * bench.wish.time_scale


def _prefill_point(tokens: int, seconds: float, budget: int, repeats: int) -> Point:
    starts = range(0, tokens, budget)
    steps = len(starts)
    pairs = tokens * tokens / 2
    return Point("prefill", seconds, steps, steps, tokens, 0.0, float(sum(starts)), pairs, repeats)


async def _decode(bench: _Bench, count: int, context: int, output: int) -> Point | None:
    captures = await bench.batch(count, context, output)
    streams = [_times_s(c, bench.wish.time_scale) for c in captures]
    return _decode_point(streams, context, output)


def _decode_point(streams: Sequence[Sequence[float]], context: int, output: int) -> Point | None:
    """Return the mean step between the last stream's first tokens and the first one's end.

    None where the streams did not run side by side long enough: more than the engine has seats.

    Raises:
        BenchError: tokens came together, so that none can be timed.
    """
    if min(map(len, streams)) <= SETTLE_TOKENS:
        raise BenchError("calibrate-engine: answers came in too few pieces to time their tokens")
    begin_s = max(times[SETTLE_TOKENS - 1] for times in streams)
    end_s = min(times[-1] for times in streams)
    inside = [sum(begin_s < t <= end_s for t in times) for times in streams]
    # Each stream's tokens come in events of about as many tokens: its own average.
    per_event = [output / len(times) for times in streams]
    steps = sum(n * k for n, k in zip(inside, per_event, strict=True)) / len(streams)
    if steps < OUTPUT_TOKENS / 8:
        return None
    before = [sum(t <= begin_s for t in times) for times in streams]
    done = sum((b + i / 2) * k for b, i, k in zip(before, inside, per_event, strict=True))
    kv_tokens = len(streams) * context + done
    return Point("decode", (end_s - begin_s) / steps, 1, 0, 0, len(streams), kv_tokens)


async def _decoded(bench: _Bench, batch: Batch) -> list[Point]:
    """Measure a batch, or one of half as many where the engine has fewer seats than that."""
    count, context, output = batch
    repeats = 3 if count == 1 else 1
    tried = [await _decode(bench, count, context, output) for _ in range(repeats)]
    made = [point for point in tried if point is not None]
    smaller = _decode_batch(bench.facts, bench.wish.token_budget, count // 2, context)
    if made or count < 4 or smaller is None:
        return made
    return await _decoded(bench, smaller)


Watch = Callable[[str], None]


async def _points(bench: _Bench, watch: Watch) -> list[Point]:
    points = []
    await bench.batch(1, 128, 4)  # what the first request alone pays for
    for tokens in prefill_sizes(bench.facts, bench.wish.token_budget):
        points.append(await _prefill(bench, tokens))
        watch(f"prefill of {tokens} tokens: {points[-1].seconds * 1e3:.2f} ms")
    for batch in decode_grid(bench.facts, bench.wish.token_budget):
        made = await _decoded(bench, batch)
        points += made
        if made:
            told = f"{made[-1].decode_sequences:g} at {batch[1]} tokens"
            watch(f"decode of {told}: {made[-1].seconds * 1e3:.2f} ms")
    return points


async def _check(bench: _Bench, fit: Fit, watch: Watch) -> dict[str, Any]:
    """Predict a prompt of several steps, which the fit has not seen."""
    tokens = bench.facts.max_model_len - 2
    if tokens <= bench.wish.token_budget:
        return {}
    point = await _prefill(bench, tokens)
    error = predicted_s(fit.coefficients, point) / point.seconds - 1.0
    watch(f"not fitted, prefill of {tokens} tokens: {point.seconds * 1e3:.1f} ms ({error:+.1%})")
    return {"held_out": {"prefill_tokens": tokens, "seconds": point.seconds, "error": error}}


async def calibrate_engine(wish: Wish, watch: Watch = lambda line: None) -> dict[str, Any]:
    """Return the step model of a running engine, as a step-model file holds it.

    Args:
        wish: which engine.
        watch: is told each measurement.

    Raises:
        BenchError: the engine is busy, fails, or its steps don't tell the coefficients apart.
    """
    async with Asker(wish.key) as asker:
        facts = await _facts(asker, wish)
        bench = _Bench(wish, facts, asker)
        try:
            points = await _points(bench, watch)
            fit = fit_steps(points)
            checked = await _check(bench, fit, watch)
        finally:
            await bench.close()
    source = (
        f"bench calibrate-engine: engine version {facts.version}, model {wish.model}, token budget "
        f"{wish.token_budget}, time scale {wish.time_scale:g}, client on {platform.machine()}; "
        f"{len(points)} measurements, median error {fit.median_error:.1%}, largest "
        f"{fit.max_error:.1%}; prefill as told by "
        f"{'the engine' if facts.prefill_metric else 'the client'}"
    )
    model: dict[str, Any] = step_model(fit, points, source, checked)
    return model
