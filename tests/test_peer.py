"""What a parked poll sleeps on, and whether its client is still there."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from asgi_gateway.asgi import Message, Receive, read_body
from asgi_gateway.peer import Peer, Waker
from tests.support.asgi_client import turns
from tests.support.receives import (
    DISCONNECT,
    GranianReceive,
    HypercornReceive,
    UvicornCycle,
    UvicornReceive,
)

REQUEST: Message = {"type": "http", "path": "/", "headers": []}


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
    await read_body(REQUEST, receive, 100)


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
    receive.queue.put_nowait({"type": "http.request", "body": b""})
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


# uvicorn's own cycle, which tells -----------------------------------------------------------------


async def test_a_client_that_is_told_of_is_never_asked_for() -> None:
    cycle = UvicornCycle()
    await asked(cycle.receive)
    peer, waker = Peer(cycle.receive), Waker()
    peer.watch(waker)
    assert peer.seen_open()
    assert cycle.waiting == 0
    assert not waker.client_left()
    cycle.hang_up()
    assert waker.client_left()
    assert not waker.woken, "whoever keeps the waker looks at it"
    assert not peer.seen_open()
    assert peer.gone
    peer.close()


async def test_watching_a_client_that_is_told_to_have_left_wakes_at_once() -> None:
    cycle = UvicornCycle()
    cycle.hang_up()
    peer, waker = Peer(cycle.receive), Waker()
    peer.watch(waker)
    assert waker.woken
    assert not peer.seen_open()


class Elsewhere:
    """Has something of that name which says nothing about a client."""

    def __init__(self, receive: Receive, disconnected: Any) -> None:
        self._receive = receive
        self.disconnected = disconnected

    async def receive(self) -> Message:
        return await self._receive()


@pytest.mark.parametrize("disconnected", [None, 0, "no", asyncio.Event])
async def test_what_is_no_yes_or_no_tells_nothing(disconnected: Any) -> None:
    receive = UvicornReceive()
    await asked(receive)
    receive.hang_up()
    peer = Peer(Elsewhere(receive, disconnected).receive)
    assert not peer.seen_open()
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
    return {"type": "http.request", "body": b"", "more_body": True}


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
