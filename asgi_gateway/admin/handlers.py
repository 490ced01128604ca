"""The routes of the status page: the page itself, its numbers, and two actions."""

import base64
import hashlib
import re
from collections.abc import Callable
from importlib.resources import files
from typing import Final

from asgi_gateway.admin.messages import Drain, DrainUpstream
from asgi_gateway.admin.overview import Overviews
from asgi_gateway.asgi import EMPTY, Call, Reply, header
from asgi_gateway.errors import Malformed
from asgi_gateway.protocol import reader
from asgi_gateway.settings import Settings

HTML: Final = b"text/html; charset=utf-8"
# A page of another origin can post a form here, but not with a header of its own: browsers ask
# first, and are not answered. So no visited page drains a gateway that has no keys.
CONFIRMED: Final = (b"x-admin-action", b"confirmed")


class AdminHandlers:
    def __init__(
        self,
        overviews: Overviews,
        drain: Callable[[], None],
        drain_upstream: Callable[[str, bool], None],
    ) -> None:
        """drain: Unsupported where the process is not ours. drain_upstream: NotFound for a name
        that is none."""
        self._overviews = overviews
        self._drain = drain
        self._drain_upstream = drain_upstream
        self._page = _page()

    def reconfigure(self, settings: Settings) -> None:
        self._overviews.reconfigure(settings)

    async def page(self, _: Call) -> Reply:
        """The page holds nothing but itself; its numbers need the scope."""
        return self._page

    async def state(self, _: Call) -> Reply:
        return Reply(200, await self._overviews.whole(), headers=_PRIVATE)

    async def drain(self, call: Call) -> Reply:
        _DRAIN(call.body)
        _require_confirmed(call)
        self._drain()
        return EMPTY

    async def upstream(self, call: Call) -> Reply:
        request = _UPSTREAM(call.body)
        _require_confirmed(call)
        self._drain_upstream(request.upstream, request.draining)
        await self._overviews.tell(request.upstream, request.draining)
        return EMPTY


def _require_confirmed(call: Call) -> None:
    name, value = CONFIRMED
    if header(call.scope, name) != value:
        raise Malformed(f"send the header {name.decode()}: {value.decode()}")


def _page() -> Reply:
    """The page with a policy that lets nothing run or load but what is in it."""
    html = (files("asgi_gateway.admin") / "page.html").read_bytes()
    script, style = (
        _digest(re.search(rb"<%b>(.*?)</%b>" % (tag, tag), html, re.DOTALL))
        for tag in (b"script", b"style")
    )
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = (
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        *_PRIVATE,
    )
    return Reply(200, html, HTML, headers)


def _digest(found: re.Match[bytes] | None) -> str:
    assert found is not None
    return f"'sha256-{base64.b64encode(hashlib.sha256(found[1]).digest()).decode()}'"


_PRIVATE: Final = ((b"cache-control", b"no-store"),)
_DRAIN: Final = reader(Drain)
_UPSTREAM: Final = reader(DrainUpstream)
