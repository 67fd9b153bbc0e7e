"""Makes the HTTP client with which operators' questions ask one engine.

Probes and relayed requests go through ``wire``; this is for what is asked seldom and needs more
than one short answer: the experiment on priority, the comparison with a record.
"""

from functools import partial
from ssl import PROTOCOL_TLS_CLIENT, SSLContext

import httpx

from gateway.endpoint import Endpoint

__all__ = ["http_client"]


def http_client(endpoint: Endpoint, timeout_s: float) -> httpx.AsyncClient:
    """A client for one engine that keeps no connections."""
    # A context is costly to make, and httpx makes one even where there is no TLS. This one trusts
    # nobody, should it be used all the same.
    tls = endpoint.tls or SSLContext(PROTOCOL_TLS_CLIENT)
    # Nothing compressed: bounds on bytes are to hold for what is kept.
    headers = {"accept-encoding": "identity"}
    if endpoint.host_header is not None:
        headers["host"] = endpoint.host_header
    return httpx.AsyncClient(
        base_url=endpoint.base_url,
        headers=headers,
        timeout=timeout_s,
        event_hooks={"request": [partial(_name_service, endpoint.service)]},
        transport=httpx.AsyncHTTPTransport(
            verify=tls,
            uds=endpoint.unix_path,
            limits=httpx.Limits(max_keepalive_connections=0),
        ),
    )


async def _name_service(service: str | None, request: httpx.Request) -> None:
    """A certificate must be the service's whose name was looked up, whatever the address."""
    if service is not None:
        request.extensions["sni_hostname"] = service
