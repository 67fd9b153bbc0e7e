"""Decides whether a route table keeps the rules of a configuration.

What an operator's move brings about must hold as if the file said so: pools apart from each other,
floors kept on every engine that gets a flow. Pure: no I/O, no clock.
"""

from collections.abc import Iterator, Mapping, Sequence

from gateway import schema
from gateway.consistency import Fault, floor_faults, reference_faults, replica_faults
from gateway.domain import EngineLimits, FlowSpec
from gateway.routing import Route, RouteTable

__all__ = ["table_faults"]


def table_faults(
    document: schema.Document,
    flows: Sequence[FlowSpec],
    pools: Mapping[str, EngineLimits],
    table: RouteTable,
) -> Iterator[Fault]:
    """Why ``table`` could not stand in the configuration in place of its own routes.

    Args:
        document: the configuration.
        flows: its flows.
        pools: the limits of a whole engine of each pool.
        table: the table in question.
    """
    routes = tuple(map(_section, table.routes.values()))
    as_if = document.model_copy(update={"route": routes})
    yield from reference_faults(as_if)
    yield from replica_faults(as_if, pools)
    yield from floor_faults(as_if, flows, pools)


def _section(route: Route) -> schema.Route:
    return schema.Route(
        model=route.model,
        size=route.size_class,
        pool=route.stable_pool,
        candidate_pool=route.candidate_pool,
        candidate_weight=route.candidate_weight,
        admission=route.mode,
    )
