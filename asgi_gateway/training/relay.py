"""The trainer's answer on its way to the client: head and body as they come."""

import aiohttp
from aiohttp.client_proto import ResponseHandler

from asgi_gateway.asgi import Send
from asgi_gateway.training.connection import BROKEN, named
from asgi_gateway.training.headers import is_bodiless, response_headers


class Truncated(Exception):
    """The trainer's answer broke after its head went out, or the server would take it as whole.

    Raised to the server, which must abort the connection; not a GatewayError, for no answer can
    follow the half that was sent.
    """


async def relay(method: str, response: aiohttp.ClientResponse, send: Send) -> None:
    """Send it on; the next piece is read when the server took the last one.

    Raises:
        Truncated: the body broke.
    """
    status = response.status
    headers = response_headers(status, response.raw_headers)
    protocol = response.connection.protocol if response.connection else None
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if is_bodiless(method, status):
        await send({"type": "http.response.body", "body": b""})
        return
    more = True
    while more:
        try:
            piece = await response.content.readany()
        except BROKEN as error:
            raise Truncated(f"the trainer's answer broke: {named(error)}") from error
        more = not response.content.at_eof()
        if not more and _ended_by_reset(response, protocol):
            raise Truncated("the trainer's connection was reset")
        await send({"type": "http.response.body", "body": piece, "more_body": more})


def _ended_by_reset(response: aiohttp.ClientResponse, protocol: ResponseHandler | None) -> bool:
    """Whether a body that ends with its connection (as of HTTP/1.0) was cut off.

    aiohttp takes any end of such a connection as the end of the body.
    """
    if protocol is None or "content-length" in response.headers:
        return False
    chunked = "chunked" in response.headers.get("transfer-encoding", "").lower()
    return not chunked and isinstance(protocol.exception(), OSError)
