"""What a path leads to; the table of them is in `routes`."""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from asgi_gateway.asgi import Call, Reply
from asgi_gateway.caller import Access
from asgi_gateway.errors import Foreign

Handler = Callable[[Call], Awaitable[Reply]]


class Route(msgspec.Struct, frozen=True, gc=False):
    """`method` None: all of them. `body_cap_bytes` None: the body is not read.

    access: the scope that a key needs, where any is configured; no route is without its word.
    """

    method: str | None
    handler: Handler
    body_cap_bytes: int | None
    access: Access


class Match(msgspec.Struct, frozen=True, gc=False):
    route: Route
    tail: str


async def _foreign(call: Call) -> Reply:
    raise Foreign(f"no route {call.scope['path']!r:.200}")


# Where keys are configured: paths of the trainer's, or of nobody, are not for everybody either.
BEYOND: Final = Match(Route(None, _foreign, None, "sample"), "")
