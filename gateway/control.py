"""The operator's hand on a running gateway: reload, limits, pauses; each change is written down.

A reload reads and checks everything first, in a thread; then it takes over in one step of the
loop, or changes nothing. Limits set at run time lie over the configuration (``limits``), survive a
reload where they still fit, and expire by themselves. Each change is one line in the log,
``admin_change``, which says who did what, from what to what.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gateway.admission import Admission
from gateway.app import Gateway
from gateway.assembly import setup_of
from gateway.audit import EXPIRY
from gateway.config import ConfigError, load
from gateway.domain import FlowSpec, MisuseError
from gateway.endpoint import EngineTlsError
from gateway.files import raise_all
from gateway.limits import (
    ENGINE_KEYS,
    FLOW_KEYS,
    MAX_EXPIRY_S,
    PAUSED,
    Entry,
    Group,
    LimitError,
    Overlay,
    amended,
    apply,
    expired,
    faults,
    fitting,
)
from gateway.reload import changed_callers, changed_keys, fixed_faults
from gateway.review import warnings_of
from gateway.routing import RouteTable
from gateway.setup import Setup
from gateway.state import StateError
from gateway.tls import Certificates, certificates
from gateway.trail import Draft, Trail, in_memory, taken_back
from gateway.verdicts import Verdict

__all__ = ["Change", "Control", "StaleError"]

RETIRE_POLL_S = 0.5


class StaleError(Exception):
    """Somebody else changed the limits first; ``revision`` is the one in force."""

    def __init__(self, revision: int) -> None:
        super().__init__(f"the limits are at revision {revision} now: look again, then decide")
        self.revision = revision


@dataclass(frozen=True, slots=True)
class Change:
    """What an operator asks for: values by path, ``None`` takes one back.

    ``revision`` is the one it is based on; ``check_only`` changes nothing.
    """

    revision: int
    values: Mapping[str, Any]
    expires_s: float | None = None
    check_only: bool = False


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A configuration that was read and checked whole; ``draft`` is the table that it brings."""

    setup: Setup
    draft: Draft | None
    shown: Mapping[str, Certificates]
    replaced_pool: bool


