"""Decides whether a canary may begin, and what it is watched for.

The baseline must be able to take everything back: an engine of it is up and not saturated. Its
rollback record must verify, or somebody says why there is none, which is audited. Thresholds are
those asked for, else the record's, else the usual ones of the size class.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.app import Gateway
from gateway.manifest import abort_rules
from gateway.manifest_desk import Desk
from gateway.manifest_fields import RecordError
from gateway.moves import RouteError
from gateway.routing import Route
from gateway.thresholds import Threshold, ThresholdError, from_json

__all__ = ["asked_for", "baseline_fault", "checked_record"]

Rules = Sequence[Mapping[str, Any]]


def baseline_fault(gateway: Gateway, route: Route) -> str | None:
    """Why the stable pool of ``route`` could not take all of its requests back; None: it could."""
    core = gateway.parts.turnstile.core
    names = gateway.parts.fleet.pools.get(route.stable_pool, ())
    up = [
        core.engines[name] for name in names if name in core.engines and core.engines[name].usable
    ]
    if any(e.slots_used < e.limits.slots and e.prefill_used < e.limits.prefill_tokens for e in up):
        return None
    state = f"all of its {len(up)} engines that are up are full" if up else "no engine of it is up"
    return (
        f"{route.name}: pool {route.stable_pool!r}: {state}, so it could not take back what a "
        "canary gets"
    )


async def checked_record(
    desk: Desk, options: Mapping[str, Any], route: Route
) -> tuple[dict[str, Any] | list[dict[str, Any]], Rules]:
    """Hold the record that ``options`` name against the stable pool.

    Returns what the audit trail is to say of it, and the record's rules to abort by.

    Raises:
        RouteError: it does not verify, or there is neither a record nor a reason for none.
    """
    reason = options.get("without_record")
    if isinstance(reason, str) and reason.strip():
        return {"without_record": reason.strip()}, ()
    if not options.get("manifest"):
        raise RouteError(
            f"{route.name}: a canary needs the rollback record of its baseline (manifest), or a "
            "reason to go without one (without_record)"
        )
    try:
        record, found = await desk.verified(options, route.stable_pool)
    except RecordError as error:
        raise RouteError(f"{route.name}: manifest: {error}") from error
    for one in found:
        if not one.ok:
            raise RouteError(f"{route.name}: pool {route.stable_pool!r}: {one.words}")
    return [one.told() for one in found], abort_rules(record)


def asked_for(options: Mapping[str, Any], rules: Rules, route: Route) -> tuple[Threshold, ...]:
    """The thresholds that ``options`` give, else those of the record's rules; none of either: ().

    Raises:
        RouteError: they can't be read.
    """
    asked = options.get("watch")
    try:
        if asked is not None:
            return from_json(_rows(asked))
        return from_json(rules) if rules else ()
    except ThresholdError as error:
        raise RouteError(f"{route.name}: watch: {error}") from error


def _rows(asked: Any) -> Rules:
    rows = asked.get("abort") if isinstance(asked, Mapping) else None
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise ThresholdError('must be {"abort": [{"metric": ..., ...}, ...]}')
    return rows
