"""Where no key is configured: what a page that somebody visits may not ask of the gateway.

A browser on this machine reaches a gateway that listens on this machine alone. What it sends for a
page of another origin has one of two headers, which the SDK never sends; where a name was made to
mean this machine (DNS rebinding), the page is of our origin, and only the name tells it from ours.
"""

import ipaddress
from collections.abc import Iterable

from asgi_gateway.access.bind import is_loopback
from asgi_gateway.access.keys import is_configured
from asgi_gateway.asgi import Call, Reply, Scope, header
from asgi_gateway.errors import Forbidden
from asgi_gateway.route import Handler
from asgi_gateway.settings import Settings


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


class OwnNames:
    """What `serve` may be called where it has no keys and listens on this machine alone.

    A page under a name of its owner's that is pointed at this machine has that name in the Host of
    its requests. No owner of a page has an IP address, `localhost`, or a name that cannot be
    registered: one without a dot, or one below `.localhost` or `.internal`.
    """

    def __init__(self, server_host: str, hosts: Iterable[str]) -> None:
        """hosts: further names."""
        self._names = frozenset(name.lower() for name in ("localhost", server_host, *hosts))

    def __repr__(self) -> str:
        return f"<OwnNames {sorted(self._names)}>"

    def refused(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """Why a request is not answered, None where it is. A browser always sends a Host."""
        for key, value in headers:
            if key == b"host":
                name = _name(value)
                if not (name in self._names or _is_nobodys(name) or _is_address(name)):
                    return (
                        "where no keys are configured, this gateway is not called"
                        f" {name!r:.200}: use an IP address, localhost, a name in access.hosts, or"
                        " keys"
                    )
        return None


def own_names(settings: Settings) -> OwnNames | None:
    """None where any name will do."""
    server, access = settings.server, settings.access
    if is_configured(access) or server.insecure or not is_loopback(server.host):
        return None
    return None if "*" in access.hosts else OwnNames(server.host, access.hosts)


def _name(host: bytes) -> str:
    """Of a Host header, without its port."""
    name = host.decode("latin-1").strip().lower()
    return name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]


def _is_nobodys(name: str) -> bool:
    return "." not in name or name.endswith((".localhost", ".internal"))


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
    name = _name(host)
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