class Control:
    """Changes a gateway while it serves. Call it on the loop.

    Args:
        gateway: what is changed.
        shown: the certificates of its listeners, by section.
        trail: the committed route tables; None: kept in memory alone.
    """

    def __init__(
        self, gateway: Gateway, shown: Mapping[str, Certificates], trail: Trail | None = None
    ) -> None:
        self.gateway = gateway
        self.trail = trail or in_memory(gateway.setup.table)
        self.changing = asyncio.Lock()  # held from the look at a route table until another rules
        self.overlay = Overlay()
        self._shown = shown
        self._paused_engines: frozenset[str] = frozenset()
        self._timer: asyncio.TimerHandle | None = None
        self._retiring: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Forget the timers."""
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._retiring):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    # -- reload ----------------------------------------------------------------------------

    async def reload(self, who: str) -> dict[str, Any]:
        """Read the configuration anew and put it in force; returns what changed.

        Raises:
            ConfigError: it can't be used; nothing was changed.
        """
        async with self.changing:
            before = self.gateway.setup
            try:
                prepared = await asyncio.to_thread(_prepare, before, self.trail, who)
                await self._commit(prepared)
            except ConfigError as error:
                self._refused(who, error)
                raise
            try:
                return self._take_over(who, before, prepared)
            except (MisuseError, EngineTlsError) as error:
                refused = ConfigError(before.settings.path, "", str(error))
                self._refused(who, refused)
                if prepared.draft is not None:
                    await self.take_back(prepared.draft, str(error))
                raise refused from error

    async def _commit(self, prepared: _Prepared) -> None:
        if prepared.draft is None:
            return
        try:
            await self.trail.commit(prepared.draft)
        except StateError as error:
            path, reason = prepared.setup.settings.path, f"the routes can't be kept: {error}"
            raise ConfigError(path, "state.directory", reason) from error

    async def take_back(self, draft: Draft, why: str) -> None:
        """What was committed could not take effect: commit what is in force, as a revision.

        Where it can't be, it stays in force, and a restart has the other: the log says so.
        """
        again = taken_back(self.gateway.setup.table, draft, why)
        try:
            await self.trail.commit(again)
        except StateError as error:
            revision = draft.table.revision
            self._note("not_taken_back", revision=revision, reason=why, error=str(error))
        self.gateway.setup = replace(self.gateway.setup, table=again.table)

    def _take_over(self, who: str, before: Setup, prepared: _Prepared) -> dict[str, Any]:
        parts, settings = self.gateway.parts, prepared.setup.settings
        engines = parts.fleet.configured(settings, prepared.setup.table)
        users = parts.fleet.users(settings, prepared.setup.table)
        overlay, dropped = fitting(self.overlay, settings.flows, engines, users)
        self._enforce(prepared.setup, overlay)
        parts.identity.replace(settings.keyring, settings.issuers)
        parts.observer.use(settings)
        server = settings.document.server
        parts.intake.bound(server.max_requests, server.max_held_bytes, server.principal_share)
        for name, certificate in prepared.shown.items():
            self._shown[name].use(certificate)
        if prepared.replaced_pool:
            self._retire(before.counting.pool.close)
        told = {
            "from": before.settings.digest(),
            "to": settings.digest(),
            "changed": [
                *changed_keys(before.settings.effective(), settings.effective()),
                *changed_callers(before.settings.keyring, settings.keyring),
            ],
            "revision": prepared.setup.table.revision,
            "keys": len(settings.keyring.entries),
            "limits_dropped": dropped,
        }
        self.gateway.reload_refused = False
        self._note("admin_change", who=who, action="reload", **told)
        for warning in (*settings.warnings, *warnings_of(settings)):
            self._note("warning", message=warning)
        return told

    # -- limits ----------------------------------------------------------------------------

    def change(self, who: str, wanted: Change) -> dict[str, Any]:
        """Set limits, or take them back; returns the limits then in force.

        Raises:
            LimitError: a path or value that can't be, or that breaks a floor.
            StaleError: the limits are at another revision.
        """
        if wanted.revision != self.overlay.revision:
            raise StaleError(self.overlay.revision)
        if not wanted.values:
            raise LimitError("set: names nothing to change")
        overlay = amended(self.overlay, wanted.values, who, self._until_s(wanted.expires_s))
        reason = self._fault(overlay, self.gateway.setup.table)
        if reason is not None:
            raise LimitError(reason)
        if not wanted.check_only:
            before = self.overlay
            self._enforce(self.gateway.setup, overlay)
            self._audit(who, before, wanted.values)
        return self.view()

    def view(self) -> dict[str, Any]:
        """The revision, what is set, and the limits in force."""
        now, setup = self.gateway.parts.clock(), self.gateway.setup
        groups = self.gateway.parts.turnstile.core.groups
        return {
            "revision": self.overlay.revision,
            "set": {path: _set(entry, now) for path, entry in self.overlay.entries.items()},
            "flows": [_flow(spec, groups[spec.group].paused) for spec in setup.specs.values()],
            "engines": [
                {
                    "engine": engine,
                    **{key: getattr(limits, key) for key in ENGINE_KEYS if key != PAUSED},
                    PAUSED: engine in self._paused_engines,
                }
                for engine, limits in self.gateway.parts.fleet.engines.items()
            ],
        }

    def _until_s(self, expires_s: float | None) -> float | None:
        if expires_s is None:
            return None
        if not 0 < expires_s <= MAX_EXPIRY_S:
            raise LimitError(f"expires_s: must be above 0 and at most {MAX_EXPIRY_S:g}")
        return self.gateway.parts.clock() + expires_s

    def _fault(self, overlay: Overlay, table: RouteTable) -> str | None:
        settings, fleet = self.gateway.setup.settings, self.gateway.parts.fleet
        engines, users = fleet.configured(settings, table), fleet.users(settings, table)
        return next(faults(overlay, settings.flows, engines, users), None)

    def _expire(self) -> None:
        self._timer = None
        before = self.overlay
        overlay, gone = expired(before, self.gateway.parts.clock())
        if gone:
            self._enforce(self.gateway.setup, overlay)
            self._audit(EXPIRY, before, gone)
        self._arm()

    # -- routes ----------------------------------------------------------------------------

    def route_fault(self, table: RouteTable) -> str | None:
        """Why the engines could not serve ``table`` under the limits in force."""
        return self._fault(self.overlay, table)

    def steer(self, table: RouteTable) -> None:
        """Put a committed route table in force, in one step of the loop.

        Raises:
            MisuseError: it names a pool that is not there; nothing was changed.
        """
        self._enforce(replace(self.gateway.setup, table=table), self.overlay)

    # -- putting in force ------------------------------------------------------------------

    def _enforce(self, setup: Setup, overlay: Overlay) -> None:
        """In one step of the loop, the flows and limits of ``setup`` under ``overlay``.

        Raises:
            MisuseError: they do not hold together; nothing was changed.
        """
        parts, settings = self.gateway.parts, setup.settings
        engines = parts.fleet.configured(settings, setup.table)
        now = apply(overlay, settings.flows, engines)
        parts.fleet.use(
            settings,
            setup.table,
            now.flows,
            lambda engine, limits: apply(overlay, (), {engine: limits}).engines[engine],
        )
        self._pause(now.paused_groups, now.paused_engines)
        self.gateway.setup = replace(setup, specs={spec.group: spec for spec in now.flows})
        self.overlay = overlay
        self._arm()

    def _pause(self, groups: frozenset[Group], engines: frozenset[str]) -> None:
        turnstile = self.gateway.parts.turnstile
        for group in turnstile.core.groups:
            turnstile.core.pause(group, paused=group in groups)
        for engine in (self._paused_engines ^ engines) & set(turnstile.core.engines):
            turnstile.tell(partial(_set_paused, engine, engine in engines))
        self._paused_engines = engines

    def _arm(self) -> None:
        """One timer, for the next entry that expires."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self.overlay.next_expiry_s()
        if due_s is not None:
            delay_s = max(0.0, due_s - self.gateway.parts.clock())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def _retire(self, close: Callable[[], None]) -> None:
        """Close what was replaced, once the requests that may use it are over."""
        users = frozenset(self.gateway.running)

        async def wait() -> None:
            while users & self.gateway.running:  # noqa: ASYNC110  a request's end signals nobody
                await asyncio.sleep(RETIRE_POLL_S)
            await asyncio.to_thread(close)

        task = asyncio.get_running_loop().create_task(wait())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    def _audit(self, who: str, before: Overlay, paths: Iterable[str]) -> None:
        """One line: the values of the changed paths before and now; null is the configuration's."""
        told = {
            word: {path: _value(overlay.entries.get(path)) for path in paths}
            for word, overlay in (("from", before), ("to", self.overlay))
        }
        self._note("admin_change", who=who, action="limits", revision=self.overlay.revision, **told)

    def _refused(self, who: str, error: ConfigError) -> None:
        self.gateway.reload_refused = True
        self._note("reload_refused", who=who, **_named(error))

    def _note(self, event: str, **facts: object) -> None:
        self.gateway.parts.journal.event(event, **facts)


