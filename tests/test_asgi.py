"""The ASGI edge: bodies, replies, paths, and whether the client is still there."""

import asyncio
import gc
import json
from collections.abc import Callable
from typing import Any

import pytest

from asgi_gateway.asgi import (
    TEXT,
    ClientGone,
    Message,
    Peer,
    Receive,
    Reply,
    Scope,
    Waker,
    error_reply,
    header,
    path_below_root,
    read_body,
    send_reply,
)
from asgi_gateway.errors import GatewayError, Gone, NotFound, TooLarge, UnsupportedEncoding
from tests.support.asgi_client import turns
from tests.support.receives import DISCONNECT, GranianReceive, HypercornReceive, UvicornReceive

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
    with pytest.raises(TooLarge, match="over 10 bytes"):
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


# --- wakers -------------------------------------------------------------------------------------


async def test_waking_twice_is_waking_once() -> None:
    waker = Waker()
    waker.wake()
    waker.wake("a future, as a done callback")
    await waker.future


async def test_a_cancelled_wait_can_be_woken() -> None:
    waker = Waker()
    waker.future.cancel()
    waker.wake()


# --- the client, by the sign that each server gives ---------------------------------------------


class Silent:
    """A receive() that was never asked anything shows nothing, so is not asked here."""

    async def __call__(self) -> Message:
        raise AssertionError("asked")


async def asked(receive: Receive) -> None:
    """Read the request's body, as every handler has before it looks at its client."""
    await read_body(scope(), receive, 100)


COROUTINES: list[Any] = [UvicornReceive, HypercornReceive]


@pytest.mark.parametrize("server", COROUTINES)
async def test_a_client_that_waits_is_seen_open(server: Callable[[], Any]) -> None:
    receive = server()
    await asked(receive)
    peer = Peer(receive)
    assert peer.seen_open()
    assert peer.seen_open()
    peer.close()


@pytest.mark.parametrize("server", COROUTINES)
async def test_a_client_that_left_before_the_first_look_is_gone(server: Callable[[], Any]) -> None:
    receive = server()
    await asked(receive)
    receive.hang_up()
    peer = Peer(receive)
    assert not peer.seen_open()
    assert peer.gone
    assert not peer.seen_open(), "remembered: hypercorn says it once"
    peer.close()


@pytest.mark.parametrize("server", COROUTINES)
async def test_leaving_wakes_the_parked_poll(server: Callable[[], Any]) -> None:
    receive = server()
    await asked(receive)
    peer, waker = Peer(receive), Waker()
    peer.watch(waker)
    await turns()
    assert not waker.future.done()
    receive.hang_up()
    await waker.future
    assert not peer.seen_open()
    assert peer.gone
    peer.close()


@pytest.mark.parametrize("server", COROUTINES)
async def test_leaving_in_the_step_that_brings_the_result_is_noticed(
    server: Callable[[], Any],
) -> None:
    receive = server()
    await asked(receive)
    peer, waker = Peer(receive), Waker()
    peer.watch(waker)
    receive.hang_up()
    waker.wake()
    await waker.future
    assert not peer.seen_open()
    peer.close()


@pytest.mark.parametrize("server", COROUTINES)
async def test_a_parked_client_that_stays_is_open_when_the_result_comes(
    server: Callable[[], Any],
) -> None:
    receive = server()
    await asked(receive)
    peer, waker = Peer(receive), Waker()
    peer.watch(waker)
    await turns()
    waker.wake()
    await waker.future
    assert peer.seen_open()
    assert not peer.gone
    peer.close()


@pytest.mark.parametrize("server", COROUTINES)
async def test_watching_a_client_that_left_wakes_at_once(server: Callable[[], Any]) -> None:
    receive = server()
    await asked(receive)
    receive.hang_up()
    peer, waker = Peer(receive), Waker()
    peer.watch(waker)
    assert waker.future.done()
    peer.close()


async def test_closing_ends_uvicorns_pending_wait() -> None:
    receive = UvicornReceive()
    await asked(receive)
    peer = Peer(receive)
    assert peer.seen_open()
    assert receive.waiting == 1
    peer.close()
    assert receive.waiting == 0


async def test_closing_leaves_hypercorns_queue_usable() -> None:
    receive = HypercornReceive()
    await asked(receive)
    peer = Peer(receive)
    peer.watch(Waker())
    peer.close()
    receive.hang_up()
    assert await receive() == DISCONNECT


async def test_a_body_that_nobody_read_is_skipped() -> None:
    """A late empty http.request is no sign of anything."""
    receive = HypercornReceive()
    peer, waker = Peer(receive), Waker()
    peer.watch(waker)
    assert receive.queue.empty()
    assert peer.seen_open()
    receive.queue.put_nowait(body(b""))
    await turns()
    assert waker.future.done(), "woken for nothing, which is why the poll looks again"
    assert peer.seen_open()
    receive.hang_up()
    await turns()
    assert not peer.seen_open()
    peer.close()


