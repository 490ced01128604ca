"""Whether `serve` may listen where it is told to: beyond this machine only with keys."""

import ipaddress
import socket
from collections.abc import Iterator

from asgi_gateway.access.keys import is_configured
from asgi_gateway.settings import Settings


def problems(settings: Settings) -> Iterator[str]:
    """What speaks against the address, one line."""
    host = settings.server.host
    if settings.server.insecure or is_configured(settings.access) or is_loopback(host):
        return
    yield (
        f"server.host = {host!r}: whoever reaches it could sample without a key. Configure keys"
        " (access.keys_file, see docs/access.md), listen on 127.0.0.1, or say --insecure"
    )


def is_loopback(host: str) -> bool:
    """Whether it can be reached from this machine alone. Names other than localhost may mean
    anything, and tomorrow something else."""
    if host.lower() == "localhost":
        return True
    try:
        # Numbers only, but in every spelling that listening takes: 127.1 too.
        found = socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST) if host else []
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(_is_loopback(str(address[0])) for *_, address in found)


def _is_loopback(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
