"""Runs a coroutine at once, as far as it comes without waiting.

Most awaitables of the hot path have nothing to wait for: a body that came with its head, a part
of an answer that the caller's socket takes at once. Those need no task and no turn of the loop.
"""

from collections.abc import Coroutine, Generator
from functools import partial
from typing import Any, Generic, TypeVar

__all__ = ["Started"]

T = TypeVar("T")


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
