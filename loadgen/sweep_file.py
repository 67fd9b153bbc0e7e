"""Reads a sweep file (TOML), strictly: an unknown key or an impossible value stops it here.

Paths in it are relative to its folder. Every error names the file, the key and the reason.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from loadgen.files import file_digest, read_bytes, read_json
from loadgen.record import BenchError
from loadgen.sweep_settings import Rates, SweepSettings, faults

__all__ = ["Sweep", "read_sweep"]


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep file that was read: its settings, its folder, and what the files it names hold.

    `baseline_args` are B0's, with dashes made underscores; `baseline` and `rates_source` say
    where arguments and rates come from, with the digest of the file if there is one.
    """

    settings: SweepSettings
    folder: Path
    baseline_args: Mapping[str, Any]
    baseline: Mapping[str, Any]
    rates_source: Mapping[str, Any]


def read_sweep(path: Path, *, with_rates: bool = True) -> Sweep:
    """Read and check a sweep file and the small files it names.

    Args:
        path: of the file.
        with_rates: whether the rates must be known; they are not before `calibrate` found them.

    Raises:
        BenchError: unreadable, malformed, or impossible; file, key and reason are named.
    """
    settings = _validated(_toml(path), path)
    settings, rates_source = (_with_rates if with_rates else _without_rates)(settings, path)
    for key, reason in faults(settings):
        raise BenchError(f"{path}: {key}: {reason}")
    args, baseline = _baseline(settings, path)
    return Sweep(settings, path.parent, args, baseline, rates_source)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_bytes(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BenchError(f"{path}: not TOML ({error})") from error


def _validated(data: Mapping[str, Any], path: Path) -> SweepSettings:
    try:
        # By way of JSON, where a list may become a tuple and nothing else is converted.
        text = json.dumps(data, default=str)
        return TypeAdapter(SweepSettings).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        said = "unknown key" if first["type"] == "unexpected_keyword_argument" else first["msg"]
        raise BenchError(f"{path}: {key}: {said}") from error


def _with_rates(settings: SweepSettings, path: Path) -> tuple[SweepSettings, Mapping[str, Any]]:
    """Take the rates from the file that `calibrate` wrote, where one is named."""
    if settings.rates_file is None:
        return settings, {"kind": "stated"}
    if settings.rates:
        raise BenchError(f"{path}: rates_file: give rates or rates_file, not both")
    own = path.parent / settings.rates_file
    found = read_json(own)
    try:
        rates = TypeAdapter(dict[str, Rates]).validate_json(json.dumps(found["rates"]))
        source = {"kind": "calibration", "sha256": file_digest(own), **found["source"]}
    except (KeyError, TypeError, ValidationError) as error:
        raise BenchError(f"{own}: not rates as `bench calibrate` writes them ({error})") from error
    return replace(settings, rates=rates), source


def _without_rates(settings: SweepSettings, path: Path) -> tuple[SweepSettings, Mapping[str, Any]]:
    """Put one request per second wherever a rate belongs."""
    rates = {name: Rates(1.0, 1.0, 1.0) for name in settings.drawn_mixes}
    return replace(settings, rates=rates), {"kind": "none", "said": f"{path}: not calibrated"}


def _named(args: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("--").replace("-", "_"): value for name, value in args.items()}


def _baseline(settings: SweepSettings, path: Path) -> tuple[dict[str, Any], Mapping[str, Any]]:
    own = settings.baseline
    if own.captured is None:
        why = "a stand-in: no production engine was captured"
        return _named(own.stand_in), {"source": "stand-in", "said": why}
    captured = path.parent / own.captured
    found = read_json(captured)
    args = found.get("args")
    if not isinstance(args, Mapping) or not args:
        raise BenchError(f"{captured}: args: the captured arguments are missing")
    told = ("approved_by", "engine", "captured_from", "complete", "facts")
    said: dict[str, Any] = {name: found[name] for name in told if name in found}
    return _named(args), {"source": "captured", "sha256": file_digest(captured), **said}
