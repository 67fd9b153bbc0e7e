"""Decides whether the gateway as a whole takes one more request, before and while its body comes.

Bounds the requests and the body bytes held at once, over all callers and for each. A body is
charged as it arrives, whatever was declared: nobody fills the gateway with promises.
Pure: no I/O, no clock.
"""

from dataclasses import dataclass

from gateway.domain import MisuseError, Outcome, Refused

__all__ = ["Held", "Intake"]


@dataclass(slots=True, eq=False)
class Held:
    """What one request is charged; given back once."""

    principal: str
    bytes: int = 0
    open: bool = True


class Intake:
    """The gateway-wide account.

    Args:
        max_requests: requests between their headers and their end.
        max_bytes: body bytes of those requests.
        principal_share: the part of both that one caller may hold.
    """

    def __init__(self, max_requests: int, max_bytes: int, principal_share: float = 1.0) -> None:
        self._by_principal: dict[str, tuple[int, int]] = {}
        self.requests = 0
        self.bytes = 0
        self.bound(max_requests, max_bytes, principal_share)

    def bound(self, max_requests: int, max_bytes: int, principal_share: float) -> None:
        """Put other bounds in force; what is held already stays held."""
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._own_requests = max(1, int(principal_share * max_requests))
        self._own_bytes = int(principal_share * max_bytes)

    def enter(self, principal: str) -> Held:
        """Take a request whose headers are complete and whose caller is known.

        Raises:
            Refused: ``ingress_full``, or ``principal_limit`` for a caller's own share; nothing is
                charged.
        """
        if self.requests + 1 > self._max_requests:
            raise Refused(Outcome.INGRESS_FULL, "The gateway holds as many requests as it may.")
        requests, size = self._by_principal.get(principal, (0, 0))
        if requests + 1 > self._own_requests:
            raise Refused(Outcome.PRINCIPAL_LIMIT, "This key holds as many requests as it may.")
        self.requests += 1
        self._by_principal[principal] = (requests + 1, size)
        return Held(principal)

    def received(self, held: Held, more_bytes: int) -> None:
        """Another part of the body has come.

        Raises:
            Refused: as ``enter``; what was charged before stays charged until ``leave``.
        """
        if self.bytes + more_bytes > self._max_bytes:
            raise Refused(Outcome.INGRESS_FULL, "The gateway holds as many bytes as it may.")
        requests, size = self._by_principal[held.principal]
        if size + more_bytes > self._own_bytes:
            raise Refused(Outcome.PRINCIPAL_LIMIT, "This key holds as many bytes as it may.")
        self.bytes += more_bytes
        held.bytes += more_bytes
        self._by_principal[held.principal] = (requests, size + more_bytes)

    def leave(self, held: Held) -> None:
        """The request is over."""
        if not held.open:
            raise MisuseError("a request left the intake twice")
        held.open = False
        self.requests -= 1
        self.bytes -= held.bytes
        requests, size = self._by_principal.pop(held.principal)
        if requests > 1:
            self._by_principal[held.principal] = (requests - 1, size - held.bytes)
