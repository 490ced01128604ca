"""A client by hand on a real socket, for what HTTP libraries hide: hanging up, pieces, reuse."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from tests.support.asgi_client import Response
from tests.support.upstream import LINGER_NOT

SDK_HEADERS = {"X-API-Key": "tml-test", "X-Stainless-Package-Version": "0.38.0"}
ANSWER_S = 20.0


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(
        self,
        method: str,
        path: str,
        body: bytes | object = b"",
        headers: dict[str, str] | None = None,
    ) -> None:
        """Write a whole request; anything that is not bytes is sent as JSON."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        # In one write, as HTTP libraries do: a server that has answered before the body came may
        # close the connection instead of waiting for it.
        self._writer.write(_head(method, path, len(data), headers) + data)

    def send_head(
        self, method: str, path: str, length: int, headers: dict[str, str] | None = None
    ) -> None:
        """Write the head of a request whose body is said to have `length` bytes."""
        self._writer.write(_head(method, path, length, headers))

    async def send_bytes(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def read_interim(self) -> int:
        """The status of a 1xx answer."""
        async with asyncio.timeout(ANSWER_S):
            head = await self._reader.readuntil(b"\r\n\r\n")
        return int(head.split(b" ")[1])

    async def read(self, *, bodyless: bool = False) -> Response:
        """The next answer; `bodyless` where it answers HEAD."""
        async with asyncio.timeout(ANSWER_S):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status, *lines = head.rstrip().split("\r\n")
            headers = {
                name.strip().lower().encode(): value.strip().encode()
                for name, _, value in (line.partition(":") for line in lines)
            }
            length = 0 if bodyless else int(headers[b"content-length"])
            return Response(
                int(status.split(" ")[1]), headers, await self._reader.readexactly(length)
            )

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes | object = b"",
        headers: dict[str, str] | None = None,
    ) -> Response:
        self.send(method, path, body, headers)
        return await self.read(bodyless=method == "HEAD")

    async def ended(self) -> bool:
        """Whether the server closed the connection, having sent nothing more."""
        async with asyncio.timeout(ANSWER_S):
            with contextlib.suppress(ConnectionError):
                return await self._reader.read(1) == b""
        return True

    def pause(self) -> None:
        """Take nothing more of what comes, and let little of it wait in the kernel."""
        raw = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def hang_up(self, *, reset: bool = False) -> None:
        """Close as a client does that goes away, or the way a crash does."""
        if reset:
            raw = self._writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
            self._writer.transport.abort()
        else:
            self._writer.close()


def _head(method: str, path: str, length: int, headers: dict[str, str] | None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"content-length: {length}"]
    lines += [f"{name}: {value}" for name, value in {"Host": "gateway", **(headers or {})}.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@contextlib.asynccontextmanager
async def wire(port: int, host: str = "127.0.0.1") -> AsyncIterator[Wire]:
    """A connection that is closed at the end."""
    reader, writer = await asyncio.open_connection(host, port)
    opened = Wire(reader, writer)
    try:
        yield opened
    finally:
        opened.hang_up()


class Remote:
    """A client of a gateway on a port that speaks the SDK's routes; one connection per request.

    prefix: what stands before every path, for a gateway that is mounted there.
    """

    def __init__(self, port: int, prefix: str = "", host: str = "127.0.0.1") -> None:
        self.port = port
        self.host = host
        self.prefix = prefix
        self.session_id = ""
        self.sampling_session_id = ""
        self._seq_id = 0

    async def post(self, path: str, body: bytes | object) -> Response:
        async with wire(self.port, self.host) as connection:
            return await connection.ask("POST", self.prefix + path, body, SDK_HEADERS)

    async def get(self, path: str) -> Response:
        async with wire(self.port, self.host) as connection:
            return await connection.ask("GET", self.prefix + path, headers=SDK_HEADERS)

    async def handshake(self, base_model: str = "stand-in") -> None:
        session = await self.post("/api/v1/create_session", {"tags": []})
        self.session_id = session.json()["session_id"]
        made = await self.post(
            "/api/v1/create_sampling_session",
            {
                "session_id": self.session_id,
                "sampling_session_seq_id": 0,
                "base_model": base_model,
            },
        )
        assert made.status == 200, made.body
        self.sampling_session_id = made.json()["sampling_session_id"]

    async def submit(self, tokens: list[int] | None = None, **fields: Any) -> str:
        """The request id of a new sample."""
        answer = await self.post("/api/v1/asample", self.sample(tokens, **fields))
        assert answer.status == 200, answer.body
        request_id: str = answer.json()["request_id"]
        return request_id

    def sample(self, tokens: list[int] | None = None, **fields: Any) -> dict[str, Any]:
        """The body of a new sample."""
        self._seq_id += 1
        return {
            "sampling_session_id": self.sampling_session_id,
            "seq_id": self._seq_id,
            "num_samples": 1,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": tokens or [1, 2, 3]}]},
            "sampling_params": {"max_tokens": 2},
            "type": "sample",
            **fields,
        }

    def send_poll(self, connection: Wire, request_id: str) -> None:
        connection.send("POST", f"{self.prefix}/api/v1/retrieve_future", *poll(request_id))

    async def poll(self, request_id: str) -> Response:
        """One poll, over a connection of its own."""
        async with wire(self.port, self.host) as connection:
            self.send_poll(connection, request_id)
            return await connection.read()

    async def metrics(self) -> dict[str, float]:
        """Every series of /metrics, by name and labels, without the prefix."""
        return series(await self.get("/metrics"))

    async def until(
        self, found: Callable[[dict[str, float]], bool], within_s: float = ANSWER_S
    ) -> None:
        """Until `/metrics` shows what is waited for."""
        async with asyncio.timeout(within_s):
            while not found(await self.metrics()):  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(0.01)

    async def polls_parked(self, count: int, within_s: float = ANSWER_S) -> None:
        await self.until(lambda now: now["polls_inflight"] == count, within_s)


def poll(request_id: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Body and headers of a poll."""
    body = {"request_id": request_id, "allow_metadata_only": False}
    return body, {**SDK_HEADERS, "Accept": "application/x-protobuf"}


def series(answer: Response) -> dict[str, float]:
    """Prometheus text as a dict; a series that was never counted is missing."""
    pairs = (
        line.rsplit(" ", 1)
        for line in answer.body.decode().splitlines()
        if line and not line.startswith("#")
    )
    return {name.removeprefix("asgi_gateway_"): float(value) for name, value in pairs}
