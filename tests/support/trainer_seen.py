"""What came to the stand-in trainer, byte for byte, and routes that exist for tests alone."""

import asyncio
import base64
import hashlib
from collections import Counter, deque
from typing import Any

from aiohttp import web

KEPT = 20_000
PIECE_BYTES = 64 << 10
_SHOWN_BYTES = 64 << 10


def stream_piece(number: int) -> bytes:
    """The `number`th piece of every long body that is sent."""
    return hashlib.sha256(b"%d" % number).digest() * (PIECE_BYTES // 32)


def head_of(request: web.Request) -> dict[str, Any]:
    """Everything before the body, undecoded."""
    return {
        "method": request.method,
        "target": request.raw_path,
        "headers": [
            [name.decode("latin-1"), value.decode("latin-1")] for name, value in request.raw_headers
        ],
    }


class Seen:
    """The last requests, and how many there were of each method and path."""

    def __init__(self) -> None:
        self.requests: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.counts: Counter[str] = Counter()

    async def add(self, request: web.Request) -> None:
        body = await request.read()
        path = request.raw_path.partition("?")[0]
        self.counts[f"{request.method} {path}"] += 1
        told = {**head_of(request), "length": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        if request.content_type == "application/json" and len(body) <= _SHOWN_BYTES:
            told["body"] = body.decode(errors="replace")
        self.requests.append(told)

    def shown(self) -> dict[str, Any]:
        return {"counts": dict(self.counts), "requests": list(self.requests)}


async def echo(request: web.Request) -> web.Response:
    """Any method, any path below /debug/echo: the request as it arrived, its body read by pieces.

    `?status=` is the status of the answer.
    """
    digest, length, start = hashlib.sha256(), 0, b""
    async for piece in request.content.iter_any():
        digest.update(piece)
        length += len(piece)
        start += piece[: _SHOWN_BYTES - len(start)]
    told = {
        **head_of(request),
        "length": length,
        "sha256": digest.hexdigest(),
        "start": base64.b64encode(start).decode(),
    }
    return web.json_response(told, status=int(request.query.get("status", "200")))


async def stream(request: web.Request) -> web.StreamResponse:
    """`?pieces=` of 64 KiB, one each `?pause_s=`; `?length=1` states the length beforehand."""
    pieces = int(request.query.get("pieces", "16"))
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    if request.query.get("length"):
        response.content_length = pieces * PIECE_BYTES
    await response.prepare(request)
    for number in range(pieces):
        await response.write(stream_piece(number))
        await asyncio.sleep(float(request.query.get("pause_s", "0")))
    await response.write_eof()
    return response
