"""Which engines pools have, and what may be outstanding on each."""

from pathlib import Path

from gateway.membership import carried, engines_of, limits_of, named, users_of
from gateway.routing import Route
from gateway.schema import Document
from tests.gateway.minimal import CONFIG, settings

TWO = CONFIG.replace(
    'engines = ["http://127.0.0.1:8001"]',
    'engines = ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]\nmax_engines = 3',
)
LOOKED_UP = CONFIG.replace('engines = ["http://127.0.0.1:8001"]', 'dns = "http://vllm.svc:8000"')
ONE, OTHER = "http://10.0.0.1:8000", "http://10.0.0.2:8000"
ROUTES = (Route("m", "short", "a"), Route("m", "long", "a"))


def document(folder: Path, config: str) -> Document:
    return settings(folder, config).document


def test_named_engines_are_called_by_their_address_and_looked_up_ones_are_not_known_yet(
    tmp_path: Path,
) -> None:
    assert list(named(document(tmp_path, TWO))["a"]) == [
        "http://127.0.0.1:8001",
        "http://127.0.0.1:8002",
    ]
    assert named(document(tmp_path, LOOKED_UP)) == {"a": {}}


def test_members_found_at_run_time_stay_while_the_pools_own_keys_do(tmp_path: Path) -> None:
    before = document(tmp_path, LOOKED_UP)
    found = {"a": {"a#0": ONE, "a#1": OTHER}}
    assert carried(before, found, document(tmp_path, LOOKED_UP.replace("128", "64"))) == found
    elsewhere = document(tmp_path, LOOKED_UP.replace("vllm.svc", "vllm2.svc"))
    assert carried(before, found, elsewhere) == {"a": {}}
    fewer = document(tmp_path, LOOKED_UP.replace('8000"', '8000"\nmax_engines = 1'))
    assert carried(before, found, fewer) == {"a": {"a#0": ONE}}


def test_every_engine_knows_who_uses_it() -> None:
    members = {"a": {"x": ONE}, "b": {"y": OTHER}}
    routes = (Route("m", "short", "a"), Route("m", "long", "a", "b", 0.1))
    assert engines_of(members) == {"x": ONE, "y": OTHER}
    assert users_of(members, routes) == {
        "x": {("m", "short"), ("m", "long")},
        "y": {("m", "long")},
    }


def test_replicas_agree_on_an_engine_whatever_each_calls_it(tmp_path: Path) -> None:
    pools = settings(tmp_path, TWO).pool_limits
    first = limits_of(pools, {"a": {"a#0": ONE, "a#1": OTHER}}, ROUTES, (0, 2))
    second = limits_of(pools, {"a": {"a#5": OTHER, "a#6": ONE}}, ROUTES, (1, 2))
    assert first["a#0"].slots == second["a#6"].slots == 64
    for mine, theirs in (("a#0", "a#6"), ("a#1", "a#5")):
        caps = [dict(has.max_prefilling)["long"] for has in (first[mine], second[theirs])]
        assert sorted(caps) == [0, 1]