@pytest.mark.parametrize("server", [*COROUTINES])
async def test_nothing_is_left_for_the_collector_to_complain_of(server: Callable[[], Any]) -> None:
    """Warnings are errors here, those raised in the collector too."""
    for park in (False, True):
        receive = server()
        await asked(receive)
        peer = Peer(receive)
        if park:
            peer.watch(Waker())
        else:
            peer.seen_open()
        peer.close()
        peer.close()
        del peer, receive
    await turns()
    gc.collect()


async def test_a_peer_that_was_never_looked_at_asks_for_nothing() -> None:
    Peer(Silent()).close()
    gc.collect()


# granian ----------------------------------------------------------------------------------------


async def test_granian_not_parked_is_taken_as_open_without_asking() -> None:
    server = GranianReceive(futures=0)
    peer = Peer(server.receive)
    assert peer.seen_open()
    peer.close()


async def test_granian_parked_wakes_when_its_client_leaves() -> None:
    server = GranianReceive()
    peer, waker = Peer(server.receive), Waker()
    peer.watch(waker)
    await turns()
    assert not waker.future.done()
    server.hang_up()
    await waker.future
    assert not peer.seen_open()
    assert peer.gone
    assert not peer.seen_open(), "remembered"
    peer.close()
    assert not server.futures[1]._callbacks, "asked again after the disconnect"


async def test_granian_parked_is_open_when_the_result_comes() -> None:
    server = GranianReceive()
    peer, waker = Peer(server.receive), Waker()
    peer.watch(waker)
    waker.wake()
    assert peer.seen_open()
    peer.close()
    assert server.futures[0].cancelled


async def test_granian_already_gone_when_it_parks() -> None:
    server = GranianReceive()
    server.hang_up()
    peer, waker = Peer(server.receive), Waker()
    peer.watch(waker)
    assert waker.future.done()
    assert not peer.seen_open()
    peer.close()


async def test_granian_whose_future_fails_is_in_doubt() -> None:
    server = GranianReceive()
    peer, waker = Peer(server.receive), Waker()
    peer.watch(waker)
    server.futures[0].fail(OSError("the server's own"))
    await waker.future
    assert not peer.seen_open()
    assert not peer.gone
    peer.close()


# in doubt: not delivered ------------------------------------------------------------------------


async def raises() -> Message:
    raise ConnectionResetError("the server's own error")


def raises_at_the_call() -> Any:
    raise OSError("no receive here")


def gives_a_number() -> Any:
    return 7


def gives_an_awaitable_that_is_no_future() -> Any:
    class Awaitable:
        def __await__(self) -> Any:
            yield

    return Awaitable()


async def never_stops_talking() -> Message:
    return body(b"", True)


async def breathes_and_waits() -> Message:
    await asyncio.sleep(0)  # yields None, no future: nothing to wait on by hand
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


DOUBTFUL = [
    raises,
    raises_at_the_call,
    gives_a_number,
    gives_an_awaitable_that_is_no_future,
    never_stops_talking,
    breathes_and_waits,
]


@pytest.mark.parametrize("receive", DOUBTFUL)
async def test_in_doubt_the_client_is_not_seen(receive: Receive) -> None:
    peer = Peer(receive)
    assert not peer.seen_open()
    assert not peer.gone, "not known to have left either"
    peer.close()
    await turns()
    gc.collect()


@pytest.mark.parametrize("receive", DOUBTFUL)
async def test_in_doubt_a_parked_poll_waits_for_its_result(receive: Receive) -> None:
    peer, waker = Peer(receive), Waker()
    peer.watch(waker)
    await turns()
    assert not waker.future.done()
    waker.wake()
    await waker.future
    assert not peer.seen_open()
    peer.close()
    gc.collect()


async def test_a_pending_receive_that_fails_later_leaves_the_client_unseen() -> None:
    event = asyncio.Event()

    async def receive() -> Message:
        await event.wait()
        raise ConnectionResetError

    peer, waker = Peer(receive), Waker()
    peer.watch(waker)
    event.set()
    await waker.future
    assert not peer.seen_open()
    assert not peer.gone
    peer.close()


async def test_a_receive_that_awaits_at_its_end_does_not_break_the_answer() -> None:
    """Some middleware cleans up asynchronously; the poll's answer must go out all the same."""

    async def receive() -> Message:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
        return DISCONNECT

    peer = Peer(receive)
    assert peer.seen_open()
    peer.close()
    del peer
    await turns()
    gc.collect()


async def test_a_receive_that_fails_when_it_is_closed_does_not_break_the_answer() -> None:
    async def receive() -> Message:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("closed")

    peer = Peer(receive)
    assert peer.seen_open()
    peer.close()
