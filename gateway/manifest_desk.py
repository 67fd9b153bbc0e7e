"""Keeps sealed records in the gateway's state, and holds one against the engines of a pool.

A record is kept by its digest; one that lies over another needs that one to be kept. What was
accepted unverified is written to the audit trail by whoever asks: a canary, or an operator.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.app import Gateway
from gateway.drift import Facts, Verification, compare
from gateway.inspect_engine import inspect_engine
from gateway.launch_record import LaunchRecord
from gateway.manifest import Record, document, opened
from gateway.manifest_fields import RecordError
from gateway.trail import Trail

__all__ = ["Desk"]

KIND = "manifest"
STRICT = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class LaunchOptions(BaseModel):
    """A launch record that was read where its file is."""

    model_config = STRICT
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    told: dict[str, Any]
    started_s: float | None = None


class RecordOptions(BaseModel):
    """What a change says of the record it rests on; ``manifest`` is a digest, or sealed itself."""

    model_config = STRICT
    manifest: str | dict[str, Any]
    launch_record: tuple[LaunchOptions, ...] = ()
    accept_unverified: tuple[str, ...] = ()


class Desk:
    """The records of one gateway.

    Args:
        gateway: whose pools and routes are looked at.
        trail: where records and audit entries are kept.
    """

    def __init__(self, gateway: Gateway, trail: Trail) -> None:
        self._gateway = gateway
        self._trail = trail

    async def keep(self, who: str, found: Any, why: str = "") -> tuple[Record, bool]:
        """Keep a sealed record; returns it, and whether it is new here.

        Raises:
            RecordError: it can't be read, or the record it lies over is not kept.
            StateError: it could not be written.
        """
        record = opened(found)
        kept = await self._trail.get_all(KIND)
        if record.digest in kept:
            return record, False
        if record.parent is not None and record.parent not in kept:
            raise RecordError(f"parent {record.parent}: is not kept here; send that record first")
        detail = {"digest": record.digest, "parent": record.parent}
        # Told first: a record that is kept was never kept by nobody.
        await self._trail.note(who, KIND, None, why, detail)
        await self._trail.put(KIND, record.digest, document(record))
        return record, True

    async def rows(self) -> list[dict[str, Any]]:
        """All kept records in brief."""
        return [_row(name, body) for name, body in (await self._trail.get_all(KIND)).items()]

    async def find(self, digest: str) -> Record:
        """The kept record whose digest begins so.

        Raises:
            RecordError: none does, or several do.
        """
        kept = await self._trail.get_all(KIND)
        found = [name for name in kept if name.startswith(digest)]
        if len(found) != 1 or len(digest) < 8:
            reason = "several records begin so" if len(found) > 1 else "no such record is kept here"
            raise RecordError(f"manifest {digest}: {reason}")
        return _kept(found[0], kept[found[0]])

    def facts(self, pool: str) -> dict[str, Any]:
        """What this gateway says of its routes and of a pool, under a record's field names.

        Limits are those in force here: of several gateways before the same engines, each has its
        part.
        """
        parts, setup = self._gateway.parts, self._gateway.setup
        document, engines = setup.settings.document, parts.fleet.pools.get(pool, ())
        limits = [parts.fleet.engines[e] for e in engines if e in parts.fleet.engines]
        routes = setup.table.routes.values()
        told: dict[str, Any] = {f"route.{r.model}/{r.size_class}": r.stable_pool for r in routes}
        probe = document.probe
        for name in ("interval_s", "timeout_s", "failures", "stall_s"):
            told[f"health_probe.{name}"] = getattr(probe, name)
        told["drain_deadline_s"] = document.server.drain_deadline_s
        told["capacity.engines"] = len(engines)
        for name in ("slots", "prefill_tokens"):
            if limits:
                told[f"capacity.{name}"] = min(getattr(one, name) for one in limits)
        return told

    async def verified(
        self, options: Mapping[str, Any], pool: str
    ) -> tuple[Record, list[Verification]]:
        """Hold the record that ``options`` name against every engine of ``pool``.

        Args:
            options: as ``RecordOptions``; other keys are somebody else's.
            pool: of the engines that the record is of.

        Raises:
            RecordError: there is no such record, pool or field, or an engine can't be asked.
        """
        asked = _asked(options)
        record = await self._named(asked.manifest)
        read = asked.launch_record
        launch = tuple(LaunchRecord(one.sha256, one.told, one.started_s) for one in read)
        engines = self._gateway.parts.fleet.pools.get(pool, ())
        if pool not in [v for k, v in record.fields.items() if k.startswith("route.")]:
            raise RecordError(f"record {record.digest}: has no route to pool {pool!r}")
        if not engines:
            raise RecordError(f"pool {pool}: has no engines to hold record {record.digest} against")
        told = await asyncio.gather(*(self._inspected(record, engine) for engine in engines))
        gateway = self.facts(pool)
        return record, [
            compare(
                record,
                engine,
                Facts(facts.engine, launch, gateway, facts.started_s),
                asked.accept_unverified,
            )
            for engine, facts in zip(engines, told, strict=True)
        ]

    async def note(
        self, who: str, seen_from: str, found: Sequence[Mapping[str, Any]], why: str
    ) -> None:
        """Write a verification to the audit trail, with every field that was accepted unverified.

        Args:
            who: the operator.
            seen_from: who asked the engines: this gateway, or the operator's own machine.
            found: as ``Verification.told``, for each engine.
            why: in the operator's words.

        Raises:
            StateError: it could not be written.
        """
        detail = {"seen_from": seen_from, "engines": [_short(told) for told in found]}
        await self._trail.note(who, "manifest_verify", None, why, detail)

    async def _named(self, manifest: str | dict[str, Any]) -> Record:
        return await self.find(manifest) if isinstance(manifest, str) else opened(manifest)

    async def _inspected(self, record: Record, engine: str) -> Facts:
        try:
            return await inspect_engine(record, self._gateway.parts.prober.endpoint(engine))
        except ConnectionError as error:
            raise RecordError(f"the engine can't be asked: {error}") from error


def _kept(digest: str, body: Any) -> Record:
    """A record as it was kept; raises ``RecordError`` where it is another now."""
    try:
        record = opened(body)
    except RecordError as error:
        raise RecordError(f"manifest {digest}, kept here: {error}") from error
    if record.digest != digest:
        raise RecordError(f"manifest {digest}, kept here: another record is in its place")
    return record


def _row(digest: str, body: Any) -> dict[str, Any]:
    try:
        record = _kept(digest, body)
    except RecordError as error:
        return {"digest": digest, "fault": str(error)}
    return {
        "digest": digest,
        "parent": record.parent,
        "owner": record.fields["owner"],
        "deployment_revision": record.fields["deployment.revision"],
        "decision": document(record)["decision"],
    }


def _asked(options: Mapping[str, Any]) -> RecordOptions:
    try:
        return RecordOptions.model_validate(options)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise RecordError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _short(told: Mapping[str, Any]) -> dict[str, Any]:
    """Of the fields only those that did not match: the record itself is kept."""
    fields = [row for row in told.get("fields", ()) if row.get("state") != "matched"]
    return {**told, "fields": fields}
