"""Keeps counters and histograms as plain numbers, turned into families at scrape time.

A tenth of the client library's own cost per update: one thread updates, so no lock is taken, and
who updates often keeps the ``Count`` or ``Spread`` rather than its name and labels. One that has
counted nothing is no series.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

__all__ = ["BOUNDS_S", "Count", "Kind", "Spread", "Tallies"]

# From a cached short prompt's first token to the longest document: 1 ms to 600 s.
BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5),
    *(0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)


@dataclass(frozen=True, slots=True)
class Kind:
    """What one metric is: its type, the names of its labels and its help text."""

    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    text: str


@dataclass(slots=True)
class Count:
    """One counter."""

    value: float = 0.0


@dataclass(slots=True)
class Spread:
    """One histogram; the last of its counts is above all bounds."""

    bounds_s: tuple[float, ...]
    counts: list[int]
    sum_s: float = 0.0

    def note(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(self.bounds_s, seconds)] += 1
        self.sum_s += seconds

    def fold(self, counts: Sequence[int], sum_s: float) -> None:
        """Add durations that were counted elsewhere, by bucket."""
        self.counts = [have + more for have, more in zip(self.counts, counts, strict=True)]
        self.sum_s += sum_s


class Tallies:
    """The counters and histograms of a table; register it as a collector.

    Args:
        kinds: the metrics by name; gauges are somebody else's.
        bounds_s: the upper bounds of all histograms' buckets, ascending.
    """

    def __init__(self, kinds: Mapping[str, Kind], bounds_s: Sequence[float]) -> None:
        self._kinds = kinds
        self._bounds_s = tuple(bounds_s)
        self._bound_texts = (*map(str, bounds_s), "+Inf")
        self._counts: dict[str, dict[tuple[str, ...], Count]] = {
            name: {} for name, kind in kinds.items() if kind.kind == "counter"
        }
        self._spreads: dict[str, dict[tuple[str, ...], Spread]] = {
            name: {} for name, kind in kinds.items() if kind.kind == "histogram"
        }

    def count(self, name: str, *labels: str) -> Count:
        """The counter of these labels, which come in the order of the table."""
        counts = self._counts[name]
        found = counts.get(labels)
        if found is None:
            found = counts[labels] = Count()
        return found

    def spread(self, name: str, *labels: str) -> Spread:
        """The histogram of these labels."""
        spreads = self._spreads[name]
        found = spreads.get(labels)
        if found is None:
            found = spreads[labels] = Spread(self._bounds_s, [0] * len(self._bound_texts))
        return found

    def keep(self, values: Mapping[str, Collection[str]]) -> None:
        """Forget all that is labelled otherwise than ``values``; a label not in it may be any."""
        for held in (self._counts, self._spreads):
            for name, children in held.items():
                bounds = [values.get(label) for label in self._kinds[name].labels]
                for labels in list(children):
                    pairs = zip(labels, bounds, strict=True)
                    if any(allowed is not None and said not in allowed for said, allowed in pairs):
                        del children[labels]

    def counted(self, name: str) -> dict[tuple[str, ...], float]:
        """What all counters of a name say now, by labels."""
        return {labels: count.value for labels, count in self._counts[name].items()}

    def spreads(self, name: str) -> dict[tuple[str, ...], tuple[int, ...]]:
        """What all histograms of a name hold now by bucket, by labels."""
        return {labels: tuple(spread.counts) for labels, spread in self._spreads[name].items()}

    def collect(self) -> Iterator[Metric]:
        """All families, as the registry asks for them at a scrape."""
        for name, counts in self._counts.items():
            kind = self._kinds[name]
            counter = CounterMetricFamily(name, kind.text, labels=kind.labels)
            for labels, count in list(counts.items()):
                if count.value:
                    counter.add_metric(labels, count.value)
            yield counter
        for name, spreads in self._spreads.items():
            kind = self._kinds[name]
            histogram = HistogramMetricFamily(name, kind.text, labels=kind.labels)
            for labels, spread in list(spreads.items()):
                if any(spread.counts):
                    buckets = list(zip(self._bound_texts, accumulate(spread.counts), strict=True))
                    histogram.add_metric(labels, buckets, spread.sum_s)
            yield histogram
