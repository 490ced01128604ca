"""Where no key is configured: what a page that somebody visits may not ask of the gateway.

A browser on this machine reaches a gateway that listens on this machine alone. What it sends for a
page of another origin has one of two headers, which the SDK never sends; where a name was made to
mean this machine (DNS rebinding), the page is of our origin, and only the name tells it from ours.
"""

import ipaddress

from asgi_gateway.asgi import Call, Reply, Scope, header
from asgi_gateway.errors import Forbidden
from asgi_gateway.route import Handler


def own_pages_only(handler: Handler) -> Handler:
    """Answers Forbidden where a browser says that the page is another site's or origin's."""

    async def guarded(call: Call) -> Reply:
        _require_own_page(call.scope)
        return await handler(call)

    return guarded


def own_names_only(handler: Handler, server_host: str) -> Handler:
    """Answers Forbidden where Host is no IP address, `localhost` or `server_host`."""

    async def guarded(call: Call) -> Reply:
        _require_own_name(call.scope, server_host.lower())
        return await handler(call)

    return guarded


def _require_own_page(scope: Scope) -> None:
    host = (header(scope, b"host") or b"").lower()
    for name, value in scope["headers"]:
        if name == b"sec-fetch-site" and value.strip().lower() == b"cross-site":
            raise Forbidden("a page of another site asked for this (Sec-Fetch-Site)")
        if name == b"origin" and (not host or value.partition(b"://")[2].lower() != host):
            raise Forbidden("a page of another origin asked for this (Origin is not Host)")


def _require_own_name(scope: Scope, server_host: str) -> None:
    host = header(scope, b"host")
    if host is None:  # no browser leaves it out
        return
    name = host.decode("latin-1").lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    if name not in ("localhost", server_host) and not _is_address(name):
        raise Forbidden(
            "where no keys are configured, ask for this by an IP address, localhost or the name in"
            f" server.host, not by {name!r:.200}"
        )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
