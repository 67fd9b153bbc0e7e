import pytest

from loadgen.record import BenchError
from loadgen.simulate import SimArrival
from loadgen.spread import Spread, pool_engines

POOLS = [{"classes": ["short"], "engines": 1}, {"classes": ["long"], "engines": 2}]


def arrival(seq, name):
    return SimArrival(seq, 0.0, name, 100, 10)


def test_engines_are_numbered_in_the_order_of_the_pools():
    assert pool_engines(POOLS) == {"short": range(1), "long": range(1, 3)}
    shared = pool_engines([{"classes": ["short", "long"], "engines": 3}])
    assert shared == {"short": range(3), "long": range(3)}


def test_each_class_goes_to_its_own_pool_s_least_loaded_engine():
    gate = Spread(pool_engines(POOLS))
    engines = [
        gate.offer(arrival(n, name), 0.0)[0].engine
        for n, name in enumerate(("short", "long", "long", "short"))
    ]
    assert engines == [0, 1, 2, 0]
    gate.first_event(2, 0.1)
    gate.finished(2, 0.2, 10)
    assert gate.offer(arrival(4, "long"), 0.3)[0].engine == 2


def test_a_pool_without_a_number_of_engines_is_refused():
    with pytest.raises(BenchError, match="needs classes and a number of engines"):
        pool_engines([{"classes": ["short"], "engines": "two"}])
