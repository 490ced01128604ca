"""The ASGI edge: bodies, replies, paths."""

import asyncio
import json

import pytest

from asgi_gateway.asgi import (
    TEXT,
    ClientGone,
    Message,
    Reply,
    Scope,
    error_reply,
    header,
    path_below_root,
    read_body,
    send_reply,
)
from asgi_gateway.errors import GatewayError, Gone, NotFound, TooLarge, UnsupportedEncoding
from tests.support.receives import DISCONNECT, HypercornReceive

# --- bodies -------------------------------------------------------------------------------------


class Incoming:
    """Hands out messages in order, and counts how often it was asked."""

    def __init__(self, *messages: Message) -> None:
        self._messages = list(messages)
        self.asked = 0

    async def __call__(self) -> Message:
        self.asked += 1
        await asyncio.sleep(0)
        return self._messages.pop(0)


def body(data: bytes, more: bool = False) -> Message:
    return {"type": "http.request", "body": data, "more_body": more}


def scope(*headers: tuple[bytes, bytes], path: str = "/", root: str = "") -> Scope:
    return {"type": "http", "path": path, "root_path": root, "headers": list(headers)}


async def test_one_message_is_given_back_as_it_is() -> None:
    data = b"0123456789" * 3
    assert await read_body(scope(), Incoming(body(data)), 30) is data


async def test_a_message_without_its_optional_keys_is_an_empty_body() -> None:
    assert await read_body(scope(), Incoming({"type": "http.request"}), 10) == b""


async def test_many_messages_are_joined() -> None:
    incoming = Incoming(body(b"abc", True), body(b"", True), body(b"de", True), body(b"f"))
    assert await read_body(scope(), incoming, 6) == b"abcdef"
    assert incoming.asked == 4


async def test_hypercorns_empty_last_message_is_read_too() -> None:
    receive = HypercornReceive(b"abc")
    assert await read_body(scope(), receive, 6) == b"abc"
    assert receive.queue.empty()


async def test_a_declared_length_over_the_cap_is_refused_before_a_byte_is_read() -> None:
    incoming = Incoming(body(b"x" * 11))
    with pytest.raises(TooLarge, match="11 bytes, this route takes 10") as caught:
        await read_body(scope((b"content-length", b"11")), incoming, 10)
    assert caught.value.status == 413
    assert incoming.asked == 0


@pytest.mark.parametrize("length", [b"10", b"0", b"-1", b"many", b""])
async def test_a_declared_length_within_the_cap_or_of_no_sense_is_not(length: bytes) -> None:
    assert await read_body(scope((b"content-length", length)), Incoming(body(b"x" * 10)), 10)


async def test_one_message_over_the_cap() -> None:
    with pytest.raises(TooLarge, match="11 bytes, this route takes 10"):
        await read_body(scope(), Incoming(body(b"x" * 11)), 10)


async def test_reading_stops_where_the_cap_is_passed() -> None:
    incoming = Incoming(*(body(b"x" * 4, True) for _ in range(100)))
    with pytest.raises(TooLarge, match="over 10 bytes"):
        await read_body(scope(), incoming, 10)
    assert incoming.asked == 3


async def test_the_last_message_counts_too() -> None:
    with pytest.raises(TooLarge):
        await read_body(scope(), Incoming(body(b"x" * 10, True), body(b"x")), 10)
    assert await read_body(scope(), Incoming(body(b"x" * 9, True), body(b"x")), 10) == b"x" * 10


@pytest.mark.parametrize("encoding", [b"gzip", b"zstd", b"gzip, identity", b"br"])
async def test_an_encoded_body_is_refused_unread(encoding: bytes) -> None:
    incoming = Incoming(body(b"x"))
    with pytest.raises(UnsupportedEncoding) as caught:
        await read_body(scope((b"content-encoding", encoding)), incoming, 10)
    assert caught.value.status == 415
    assert incoming.asked == 0


@pytest.mark.parametrize("encoding", [b"identity", b" Identity "])
async def test_identity_is_no_encoding(encoding: bytes) -> None:
    assert await read_body(scope((b"content-encoding", encoding)), Incoming(body(b"x")), 10) == b"x"


@pytest.mark.parametrize("before", [[], [body(b"x", True)], [body(b"x", True), body(b"", True)]])
async def test_a_client_that_leaves_in_the_middle(before: list[Message]) -> None:
    with pytest.raises(ClientGone):
        await read_body(scope(), Incoming(*before, DISCONNECT), 10)


# --- replies ------------------------------------------------------------------------------------


class Sent:
    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def __call__(self, message: Message) -> None:
        self.messages.append(message)


async def test_a_reply_goes_out_whole_with_its_length() -> None:
    sent = Sent()
    await send_reply(sent, Reply(201, b"hello", TEXT, ((b"x-y", b"z"),)))
    assert sent.messages == [
        {
            "type": "http.response.start",
            "status": 201,
            "headers": [(b"content-type", TEXT), (b"content-length", b"5"), (b"x-y", b"z")],
        },
        {"type": "http.response.body", "body": b"hello"},
    ]


async def test_an_empty_reply_says_its_length_too() -> None:
    sent = Sent()
    await send_reply(sent, Reply(200, b""))
    assert (b"content-length", b"0") in sent.messages[0]["headers"]


async def test_a_last_reply_closes_its_connection() -> None:
    sent = Sent()
    await send_reply(sent, Reply(408, b"{}"), close=True)
    assert (b"connection", b"close") in sent.messages[0]["headers"]


def test_an_error_becomes_a_detail() -> None:
    reply = error_reply(NotFound('no "such" thing\n'))
    assert (reply.status, reply.content_type, reply.headers) == (404, b"application/json", ())
    assert json.loads(reply.body) == {"detail": 'no "such" thing\n'}


@pytest.mark.parametrize(
    ("seconds", "shown"), [(None, None), (0.2, b"1"), (1.0, b"1"), (2.6, b"3")]
)
def test_retry_after_is_a_whole_number_of_at_least_one(
    seconds: float | None, shown: bytes | None
) -> None:
    error = GatewayError("full")
    error.retry_after_s = seconds
    expected = () if shown is None else ((b"retry-after", shown),)
    assert error_reply(error).headers == expected


def test_gone_asks_for_no_wait() -> None:
    """The SDK submits the sample again; how long it waits is its own."""
    assert error_reply(Gone("x")).headers == ()


# --- paths and headers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "root", "below"),
    [
        ("/api/x", "", "/api/x"),
        ("/api/x", "/", "/api/x"),
        ("/api/x", "/api", "/x"),
        ("/api/x", "/api/", "/x"),
        ("/api", "/api", "/"),
        ("/api/", "/api", "/"),
        ("/apiary/x", "/api", "/apiary/x"),
        ("/x", "/api", "/x"),
        ("/x/api", "/api", "/x/api"),
        ("/api/api/x", "/api", "/api/x"),
        ("/a/b/x", "/a/b", "/x"),
        ("/a/bc", "/a/b", "/a/bc"),
        ("/API/x", "/api", "/API/x"),
        ("/", "/api", "/"),
    ],
)
def test_the_root_is_cut_at_a_segment_boundary(path: str, root: str, below: str) -> None:
    assert path_below_root(scope(path=path, root=root)) == below


def test_no_root_path_is_none() -> None:
    assert path_below_root({"path": "/x"}) == "/x"


def test_the_first_header_of_a_name() -> None:
    headers = scope((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    assert header(headers, b"a") == b"1"
    assert header(headers, b"c") is None