def _prepare(before: Setup, trail: Trail, who: str) -> _Prepared:
    """Everything of a reload that may take long or fail; runs in a thread.

    Raises:
        ConfigError: naming file, key and reason.
    """
    settings = load(before.settings.path)
    raise_all(settings.path, fixed_faults(before.settings.document, settings.document))
    if not (settings.keyring.entries or settings.issuers):
        keys = settings.file(settings.document.auth.keys_file)
        raise ConfigError(keys, "", "holds no key, and no issuer of tokens is configured")
    shown = certificates(settings)
    draft = trail.draft(settings, who)
    table = trail.present(settings) if draft is None else draft.table
    setup = setup_of(settings, table, before.counting.turnstile, before)
    return _Prepared(setup, draft, shown, setup.counting.pool is not before.counting.pool)


def _set_paused(engine: str, paused: bool, core: Admission, now: float) -> Sequence[Verdict]:
    return core.set_engine(engine, now, paused=paused)


def _named(error: ConfigError) -> dict[str, object]:
    """The first fault by its parts, and all of them where there are several."""
    told: dict[str, object] = {
        "file": str(error.file),
        "key": error.key,
        "reason": error.reason,
    }
    if len(error.faults) > 1:
        told["faults"] = [str(fault) for fault in error.faults]
    return told


def _value(entry: Entry | None) -> object:
    return None if entry is None else entry.value


def _flow(spec: FlowSpec, paused: bool) -> dict[str, object]:
    keys = ("model", "size_class", "service_class", *FLOW_KEYS)
    return {key: paused if key == PAUSED else getattr(spec, key) for key in keys}


def _set(entry: Entry, now: float) -> dict[str, object]:
    left_s = None if entry.until_s is None else round(max(0.0, entry.until_s - now), 3)
    return {"value": entry.value, "by": entry.by, "expires_in_s": left_s}
