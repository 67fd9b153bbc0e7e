"""Keeps the engines: which there are, how they are reached, how they are, and who is who.

The one owner of clients and prober. A change of the set of engines (configuration, addresses of a
name, an operator) goes through ``_apply`` in one step: the admission core gets the new topology,
engines that are new are probed before they get work and ramp up, engines that are gone get no new
work and end what they have. What is seen of an engine is turned into calls of the core and lines
of the log here, and nowhere else.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from ssl import SSLContext
from types import MappingProxyType
from typing import Any

from gateway import schema
from gateway.adapting import Adapting, Range
from gateway.breaker import BreakerRule
from gateway.config import Settings
from gateway.domain import EngineLimits, FlowSpec, MisuseError
from gateway.endpoint import Endpoint, EngineTlsError, engine_context
from gateway.engines import Prober, Probing
from gateway.floors import least_limits
from gateway.health import EngineHealth, HealthRules
from gateway.journal import Journal
from gateway.membership import (
    Members,
    carried,
    engines_of,
    limits_of,
    named,
    topology,
    users_of,
    with_engines,
)
from gateway.progress import PriorityState
from gateway.resolve import assigned, lookup
from gateway.routing import RouteTable
from gateway.standing import Standing
from gateway.turnstile import Turnstile
from gateway.wire import EngineClient

__all__ = ["Adjust", "Fleet"]

TICK_S = 1.0
Adjust = Callable[[str, EngineLimits], EngineLimits]


class Fleet:
    """The engines of a gateway. Call it on the loop.

    Args:
        settings: the configuration.
        table: its routes.
        turnstile: before the core, which knows the configured engines already.
        journal: gets a line for each change.
        clock: monotonic seconds.
        look_up: the origins behind a service name now, or ``OSError``.
    """

    def __init__(
        self,
        settings: Settings,
        table: RouteTable,
        turnstile: Turnstile,
        journal: Journal,
        clock: Callable[[], float],
        look_up: Callable[[str], Awaitable[Sequence[str]]] = lookup,
    ) -> None:
        self._look_up = look_up
        self._settings, self._table = settings, table
        self._specs: Sequence[FlowSpec] = settings.flows
        self._adjust: Adjust = lambda _, limits: limits
        self._turnstile, self._journal, self._clock = turnstile, journal, clock
        self._members: Members = named(settings.document)
        self._contexts = _contexts(settings, self._members)
        self._looked_s: dict[str, float] = {}
        self._leaving: dict[str, EngineClient] = {}
        self._settled = False
        self.clients: dict[str, EngineClient] = {}
        self.engines: Mapping[str, EngineLimits] = {}
        self._adapting = Adapting(turnstile, journal, clock)
        self.prober = Prober(_probing(settings.document), clock, self._changed, self._adapting.page)
        self._standing = Standing(self.prober, journal, clock)
        self._apply()

    # -- which engines there are -----------------------------------------------------------

    def configured(self, settings: Settings, table: RouteTable) -> dict[str, EngineLimits]:
        """The limits of every engine there is, or would be, under these settings."""
        members = carried(self._settings.document, self._members, settings.document)
        return self._limits(settings, table, members)

    def users(self, settings: Settings, table: RouteTable) -> dict[str, set[tuple[str, str]]]:
        """Which (model, size class) each engine serves, or would, under these settings."""
        members = carried(self._settings.document, self._members, settings.document)
        return users_of(members, table.routes.values())

    @property
    def pools(self) -> Mapping[str, Sequence[str]]:
        """The engines of each pool now."""
        return {pool: tuple(members) for pool, members in self._members.items()}

    def use(
        self,
        settings: Settings,
        table: RouteTable,
        specs: Sequence[FlowSpec],
        adjust: Adjust | None = None,
    ) -> None:
        """Put another configuration, or other run-time limits, in force in one step.

        Engines that were added or removed at run time stay so while their pool's own keys do.

        Args:
            settings: the configuration.
            table: its routes.
            specs: the flows in force.
            adjust: gives an engine's limits in force from those configured; kept for engines that
                come later.

        Raises:
            MisuseError: it does not hold together; nothing was changed.
            EngineTlsError: a file for TLS has become unusable; nothing was changed.
        """
        before, after = self._settings.document, settings.document
        members = carried(before, self._members, after)
        read_anew = settings is not self._settings
        contexts = _contexts(settings, members) if read_anew else self._contexts
        saved = (self._settings, self._table, self._specs, self._adjust)
        saved_engines = (self._members, self._contexts)
        self._members, self._contexts = members, contexts
        self._settings, self._table, self._specs = settings, table, specs
        self._adjust = adjust or (lambda _, limits: limits)
        try:
            remade = before.upstream != after.upstream
            # Certificates may have been renewed under their names.
            self._apply(lambda endpoint: remade or (read_anew and endpoint.tls is not None))
        except MisuseError:
            self._settings, self._table, self._specs, self._adjust = saved
            self._members, self._contexts = saved_engines
            raise
        self.prober.use(_probing(after))

    async def change_pool(self, pool: str, engines: Sequence[str]) -> None:
        """Give a pool these engines from now on, until its keys change in the configuration.

        Raises:
            ValueError: the pool or the addresses can't be; the message says why.
        """
        members, contexts = self.check_pool(pool, engines)
        before = list(self._members[pool])
        self._members, self._contexts = members, contexts
        self._journal.event("pool_changed", pool=pool, before=before, engines=list(engines))
        self._apply()

    def check_pool(
        self, pool: str, engines: Sequence[str]
    ) -> tuple[Members, dict[str, SSLContext]]:
        """What all pools and their TLS would be if ``pool`` had these engines.

        Raises:
            ValueError: the pool or the addresses can't be; the message says why.
        """
        members = with_engines(self._settings.document, self._members, pool, engines)
        try:
            return members, _contexts(self._settings, members, self._contexts)
        except EngineTlsError as error:
            raise ValueError(f"pool {pool!r}: {error}") from error

    def _limits(
        self, settings: Settings, table: RouteTable, members: Members
    ) -> dict[str, EngineLimits]:
        replica = (settings.replica, settings.document.replicas.count)
        return limits_of(settings.pool_limits, members, table.routes.values(), replica)

    def _apply(self, remade: Callable[[Endpoint], bool] = lambda _: False) -> None:
        """Bring the core, the prober and the clients to the engines that there are now."""
        configured = self._limits(self._settings, self._table, self._members)
        limits = {name: self._adjust(name, has) for name, has in configured.items()}
        whole = topology(self._table, self._members, limits)
        endpoints = self._endpoints()
        self._turnstile.tell(lambda core, now: core.reconfigure(self._specs, whole, now))
        self.engines = MappingProxyType(limits)
        for name in self.clients.keys() - endpoints.keys():
            self.prober.forget(name)
            self._leaving[name] = self.clients[name]
        for name, endpoint in endpoints.items():
            known = name in self.clients and name not in self._leaving
            if not known or remade(endpoint):
                self._open(name, endpoint)
                self.prober.watch(name, endpoint, known=known)
        self._adapting.use(self._ranges(limits))
        self._standing.use(self._settings.document, self._members, limits)
        self._sweep()

    def _open(self, name: str, endpoint: Endpoint) -> None:
        upstream = self._settings.document.upstream
        old = self._leaving.pop(name, self.clients.get(name))
        if old is not None:
            old.close()
        self.clients[name] = EngineClient(
            endpoint.url,
            connect_timeout_s=upstream.connect_timeout_s,
            keepalive_s=upstream.keepalive_s,
            tls=endpoint.tls,
            service=endpoint.service,
        )

    def _endpoints(self) -> dict[str, Endpoint]:
        document, found = self._settings.document, {}
        for pool, members in self._members.items():
            dns = document.pool[pool].dns
            service = dns.split("://")[1].rpartition(":")[0] if dns else None
            for name, address in members.items():
                used = self._contexts[pool] if address.startswith("https:") else None
                found[name] = Endpoint(address, used, service)
        return found

    def _ranges(self, limits: Mapping[str, EngineLimits]) -> dict[str, Range]:
        if not self._settings.document.adaptation.enabled:
            return {}
        users = users_of(self._members, self._table.routes.values())
        count = self._settings.document.replicas.count
        ranges = {}
        for name, has in limits.items():
            specs = [s for s in self._specs if (s.model, s.size_class) in users[name]]
            ranges[name] = Range(has, least_limits(specs, has), has.slots * count)
        return ranges

    def _sweep(self) -> None:
        """Close the clients of engines that are gone and whose last request has ended."""
        for name in [n for n in self._leaving if n not in self._turnstile.core.engines]:
            self._leaving.pop(name).close()
            if name not in self.engines:
                del self.clients[name]

    # -- what is seen of them --------------------------------------------------------------

    def rejected(self, engine: str) -> None:
        """A request was refused by the engine's own bound."""
        self.prober.replied(engine)
        self._adapting.rejected(engine)

    def _changed(self, before: EngineHealth, after: EngineHealth) -> None:
        name, event = after.engine, self._journal.event
        if after.epochs.mixed != before.epochs.mixed:
            word = "not_one_engine" if after.epochs.mixed else "one_engine_again"
            event(word, engine=name, starts=list(after.epochs.starts))
        if after.epoch != before.epoch and before.epoch:
            event("engine_restarted", engine=name, epoch=after.epoch)
            self.clients[name].drop_idle()
            self._adapting.restarted(name)
            self._standing.restarted(name)
            self._turnstile.tell(lambda core, now: core.restarted(name, now))
        if after.up != before.up:
            event("engine_up" if after.up else "engine_down", engine=name, reason=after.reason)
            # What was up before the gateway began is warm; what comes later starts gently.
            ramp = after.up and (self._settled or before.epoch > 0)
            self._turnstile.tell(
                lambda core, now: core.set_engine(name, now, up=after.up, ramp=ramp)
            )
        elif not after.up and not before.probed:
            event("engine_down", engine=name, reason=after.reason)

    # -- running ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Probe, look names up, find aliases, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.prober.run())
            group.create_task(self._keep())

    async def _keep(self) -> None:
        while True:
            try:
                await self._resolve()
                await self._standing.look()
                self._sweep()
            except Exception as error:  # whatever it is, engines are probed and looked up on
                self._journal.fault(error)
            await asyncio.sleep(TICK_S)

    async def first_round(self, limit_s: float) -> bool:
        """Wait until names were looked up and every engine was probed once; False if it is late.

        ``run`` must be running. Engines that come up after this are new: they ramp.
        """
        self._looked_s.clear()
        await self._resolve()
        whole = await self.prober.first_round(limit_s)
        await self._standing.look(at_once=True)
        self._settled = True
        return whole

    async def _resolve(self) -> None:
        """Look up the names that are due; a failure or no address keeps what there was."""
        for pool, section in self._settings.document.pool.items():
            due_s = self._looked_s.get(pool, float("-inf")) + section.dns_interval_s
            if section.dns is None or self._clock() < due_s:
                continue
            self._looked_s[pool] = self._clock()
            try:
                found = await asyncio.wait_for(self._look_up(section.dns), section.dns_interval_s)
            except (OSError, TimeoutError) as error:
                self._standing.lookup_failed(pool, f"{section.dns}: {error or 'no answer'}")
                continue
            self._standing.lookup_failed(pool, None)
            if pool in self._members and section == self._settings.document.pool.get(pool):
                self._take(pool, section, found)

    def _take(self, pool: str, section: schema.Pool, found: Sequence[str]) -> None:
        now = self._members[pool]
        busy = self._turnstile.core.engines  # a name that is given up is free when its work ended
        members = assigned(pool, now, found, busy, section.engine_bound)
        if members != now:
            self._members = {**self._members, pool: MappingProxyType(members)}
            left_out = len(set(found) - set(members.values()))
            self._journal.event("pool_changed", pool=pool, engines=members, left_out=left_out)
            self._apply()

    def close(self) -> None:
        """Close all connections that are idle."""
        for client in (*self.clients.values(), *self._leaving.values()):
            client.close()

    # -- what an operator may see ----------------------------------------------------------

    def isolation_fault(self) -> str | None:
        """Under ``isolation = "required"``: which pools are the same engine after all."""
        return self._standing.isolation_fault()

    def same_as(self, engine: str) -> list[str]:
        """The other engines that turned out to be this one."""
        return self._standing.same_as(engine)

    def priority(self, engine: str) -> PriorityState:
        """What is known of an engine's priorities."""
        return self._standing.priority(engine)

    def status(self) -> list[dict[str, Any]]:
        """One row per engine."""
        addresses, now = engines_of(self._members), self._clock()
        return [
            {
                "engine": name,
                "address": addresses[name],
                "up": health.up,
                "reason": health.reason,
                "since_s": round(now - health.since_s, 3) if health.since_s else None,
                "failures": health.failures,
                "epoch": health.epoch,
                "not_one_engine": health.epochs.mixed,
                "progress": health.progress.pace,
                "breaker": health.breaker.state,
                "running": health.last.running,
                "waiting": health.last.waiting,
                "kv_usage": health.last.kv_usage,
                "scraped_s_ago": None
                if health.scraped_s is None
                else round(now - health.scraped_s, 3),
                "priority": self._standing.priority(name),
                "same_as": self._standing.same_as(name),
                "adapts": self._adapting.limits(name) is not None,
            }
            for name, health in self.prober.health.items()
        ]


def _contexts(
    settings: Settings, members: Members, known: Mapping[str, SSLContext] = MappingProxyType({})
) -> dict[str, SSLContext]:
    """The TLS context of each pool that has, or may come to have, engines that speak it.

    Raises:
        EngineTlsError: a file can't be used any more.
    """
    document, found = settings.document, dict(known)
    for name, pool in document.pool.items():
        addresses = (pool.dns or "", *members[name].values())
        if name not in found and any(address.startswith("https:") for address in addresses):
            found[name] = engine_context(pool.tls or document.upstream.tls, settings.file)
    return found


def _probing(document: schema.Document) -> Probing:
    probe, upstream = document.probe, document.upstream
    breaker = BreakerRule(
        upstream.breaker_failures, upstream.breaker_window_s, upstream.breaker_open_s
    )
    rules = HealthRules(probe.failures, probe.stall_s, breaker)
    return Probing(probe.interval_s, probe.timeout_s, rules)
