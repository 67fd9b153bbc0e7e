"""Decides whether the gateway as a whole takes one more request, before and while its body comes.

Bounds the requests and the body bytes held at once. A body of undeclared length is charged in
steps as it arrives, so nobody can promise little and send much. Pure: no I/O, no clock.
"""

from dataclasses import dataclass

from gateway.domain import MisuseError, Outcome, Refused

__all__ = ["Held", "Intake"]

UNDECLARED_STEP_BYTES = 64 << 10


@dataclass(slots=True, eq=False)
class Held:
    """What one request is charged; given back once."""

    charged_bytes: int = 0
    received_bytes: int = 0
    open: bool = True


class Intake:
    """The gateway-wide account.

    Args:
        max_requests: requests between their headers and their end.
        max_bytes: body bytes of those requests.
    """

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self.requests = 0
        self.bytes = 0

    def enter(self, declared_bytes: int | None) -> Held:
        """Take a request whose headers are complete.

        Raises:
            Refused: ``ingress_full``, and nothing is charged.
        """
        first_bytes = UNDECLARED_STEP_BYTES if declared_bytes is None else declared_bytes
        if self.requests + 1 > self._max_requests:
            raise Refused(Outcome.INGRESS_FULL, "The gateway holds as many requests as it may.")
        held = Held()
        self._charge(held, first_bytes)
        self.requests += 1
        return held

    def received(self, held: Held, more_bytes: int) -> None:
        """Another part of the body has come.

        Raises:
            Refused: ``ingress_full``; what was charged stays charged until ``leave``.
        """
        held.received_bytes += more_bytes
        while held.received_bytes > held.charged_bytes:
            self._charge(held, UNDECLARED_STEP_BYTES)

    def leave(self, held: Held) -> None:
        """The request is over."""
        if not held.open:
            raise MisuseError("a request left the intake twice")
        held.open = False
        self.requests -= 1
        self.bytes -= held.charged_bytes

    def _charge(self, held: Held, amount: int) -> None:
        if self.bytes + amount > self._max_bytes:
            raise Refused(Outcome.INGRESS_FULL, "The gateway holds as many bytes as it may.")
        self.bytes += amount
        held.charged_bytes += amount
