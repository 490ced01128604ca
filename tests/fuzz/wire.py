"""Bytes of an upstream's connection: the request on it is told of exactly one end, whatever comes.

The connection is the real one, its socket is not: a case is fed to it as a socket would.
"""

import asyncio
import json
from random import Random
from typing import Any

from asgi_gateway.errors import UpstreamError
from asgi_gateway.upstream.connection import Connection
from asgi_gateway.upstream.exchange import Answer, Exchange
from asgi_gateway.upstream.large import LargeBodies
from asgi_gateway.upstream.origin import Origin
from tests.fuzz.junk import damage
from tests.fuzz.target import Target

ORIGIN = Origin("http://upstream.invalid:8000/base")
HEAD = ORIGIN.head("id", "session:1", 2)
_STATUS = (
    "HTTP/1.1 200 OK", "HTTP/1.1 200 OK", "HTTP/1.1 200 OK", "HTTP/1.0 200 OK", "HTTP/1.1 200",
    "HTTP/1.1 404 Not Found", "HTTP/1.1 503 busy", "HTTP/1.1 301 Moved", "HTTP/1.1 204 No Content",
    "HTTP/1.1 304 Not Modified", "HTTP/1.1 100 Continue", "HTTP/1.1 101 Switching Protocols",
    "HTTP/1.1 102 Processing", "HTTP/1.1 999 x", "HTTP/1.1 0 x", "HTTP/1.1 99999 x", "HTTP/9.9 200",
    "HTTP/2.0 200 OK", "HTTP/1.1 -200 OK", "HTTP/1.1  200 OK", "HTTP/1.1\t200 OK", "ICY 200 OK",
    "http/1.1 200 ok", "HTTP/1.1 200 \x00", "200 OK", "", "SSH-2.0-x", "GET / HTTP/1.1",
)  # fmt: skip
_HEADERS = (
    "content-type: application/json", "connection: close", "connection: keep-alive",
    "connection: upgrade", "upgrade: websocket", "retry-after: 3", "retry-after: -1",
    "retry-after: nan", "retry-after: 1e999", "location: http://127.0.0.1:1/", "set-cookie: a=b",
    "x: " + "y" * 3000, "x" * 3000 + ": y", ": empty", "no colon", "a b: c", "x: a\r\n folded",
    "x: \x00", "x: \xff", "trailer: x", "content-encoding: gzip", "proxy-authenticate: Basic",
    "content-length: -1", "content-length: 1e3", "content-length: 99999999999999999999",
    "content-length: 0", "content-length: 5, 5", "transfer-encoding: gzip, chunked",
    "transfer-encoding: identity", "transfer-encoding: chunked",
)  # fmt: skip
_CHUNKS = (
    b"5\r\nhello\r\n", b"5;x=y\r\nhello\r\n", b"0\r\n\r\n", b"0\r\nx: y\r\n\r\n",
    b"-5\r\nhello\r\n",
    b"ffffffffffffffff\r\nx\r\n", b"10000000000000000\r\n", b"5\nhello\n", b"5\r\nhell\r\n",
    b"zz\r\n", b"5\r\nhello", b"\r\n", b"0" * 3000 + b"5\r\nhello\r\n", b"0\r\n",
)  # fmt: skip


