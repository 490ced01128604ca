"""A server that does next to nothing, for `cost`: it makes every sample right when it is accepted.

    python -m loadgen.bare

It speaks the sampling routes for one client. `/floor/promise` and `/floor/result` take as long and
answer with as much as `asample` and `retrieve_future`, but remember nothing.
"""

from __future__ import annotations

import asyncio
import sys
from array import array
from typing import Any, Final, cast

import httptools
import msgspec

from loadgen import answers
from loadgen.sampling_pb2 import STOP_REASON_LENGTH, SampledSequence, SampleResponse

_JSON: Final = b"application/json"
_PROTOBUF: Final = b"application/x-protobuf"
_ID: Final = b"e0123456789abcdef0123456789abcdef%08d"
"""As long as our gateway's."""

_CONFIG: Final = b'{"sample_use_retrieve_futures":%b}'
_PROMISE: Final = b'{"request_id":"%b","sample_sequence_ids":["%b-0"]}'
_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ndate: Sun, 01 Jan 2040 00:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-type: %b\r\ncontent-length: %d\r\n\r\n%b"
)


class Bare:
    """What it was asked: results by id, completions not yet reported."""

    def __init__(self, *, batched: bool) -> None:
        self._config = _CONFIG % (b"true" if batched else b"false")
        self._count = 0
        self._results: dict[bytes, bytes] = {}
        self._unreported: list[bytes] = []
        self._held: list[Connection] = []
        self._cursor = 0
        self._result = b""

    def answer(self, connection: Connection, path: bytes, body: bytes) -> None:
        if path == b"/api/v1/asample":
            connection.respond(self._promise(body))
            self._report()
        elif path == b"/api/v1/retrieve_future":
            key = msgspec.json.decode(body)["request_id"].encode()
            connection.respond(self._results.pop(key), _PROTOBUF)
        elif path == b"/api/v1/retrieve_futures":
            self._held.append(connection)
            if msgspec.json.decode(body).get("timeout") == 0 or self._unreported:
                self._report_to_all()
        elif path == b"/floor/promise":
            self._result = _result(body)
            connection.respond(_PROMISE % (_ID % 0, _ID % 0))
        elif path == b"/floor/result":
            msgspec.json.decode(body)
            connection.respond(self._result, _PROTOBUF)
        elif path == b"/api/v1/client/config":
            connection.respond(self._config)
        else:
            connection.respond(b'{"session_id":"s","sampling_session_id":"t"}')

    def _promise(self, body: bytes) -> bytes:
        key = _ID % self._count
        self._count += 1
        self._results[key] = _result(body)
        self._unreported.append(key)
        return _PROMISE % (key, key)

    def _report(self) -> None:
        if self._held and len(self._unreported) >= 64:
            self._report_to_all()

    def _report_to_all(self) -> None:
        keys, self._unreported = self._unreported, []
        self._cursor += len(keys)
        completions = [
            {
                "state": "finished",
                "request_id": key.decode(),
                "response_payload_uncompressed_size": len(self._results[key]),
            }
            for key in keys
        ]
        page = msgspec.json.encode({"completions": completions, "cursor": self._cursor})
        held, self._held = self._held, []
        for connection in held:
            connection.respond(page)


def _result(body: bytes) -> bytes:
    """Of an asample."""
    asked = msgspec.json.decode(body)
    prompt = asked["prompt"]["chunks"][0]["tokens"]
    count = asked["sampling_params"]["max_tokens"]
    sequence = SampledSequence(
        stop_reason=STOP_REASON_LENGTH,
        tokens=array("i", answers.tokens(prompt, count=count)).tobytes(),
        logprobs=array("f", answers.logprobs(prompt, count=count)).tobytes(),
    )
    return SampleResponse(sequences=[sequence]).SerializeToString()


class Connection(asyncio.Protocol):
    """One connection; requests are not pipelined."""

    def __init__(self, bare: Bare) -> None:
        self._bare = bare
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._url = b""
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        body, self._body = b"".join(self._body), []
        self._bare.answer(self, self._url, body)

    def respond(self, body: bytes, kind: bytes = _JSON) -> None:
        if self._transport is not None:
            self._transport.write(_HEAD % (kind, len(body), body))


async def main(*, batched: bool) -> None:
    loop = asyncio.get_running_loop()
    bare = Bare(batched=batched)
    server = await loop.create_server(lambda: Connection(bare), "127.0.0.1", 0, backlog=1024)
    print(f"bare listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(batched=sys.argv[1:] == ["futures"]))
