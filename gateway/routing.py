"""Decides which model, route and arm a request belongs to.

A ``RouteTable`` is an immutable value with a revision: whoever holds one sees one consistent
set of routes, and applying another is the holder's swap of one reference. The arm is chosen by
a keyed hash of the principal, so a retry lands on the same side and a caller, who does not know
the salt, cannot choose it. The salt lives as long as the state that keeps the tables; what is
hashed with it begins with the revision in which a route's pair of pools came, so that another
candidate gets other callers while another weight of the same one keeps those it had. No session
takes part: the gateway knows callers, not their sessions.
Pure: no I/O, no clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b

from gateway.domain import AdmissionMode, Arm, Outcome, Refused
from gateway.verdicts import RouteView

__all__ = ["ModelName", "Route", "RouteTable", "serving", "shared_engines"]

# Looked up once: Python 3.11 finds an enum's member in ten times the time of a global.
_STABLE, _CANDIDATE = Arm.STABLE, Arm.CANDIDATE
_HASH_BYTES = 8
_HASH_SPAN = float(1 << (8 * _HASH_BYTES))


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model as callers name it (``public``, or one of the aliases) and as engines know it.

    ``granted`` is the name that a caller's grant must hold where it is another: an adapter is
    routed as the model it belongs to, and granted by its own name.
    """

    public: str
    engine_model: str
    aliases: tuple[str, ...] = ()
    granted: str | None = None

    @property
    def grant(self) -> str:
        """The name by which a caller is allowed to use it."""
        return self.granted or self.public


@dataclass(frozen=True, slots=True)
class Route:
    """Where the requests of one (model, size class) go. ``candidate_weight`` is in [0, 1].

    ``since`` is the revision in which its pair of pools came, ``previous_pool`` the stable one
    before the last flip. ``draining`` is set by ``serving`` alone: nobody goes anywhere.
    """

    model: str
    size_class: str
    stable_pool: str
    candidate_pool: str | None = None
    candidate_weight: float = 0.0
    mode: AdmissionMode = AdmissionMode.ENFORCE
    since: int = 0
    previous_pool: str | None = None
    draining: bool = False

    @property
    def name(self) -> str:
        """What operators call it: MODEL/SIZE."""
        return f"{self.model}/{self.size_class}"

    def pool(self, arm: Arm) -> str:
        """The pool of ``arm``; an arm that no longer exists falls back to the stable pool."""
        if arm is _CANDIDATE and self.candidate_pool is not None:
            return self.candidate_pool
        return self.stable_pool


@dataclass(frozen=True, slots=True)
class RouteTable:
    """All routes of one revision, and the names of the models.

    ``models`` maps every accepted name, aliases included. ``salt`` is secret and random.
    ``draining`` names pools, and routes as MODEL/SIZE, that get no new work.
    """

    revision: int
    salt: bytes
    routes: Mapping[tuple[str, str], Route]
    models: Mapping[str, ModelName]
    draining: frozenset[str] = frozenset()

    def model(self, name: str) -> ModelName:
        """The model that callers mean by ``name``.

        Raises:
            Refused: ``not_found`` where no model has that name.
        """
        found = self.models.get(name)
        if found is None:
            raise Refused(
                Outcome.NOT_FOUND, f"The model {name[:80]!r} does not exist.", param="model"
            )
        return found

    def route(self, model: str, size_class: str) -> Route:
        """The route of a public model name and size class, as it is served while pools drain.

        Raises:
            Refused: ``not_found`` where the size class is not served for the model.
        """
        found = self.routes.get((model, size_class))
        if found is None:
            raise Refused(
                Outcome.NOT_FOUND, f"{model!r} does not serve prompts of class {size_class!r}."
            )
        return serving(found, self.draining)

    def uses(self, pool: str) -> bool:
        """Whether any route leads to ``pool``, as its stable one or as its candidate."""
        return any(pool in {r.stable_pool, r.candidate_pool} for r in self.routes.values())

    def arm(self, route: Route, principal_id: str) -> Arm:
        """The side of ``route`` on which the principal's requests go, stable for one salt."""
        if route.candidate_pool is None or route.candidate_weight <= 0.0:
            return _STABLE
        name = f"{route.since}\0{route.model}\0{route.size_class}\0{principal_id}".encode()
        digest = blake2b(name, digest_size=_HASH_BYTES, key=self.salt).digest()
        place = int.from_bytes(digest, "big") / _HASH_SPAN
        return Arm.CANDIDATE if place < route.candidate_weight else Arm.STABLE

    def views(self) -> dict[tuple[str, str], RouteView]:
        """The routes as the admission core takes them."""
        return {
            key: RouteView(
                r.stable_pool, r.candidate_pool, r.candidate_weight, r.mode, draining=r.draining
            )
            for key, r in ((key, serving(r, self.draining)) for key, r in self.routes.items())
        }


def serving(route: Route, draining: frozenset[str]) -> Route:
    """Where the requests of ``route`` go while these pools and routes drain.

    What would go to a draining pool goes to the route's other pool; a route that drains itself, or
    has no pool left, is ``draining``. The pools of a draining route stay, to be named.
    """
    if not draining:
        return route
    if route.name in draining:
        return replace(route, draining=True)
    if route.candidate_pool is None or route.candidate_pool in draining:
        gone = route.stable_pool in draining
        return replace(route, candidate_pool=None, candidate_weight=0.0, draining=gone)
    if route.stable_pool not in draining:
        return route
    return replace(
        route, stable_pool=route.candidate_pool, candidate_pool=None, candidate_weight=0.0
    )


def shared_engines(pools: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The engines that several pools name, each with those pools: these are not isolated."""
    users: dict[str, list[str]] = {}
    for name, engines in pools.items():
        for engine in engines:
            users.setdefault(engine, []).append(name)
    return {engine: tuple(names) for engine, names in users.items() if len(names) > 1}