class Wire(Target):
    """A case is a line of JSON, how the bytes come and end and what they are if all is well, and
    the bytes."""

    name = "wire"
    share = 0.20

    def open(self) -> None:
        self.loop = asyncio.new_event_loop()

    def close(self) -> None:
        self.loop.close()

    def make(self, rng: Random) -> bytes:
        head: dict[str, Any] = {"pieces": rng.choice((1, 1, 2, 5, 50)), "end": rng.random() < 0.5}
        if rng.random() < 0.3:
            body = rng.choice((b"", b"{}", b'{"choices":[]}', b"x" * 300))
            head["body"] = body.decode()
            data = _good(rng, body)
            if rng.random() < 0.3:
                head = {name: head[name] for name in ("pieces", "end")} | {"cut": True}
                data = data[: rng.randrange(len(data))]
            elif rng.random() < 0.4:
                head["more"] = True
                data += rng.choice((b"x", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP", _good(rng, body)))
        else:
            data = b"".join(_answer(rng) for _ in range(rng.choice((1, 1, 1, 2))))
            if rng.random() < 0.5:
                data = damage(rng, data)
        return json.dumps(head).encode() + b"\n" + data

    def check(self, case: bytes) -> str:
        line, _, data = case.partition(b"\n")
        head = json.loads(line)
        owner, socket, exchange = _Owner(self.loop), _Socket(), _Told()
        connection = Connection(owner, ORIGIN)
        connection.connection_made(socket)
        connection.start(exchange, HEAD, b"{}")
        assert bytes(socket.written) == HEAD + b"{}"
        size = max(1, -(-len(data) // head["pieces"]))
        for start in range(0, len(data), size):
            if socket.closed:
                break
            told = len(exchange.story)
            connection.data_received(data[start : start + size])
            if exchange.ends and told == len(exchange.story):
                assert socket.closed, "bytes that nobody asked for, and it stays open"
        if "more" in head:
            assert socket.closed, "it would carry the next request, with bytes that belong to none"
        kind = "answered" if exchange.ends else "unanswered"
        if exchange.ends and not socket.closed:
            assert owner.reusable == [True]
        connection.connection_lost(None if head["end"] else ConnectionResetError("reset"))
        assert exchange.ends == 1, f"told {exchange.story}"
        end = exchange.story[-1]
        assert exchange.story in ([end], ["answering", end])
        assert len(owner.reusable) <= 1
        assert "cut" not in head or not isinstance(end, Answer), "a part was taken as the whole"
        if "body" in head:
            assert isinstance(end, Answer), end
            assert end.body() == head["body"].encode()
        if isinstance(end, Answer):
            assert 200 <= end.status <= 999
            return f"answer {kind}"
        assert isinstance(end, UpstreamError), end
        assert len(str(end)) < 400
        return type(end).__name__


class _Owner:
    """The pool, as a connection sees it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.large = LargeBodies()
        self.sweeps = 0
        self.reusable: list[bool] = []

    def released(self, connection: Connection, *, reusable: bool) -> None:
        self.reusable.append(reusable)

    def lost(self, connection: Connection) -> None: ...


class _Socket(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class _Told(Exchange):
    def __init__(self) -> None:
        super().__init__()
        self.story: list[object] = []
        self.ends = 0

    def answering(self) -> None:
        self.story.append("answering")

    def answered(self, answer: Answer) -> None:
        self.story.append(answer)
        self.ends += 1

    def failed(self, error: Exception) -> None:
        self.story.append(error)
        self.ends += 1


def _good(rng: Random, body: bytes) -> bytes:
    interim = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * rng.choice((0, 0, 1, 20))
    status = rng.choice((b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 503 busy\r\n"))
    if rng.random() < 0.6:
        return interim + status + b"Content-Length: %d\r\n\r\n" % len(body) + body
    at = rng.randrange(len(body) + 1)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (body[:at], body[at:]) if p)
    return interim + status + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def _answer(rng: Random) -> bytes:
    interim = b"HTTP/1.1 100 Continue\r\n\r\n" * rng.choice((0, 0, 0, 1, 3000))
    body = b"x" * rng.choice((0, 2, 50, 50, 200_000 if rng.random() < 0.01 else 9))
    lines = [rng.choice(_STATUS)]
    lines += [rng.choice(_HEADERS) for _ in range(rng.choice((0, 1, 2, 3)))]
    framing = rng.random()
    if framing < 0.4:
        length = len(body) + rng.choice((0, 0, 0, 1, -1, 1000))
        lines.append(f"Content-Length: {max(0, length)}")
    elif framing < 0.7:
        lines.append("Transfer-Encoding: chunked")
        body = b"".join(rng.choice(_CHUNKS) for _ in range(rng.randrange(4))) + b"0\r\n\r\n"
    ends = rng.choice(("\r\n", "\r\n", "\r\n", "\n", "\r"))
    return interim + ends.join([*lines, "", ""]).encode("latin-1") + body
