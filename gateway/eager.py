"""Runs a coroutine at once, as far as it comes without waiting, or in a task that is there already.

Most awaitables of the hot path have nothing to wait for: a body that came with its head, a part
of an answer that the caller's socket takes at once. Those need no task and no turn of the loop.
"""

import asyncio
from collections.abc import Coroutine, Generator
from functools import partial
from typing import Any, Generic, TypeVar

__all__ = ["OneTask", "Started"]

T = TypeVar("T")
_Work = Coroutine[Any, Any, None] | None


class Started(Generic[T]):
    """A coroutine that has been begun: either ``done``, with its ``value``, or to be awaited.

    What it raises before it first waits is raised here. It must not depend on its task.
    """

    __slots__ = ("_coroutine", "_yielded", "done", "value")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self.done = False
        self.value: T | None = None
        try:
            self._yielded = coroutine.send(None)
        except StopIteration as end:
            self.done, self.value = True, end.value
        else:
            self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, T | None]:
        """Wait for the rest of it, within a task."""
        yielded = self._yielded
        while True:
            try:
                sent = yield yielded
            except BaseException as error:
                step = partial(self._coroutine.throw, error)
            else:
                step = partial(self._coroutine.send, sent)
            try:
                yielded = step()
            except StopIteration as end:
                self.done, self.value = True, end.value
                return self.value


class OneTask:
    """Runs coroutines one after another in one task: to make one costs as much as to read a head.

    One that is started before the one before it is over gets a task of its own.
    """

    __slots__ = ("_closed", "_idle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._closed = False
        # What the task that has nothing to do waits for.
        self._idle: tuple[asyncio.Task[None], asyncio.Future[_Work]] | None = None

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` from the next turn of the loop on; returns the task that does."""
        idle, self._idle = self._idle, None
        if idle is None or idle[1].done():
            return self._loop.create_task(self._run(work))
        idle[1].set_result(work)
        return idle[0]

    def close(self) -> None:
        """End the task when it has nothing to do, which may be now."""
        self._closed = True
        if self._idle is not None and not self._idle[1].done():
            self._idle[1].set_result(None)

    async def _run(self, work: _Work) -> None:
        task = asyncio.current_task()
        while work is not None:
            await work
            work = None  # what is over is not kept
            if task is None or self._closed or self._idle is not None:
                return
            more: asyncio.Future[_Work] = self._loop.create_future()
            self._idle = (task, more)
            try:
                work = await more
            except asyncio.CancelledError:
                given = more.result() if more.done() and not more.cancelled() else None
                if given is not None:
                    given.close()  # it was to begin in this turn
                raise
