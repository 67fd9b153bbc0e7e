from loadgen.capture import Capture


def test_a_fresh_capture_has_seen_nothing_and_shares_nothing():
    one, other = Capture(1), Capture(2)
    one.body += b"x"
    one.reads.append((1, 1))
    one.headers[b"a"] = b"b"
    assert (other.body, other.reads, other.headers) == (bytearray(), [], {})
    assert (other.sent_ns, other.status, other.complete, other.fault) == (None, None, False, None)
