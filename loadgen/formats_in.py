"""Reads recorded traces in the formats that are published: Mooncake, BurstGPT and Azure.

They carry times and sizes, not text: each request gets its class by size and a text made to size.
Mooncake: JSONL with `timestamp` (ms), `input_length`, `output_length`. BurstGPT: CSV with
`Timestamp` (s), `Request tokens`, `Response tokens` (a response of 0 tokens is a failure of
theirs and left out). Azure: CSV with `TIMESTAMP` (a date), `ContextTokens`, `GeneratedTokens`.
Pure: no I/O, no clock.
"""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from loadgen.record import BenchError, strict_json

__all__ = ["FORMATS", "Recorded", "Replayed", "read_recorded", "replayed"]


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded request: seconds since the first, and its sizes."""

    at_s: float
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """One request to replay: its offset in this run, its class and its sizes."""

    offset_us: int
    size_class: str
    input_tokens: int
    output_tokens: int


Row = tuple[float, int, int]


def _lines(data: bytes, name: str) -> list[str]:
    try:
        return data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise BenchError(f"{name}: not UTF-8 ({error.reason})") from error


def _mooncake(data: bytes, name: str) -> Iterator[Row]:
    for number, line in enumerate(_lines(data, name), start=1):
        if not line.strip():
            continue
        at = f"{name} line {number}"
        row = strict_json(line.encode(), at)
        try:
            yield float(row["timestamp"]) / 1e3, row["input_length"], row["output_length"]
        except (KeyError, TypeError, ValueError) as error:
            raise BenchError(f"{at}: not a Mooncake request ({error!r})") from error


def _csv_rows(
    data: bytes, name: str, columns: tuple[str, str, str], seconds: Callable[[str], float]
) -> Iterator[Row]:
    reader = csv.DictReader(_lines(data, name))
    missing = [c for c in columns if c not in (reader.fieldnames or ())]
    if missing:
        found = ", ".join(reader.fieldnames or ()) or "nothing"
        raise BenchError(f"{name}: column {missing[0]!r} is missing; found {found}")
    when, asked, answered = columns
    for row in reader:
        try:
            yield seconds(row[when]), int(float(row[asked])), int(float(row[answered]))
        except (TypeError, ValueError) as error:
            raise BenchError(f"{name} line {reader.line_num}: {error}") from error


def _burstgpt(data: bytes, name: str) -> Iterator[Row]:
    columns = ("Timestamp", "Request tokens", "Response tokens")
    yield from (row for row in _csv_rows(data, name, columns, float) if row[2] > 0)


def _azure(data: bytes, name: str) -> Iterator[Row]:
    columns = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    yield from _csv_rows(data, name, columns, _azure_seconds)


def _azure_seconds(text: str) -> float:
    """Read a date with seven decimals, with or without an offset, as seconds."""
    day, _, rest = text.strip().replace("T", " ").partition(" ")
    clock, _, fraction = rest.partition(".")
    digits = "".join(c for c in fraction[:9] if c.isdigit())
    whole = datetime.fromisoformat(f"{day} {clock[:8]}+00:00")
    return whole.timestamp() + (float(f"0.{digits}") if digits else 0.0)


_READ = {"mooncake": _mooncake, "burstgpt": _burstgpt, "azure": _azure}
FORMATS = tuple(_READ)


def read_recorded(data: bytes, form: str, name: str) -> tuple[Recorded, ...]:
    """Return a file's requests in time order, the first at 0 s.

    Raises:
        BenchError: not that format, or empty; file and line are named.
    """
    rows = sorted(_READ[form](data, name))
    if not rows:
        raise BenchError(f"{name}: holds no {form} request")
    first_s = rows[0][0]
    return tuple(Recorded(at_s - first_s, asked, told) for at_s, asked, told in rows)


def replayed(
    recorded: Sequence[Recorded],
    bounds: Mapping[str, int],
    least_tokens: int,
    rate_per_s: float,
    length_s: float,
    skip_s: float = 0.0,
) -> tuple[Replayed, ...]:
    """Cut a stretch out of a recorded trace and stretch its times to a mean rate.

    Args:
        recorded: the trace.
        bounds: the largest prompt of each class; a request above all of them is cut to the
            largest, since the engine could not serve it.
        least_tokens: the smallest prompt that can be made; smaller ones are raised to it.
        rate_per_s: of the whole trace, after stretching.
        length_s: how much of the stretched trace to take.
        skip_s: from where in the stretched trace.

    Raises:
        BenchError: there is nothing in that stretch.
    """
    span_s = recorded[-1].at_s
    scale = (len(recorded) - 1) / (span_s * rate_per_s) if span_s > 0 else 1.0
    order = sorted(bounds.items(), key=lambda item: item[1])
    taken = []
    for request in recorded:
        at_s = request.at_s * scale - skip_s
        if 0 <= at_s < length_s:
            tokens = min(max(request.input_tokens, least_tokens), order[-1][1])
            name = next(n for n, bound in order if tokens <= bound)
            output = max(1, request.output_tokens)
            taken.append(Replayed(int(at_s * 1e6), name, tokens, output))
    if not taken:
        raise BenchError(
            f"recorded trace: nothing from {skip_s:g} to {skip_s + length_s:g} s at "
            f"{rate_per_s:g} requests per second"
        )
    return tuple(taken)
