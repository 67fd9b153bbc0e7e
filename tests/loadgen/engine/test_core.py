"""The core against a hand-made clock: what it measures, and when a cancellation takes effect."""

import asyncio
from collections.abc import Awaitable, Callable

from loadgen.engine.core import EngineCore, Job, Ticket
from loadgen.engine.cost import StepCost
from loadgen.engine.metrics import EngineMetrics
from loadgen.engine.scheduler import SchedulerConfig

CONFIG = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=4)
FREE = StepCost(0.0, 0.0, 0.0, 0.0)


def job(prompt: int = 10, output: int = 3) -> Job:
    return Job(prompt, output, "length", output)


def make(cost: StepCost = FREE, scale: float = 1.0) -> EngineCore:
    return EngineCore(CONFIG, cost, EngineMetrics("m", CONFIG), scale)


async def driven(core: EngineCore, act: Callable[[], Awaitable[None]]) -> None:
    """Run the core while ``act`` runs."""
    async with asyncio.TaskGroup() as tasks:
        runner = tasks.create_task(core.run())
        await act()
        runner.cancel()


async def finish(ticket: Ticket) -> None:
    while not ticket.finished:
        await ticket.ready.wait()
        ticket.ready.clear()


async def test_a_ticket_gets_every_token_and_then_the_core_is_empty() -> None:
    core = make()

    async def act() -> None:
        ticket = core.submit(job(), asyncio.Event())
        assert core.prefill_tokens_queued == 10
        await finish(ticket)
        assert (ticket.take(), ticket.take(), ticket.generated) == (3, 0, 3)
        assert (core.unfinished, core.prefill_tokens_queued) == (0, 0)

    await driven(core, act)
    assert b'vllm:generation_tokens_total{engine="0",model_name="m"} 3.0' in core.metrics.page(
        core.scheduler
    )


async def test_a_cancelled_ticket_gets_nothing_more_and_frees_its_seat() -> None:
    core = make(StepCost(0.001, 0.0, 0.0, 0.0))

    async def act() -> None:
        ticket = core.submit(job(output=1000), asyncio.Event())
        await ticket.ready.wait()
        core.cancel(ticket)
        had = ticket.generated
        other = core.submit(job(), asyncio.Event())
        await finish(other)
        assert ticket.generated == had
        assert core.scheduler.running == 0

    await driven(core, act)


async def test_a_halted_core_delivers_nothing() -> None:
    core = make(StepCost(0.001, 0.0, 0.0, 0.0))

    async def act() -> None:
        ticket = core.submit(job(output=1000), asyncio.Event())
        await ticket.ready.wait()
        core.halt()
        had = ticket.generated
        core.submit(job(), asyncio.Event())
        await asyncio.sleep(0.01)
        assert ticket.generated == had
        assert core.scheduler.has_work

    await driven(core, act)


async def test_abort_all_ends_every_ticket_and_says_so() -> None:
    core = make(StepCost(0.001, 0.0, 0.0, 0.0))

    async def act() -> None:
        tickets = [core.submit(job(output=1000), asyncio.Event()) for _ in range(6)]
        await tickets[0].ready.wait()
        core.abort_all()
        assert all(ticket.finished and ticket.aborted for ticket in tickets)
        await asyncio.sleep(0.01)
        assert not core.scheduler.has_work

    await driven(core, act)


async def test_times_are_told_in_the_engines_clock() -> None:
    ticks = iter(range(10_000))
    core = EngineCore(
        CONFIG, FREE, EngineMetrics("m", CONFIG), time_scale=4.0, clock=lambda: float(next(ticks))
    )

    async def act() -> None:
        await finish(core.submit(job(output=2), asyncio.Event()))

    await driven(core, act)
    page = core.metrics.page(core.scheduler).decode()
    total = next(
        line
        for line in page.splitlines()
        if line.startswith("vllm:inter_token_latency_seconds_sum")
    )
    # Between two deliveries the clock is read twice: before the sleep and after it.
    assert float(total.rsplit(" ", 1)[1]) == 2 * 4.0
