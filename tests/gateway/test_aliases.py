"""When two engines are one."""

from gateway.aliases import EngineIdentity, shared

HERE = frozenset({"10.0.0.1:8000"})
THERE = frozenset({"10.0.0.2:8000", "[fd00::2]:8000"})


def one(identities: dict[str, EngineIdentity], **pools: list[str]) -> list[str]:
    return [str(found) for found in shared(identities, pools)]


def test_two_names_of_one_address_are_one_engine() -> None:
    names = {"http://a": EngineIdentity(HERE), "http://b": EngineIdentity(HERE | THERE)}
    (found,) = shared(names, {"short": ["http://a"], "long": ["http://b"]})
    assert found.across
    assert found.because == "the same address 10.0.0.1:8000"
    assert str(found).startswith("http://a and http://b (pools short, long): ")


def test_two_addresses_of_one_process_are_one_engine() -> None:
    twin = {
        "http://a": EngineIdentity(HERE, 1700000000.25, "cache"),
        "http://b": EngineIdentity(THERE, 1700000000.25, "cache"),
    }
    assert "the same process start 1700000000.25" in one(twin, p=["http://a"], q=["http://b"])[0]


def test_engines_started_together_that_differ_are_two() -> None:
    pair = {
        "http://a": EngineIdentity(HERE, 17.0, "one cache"),
        "http://b": EngineIdentity(THERE, 17.0, "another"),
    }
    assert one(pair, p=["http://a"], q=["http://b"]) == []


def test_what_is_not_known_is_not_the_same() -> None:
    nobody = {"http://a": EngineIdentity(), "http://b": EngineIdentity()}
    unsaid = {
        "http://a": EngineIdentity(HERE, 17.0, None),
        "http://b": EngineIdentity(THERE, 17.0, None),
    }
    assert one(nobody, p=["http://a"], q=["http://b"]) == []
    assert one(unsaid, p=["http://a"], q=["http://b"]) == []


def test_an_engine_named_twice_in_one_pool_does_not_join_pools() -> None:
    names = {"http://a": EngineIdentity(HERE), "http://b": EngineIdentity(HERE)}
    (found,) = shared(names, {"p": ["http://a", "http://b"]})
    assert not found.across
