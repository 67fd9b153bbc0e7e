"""Prints what counting and the rest of the front of a request cost.

Run: python -m tests.bench.bench_count
Prints CPU microseconds per token of both encoders and per call of the other steps, and how long
an event loop is held up while 8,192-token prompts are counted in threads, and while a tokenizer is
loaded in one, as a reload does.
"""

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import NamedTuple

from tokenizers import Tokenizer

from gateway import prompt, sanitize
from gateway.auth import KeyEntry, Keyring, by_key, credential, new_key
from gateway.domain import Outcome, Surface
from gateway.observe import Finished, log_line
from gateway.sent import by_name
from gateway.serve import SWITCH_S
from gateway.template import ChatTemplate
from gateway.tokenizer import Counted, Counter, CountingPool
from tests.bench.bench_relay import run_delay_s
from tests.gateway.minimal import TEMPLATE, tokenizer_path

TEXT = "\n".join(topics.values())
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def microseconds(call: Callable[[], object], rounds: int) -> float:
    """CPU microseconds of one call, the least of five rows of ``rounds``."""
    best = float("inf")
    for _ in range(5):
        started = time.process_time_ns()
        for _ in range(rounds):
            call()
        best = min(best, (time.process_time_ns() - started) / rounds / 1000)
    return best


def sized(counter: Counter, tokens: int) -> str:
    """Real text of about ``tokens`` tokens."""
    low, high = 0, len(TEXT)
    while low < high - 1:
        middle = (low + high) // 2
        counted = counter.count(TEXT[:middle], add_special_tokens=False).tokens
        low, high = (middle, high) if counted <= tokens else (low, middle)
    return TEXT[:low]


def print_counting(counter: Counter) -> None:
    for tokens in (100, 512, 8192):
        text = sized(counter, tokens)
        count = counter.count(text, add_special_tokens=False).tokens
        fast = microseconds(partial(counter.count, text, add_special_tokens=False), 20)
        slow = microseconds(partial(counter._count_by_reference, text), 5)
        print(
            f"counting {count:>5} tokens: {counter.method} {fast / count:.2f} us/token"
            f" ({fast:.0f} us), tokenizers {slow / count:.2f} us/token"
        )
    bound = microseconds(
        lambda: counter.count(TEXT * 5, add_special_tokens=False, stop_above=16_384), 3
    )
    print(f"2.3 MB of text over a bound of 16,384 tokens: {bound / 1000:.1f} ms")


def print_steps(counter: Counter) -> None:
    key, digest = new_key("alice", bytes(range(16)))
    ring = Keyring({"alice": KeyEntry(digest, "interactive")})
    headers = [(b"host", b"x"), (b"authorization", b"Bearer " + key.encode())]
    template = ChatTemplate(TEMPLATE, {}, lambda: NOW)
    for tokens in (100, 8192):
        text = sized(counter, tokens)
        body = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": True}
        raw = sanitize.stamp(body, 0)
        steps: dict[str, Callable[[], object]] = {
            "authenticate": lambda: by_key(credential(by_name(headers))[0], ring),
            "clean_body": partial(sanitize.clean_body, raw),
            "render": partial(prompt.chat, body, template),
            "stamp": partial(sanitize.stamp, body, 0),
            "upstream_headers": partial(sanitize.upstream_headers, by_name(headers), "rid", 0),
        }
        costs = ", ".join(f"{name} {microseconds(s, 300):.1f}" for name, s in steps.items())
        print(f"body of {tokens} tokens, us per call: {costs}")
    done = Finished(Outcome.COMPLETED, "rid", Surface.CHAT, 0.0, 1.0, dispatched_s=0.1)
    print(f"log_line {microseconds(lambda: log_line(done), 1000):.1f} us")


class Late(NamedTuple):
    """How late the loop was at one moment, and for how long of that its threads had no core.

    ``held_s``: the longest such wait of another thread, which may have had the interpreter's lock.
    """

    late_s: float
    waited_s: float
    held_s: float

    @property
    def own_s(self) -> float:
        """What remains for the program itself to answer for."""
        return max(0.0, self.late_s - self.waited_s - self.held_s)


def delays() -> dict[int, float]:
    """By thread of this process: how long the system ran something else instead of it."""
    threads = [int(thread.name) for thread in Path("/proc/self/task").iterdir()]
    return {thread: run_delay_s(os.getpid(), thread) for thread in threads}


@asynccontextmanager
async def lateness() -> AsyncIterator[list[Late]]:
    """How late the loop was, millisecond by millisecond, in seconds; in order once it is over."""
    stalls: list[Late] = []
    loop_thread = threading.get_native_id()

    async def watch() -> None:
        while True:
            before, before_s = delays(), time.perf_counter()
            await asyncio.sleep(0.001)
            late_s, after = time.perf_counter() - before_s - 0.001, delays()
            waited = {thread: after[thread] - before.get(thread, 0.0) for thread in after}
            waited_s = waited.pop(loop_thread)
            stalls.append(Late(late_s, waited_s, max(waited.values(), default=0.0)))

    watcher = asyncio.ensure_future(watch())
    yield stalls
    await asyncio.sleep(0.01)  # it may be late at the very end
    watcher.cancel()
    stalls.sort()


async def print_loading() -> None:
    path = tokenizer_path()
    started = time.thread_time()
    Tokenizer.from_file(str(path))
    held_s = time.thread_time() - started
    async with lateness() as stalls:
        await asyncio.to_thread(Counter, path)
    print(
        f"event loop while a tokenizer of {path.stat().st_size / 1e6:.1f} MB is loaded in a "
        f"thread: late by at most {stalls[-1].late_s:.2f} s; its library's loader, which gives "
        f"nobody else a turn, takes {held_s:.2f} s of CPU"
    )


async def print_stalls(counter: Counter) -> None:
    text = sized(counter, 8192)
    stage = CountingPool(2, 2048, 10_000, 1 << 30)
    started = time.perf_counter()
    calls = []

    def count() -> Counted:
        return counter.count(text, add_special_tokens=False)

    async with lateness() as stalls:
        for number in range(150):
            await asyncio.sleep(max(0.0, started + number / 50 - time.perf_counter()))
            calls.append(asyncio.ensure_future(stage.work(len(text), count)))
        await asyncio.gather(*calls)
    stage.close()
    own = sorted(late.own_s for late in stalls)
    late = (1000 * stalls[int(0.99 * len(stalls))].late_s, 1000 * stalls[-1].late_s)
    print(
        f"event loop while 8,192-token prompts arrive at 50/s: late by p99 {late[0]:.2f} ms, at "
        f"most {late[1]:.2f} ms; less the time in which its threads waited for a core: p99 "
        f"{own[int(0.99 * len(own))] * 1000:.2f} ms, at most {own[-1] * 1000:.2f} ms"
    )


def main() -> None:
    """Print all figures."""
    counter = Counter(tokenizer_path())
    gc.collect()
    gc.freeze()  # as the gateway does: else a collection looks through all modules
    sys.setswitchinterval(SWITCH_S)
    print_counting(counter)
    print_steps(counter)
    asyncio.run(print_stalls(counter))
    asyncio.run(print_loading())


if __name__ == "__main__":
    main()
