from prometheus_client import CollectorRegistry

from gateway.tallies import Kind, Tallies

KINDS = {
    "c": Kind("counter", ("who",), "help"),
    "h": Kind("histogram", (), "help"),
    "g": Kind("gauge", (), "not kept here"),
}


def test_counts_and_times_are_exported_with_their_labels_and_buckets() -> None:
    tallies = Tallies(KINDS, (0.1, 1.0))
    registry = CollectorRegistry()
    registry.register(tallies)
    tallies.count("c", "a").value += 1
    tallies.count("c", "a").value += 2.5
    tallies.count("c", "b").value += 1
    for seconds in (0.05, 0.1, 0.2, 7.0):
        tallies.spread("h").note(seconds)
    assert registry.get_sample_value("c_total", {"who": "a"}) == 3.5
    assert registry.get_sample_value("c_total", {"who": "b"}) == 1.0
    buckets = [registry.get_sample_value("h_bucket", {"le": le}) for le in ("0.1", "1.0", "+Inf")]
    assert buckets == [2, 3, 4]
    assert registry.get_sample_value("h_count") == 4
    assert registry.get_sample_value("h_sum") == 7.35
    assert registry.get_sample_value("g") is None


def test_nothing_counted_is_no_series() -> None:
    registry = CollectorRegistry()
    tallies = Tallies(KINDS, (0.1,))
    registry.register(tallies)
    tallies.count("c", "a")
    tallies.spread("h")
    assert [family.samples for family in registry.collect()] == [[], []]


def test_what_was_counted_elsewhere_is_added_by_bucket() -> None:
    tallies = Tallies({"t": Kind("histogram", ("a",), "T.")}, (1.0, 2.0))
    tallies.spread("t", "x").note(1.5)
    tallies.spread("t", "x").fold([1, 0, 2], 9.5)
    samples = {s.labels.get("le", s.name): s.value for m in tallies.collect() for s in m.samples}
    assert samples == {"1.0": 1, "2.0": 2, "+Inf": 4, "t_count": 4, "t_sum": 11.0}


def test_what_is_labelled_otherwise_than_is_kept_is_forgotten() -> None:
    tallies = Tallies(
        {"c": Kind("counter", ("a", "b"), "C."), "t": Kind("histogram", ("a",), "T.")}, (1.0,)
    )
    for name in ("x", "y"):
        tallies.count("c", name, "any").value += 1
        tallies.spread("t", name).note(0.5)
    kept = tallies.count("c", "x", "any")
    tallies.keep({"a": {"x"}})
    assert tallies.counted("c") == {("x", "any"): 1}
    assert tallies.count("c", "x", "any") is kept
    assert set(tallies.spreads("t")) == {("x",)}
