"""Decides from what an engine counts whether it was restarted, or is several engines.

A start time that was not seen before, or counters lower than before, is a restart. A process
starts once: a start time that comes back, or counters that keep falling, are several engines
behind one name. That is said until one of them has answered for a while.
Pure: no I/O, no clock.
"""

from dataclasses import dataclass, replace

from gateway.scrape import Scrape

__all__ = ["Epochs", "after_page"]

REMEMBERED_STARTS = 8
# Falls of a counter without a new start time, within so many pages, that no restarts explain.
FALLS, FALLS_WITHIN = 3, 12
SETTLED_PAGES = 60


@dataclass(frozen=True, slots=True)
class Epochs:
    """The starts of one engine seen so far. ``mixed``: it is not one engine.

    ``epoch`` counts starts; the first page makes it 1. ``steady`` are the pages since the start
    time or a counter last changed in a way that one process does not explain.
    """

    epoch: int = 0
    mixed: bool = False
    starts: tuple[float, ...] = ()
    falls: tuple[int, ...] = ()
    pages: int = 0
    steady: int = 0


def after_page(before: Epochs, last: Scrape, page: Scrape) -> Epochs:
    """The next state: ``last`` is the page before ``page``, whatever could be read of it."""
    pages = before.pages + 1
    start = page.process_start_s
    if pages == 1:
        return Epochs(1, starts=() if start is None else (start,), pages=1)
    if start is None:
        return _by_counters(replace(before, pages=pages), last, page)
    if not before.starts or start == before.starts[-1]:
        known = before.starts or (start,)
        return _by_counters(replace(before, pages=pages, starts=known), last, page)
    if start in before.starts:
        others = tuple(s for s in before.starts if s != start)
        return replace(before, mixed=True, starts=(*others, start), pages=pages, steady=0)
    starts = (*before.starts, start)[-REMEMBERED_STARTS:]
    return _restarted(replace(before, pages=pages, starts=starts, falls=()))


def _by_counters(state: Epochs, last: Scrape, page: Scrape) -> Epochs:
    pairs = (
        (last.iterations, page.iterations),
        (last.prompt_tokens, page.prompt_tokens),
        (last.preemptions, page.preemptions),
    )
    if not any(a is not None and b is not None and b < a for a, b in pairs):
        steady = state.steady + 1
        return replace(state, steady=steady, mixed=state.mixed and steady < SETTLED_PAGES)
    recent = tuple(p for p in state.falls if p > state.pages - FALLS_WITHIN)
    falls = (*recent, state.pages)[-FALLS:]
    if len(falls) == FALLS:
        return replace(state, mixed=True, falls=falls, steady=0)
    return _restarted(replace(state, falls=falls))


def _restarted(state: Epochs) -> Epochs:
    """One more start, unless nobody can say whose it is."""
    return replace(state, epoch=state.epoch + (not state.mixed), steady=0)
