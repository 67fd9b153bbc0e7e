from gateway.sent import by_name


def test_headers_are_found_by_their_names_whatever_the_case() -> None:
    assert by_name([(b"Accept", b"a"), (b"x", b"")]) == {b"accept": b"a", b"x": b""}


def test_what_was_sent_more_than_once_has_no_value() -> None:
    sent = by_name([(b"a", b"1"), (b"b", b"2"), (b"A", b"1")])
    assert sent == {b"a": None, b"b": b"2"}


def test_no_name_costs_a_search_through_all_the_others() -> None:
    class Counted(bytes):
        """A name that counts how often it is compared with another."""

        compared = 0

        def lower(self) -> bytes:
            return self

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return bytes.__eq__(self, other)

        __hash__ = bytes.__hash__

    names = [Counted(b"%d" % number) for number in range(500)]
    sent = by_name([(name, b"") for name in [*names, Counted(b"7")]])
    assert [name for name, value in sent.items() if value is None] == [b"7"]
    assert Counted.compared < 10 * len(names)
