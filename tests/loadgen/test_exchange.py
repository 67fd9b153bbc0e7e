from loadgen.exchange import Exchange


def test_a_fresh_exchange_has_seen_nothing_and_shares_nothing():
    one, other = Exchange(1), Exchange(2)
    one.body += b"x"
    one.reads.append((1, 1))
    one.headers[b"a"] = b"b"
    assert (other.body, other.reads, other.headers) == (bytearray(), [], {})
    assert (other.sent_ns, other.status, other.complete, other.fault) == (None, None, False, None)
