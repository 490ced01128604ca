"""Cases of the way through an upstream: the run of a sample, and the POST below it."""

import asyncio
import itertools
from collections.abc import Callable, Collection
from typing import Any, cast

from asgi_gateway.admission import Admission
from asgi_gateway.caller import DEFAULT
from asgi_gateway.configuration import load
from asgi_gateway.delivery import Delivery
from asgi_gateway.ids import Ids
from asgi_gateway.metrics import Metrics
from asgi_gateway.outcomes import Outcomes
from asgi_gateway.runs import Runs
from asgi_gateway.settings import UpstreamSettings
from asgi_gateway.store.states import State
from asgi_gateway.upstream.connection import Connection
from asgi_gateway.upstream.exchange import Answer, Exchange
from asgi_gateway.upstream.pool import Pool
from tests.bench.instructions.given import (
    ANSWER,
    ANSWER_PROMPT_TOKENS,
    SAMPLER,
    UPSTREAM,
    UPSTREAM_BODY,
    Run,
    new_record,
    new_store,
)
from tests.support.clock import ManualClock

ANSWER_ID = b"cmpl-b163336acabaf08a"
ANSWER_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Mon, 01 Jun 2026 12:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-length: %d\r\ncontent-type: application/json\r\n\r\n" % len(ANSWER)
)
# More than a case runs through.
MANY = 1000


class Loop:
    """In the place of the running loop: calls what is due when told to, and its clock stands."""

    def __init__(self) -> None:
        self._soon: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.time = itertools.repeat(1.0).__next__
        asyncio._set_running_loop(cast(asyncio.AbstractEventLoop, self))

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self._soon.append((callback, args))

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> "Loop":
        return self

    def turn(self) -> None:
        soon, self._soon = self._soon, []
        for callback, args in soon:
            callback(*args)


class Upstream:
    """A transport that keeps what was sent, to be answered by hand."""

    def __init__(self) -> None:
        self.sent: list[Exchange] = []

    def open(self) -> None: ...

    async def close(self) -> None: ...

    def send(self, exchange: Exchange, url: str, body: bytes, **_: object) -> None:
        self.sent.append(exchange)

    def abort(self, exchange: Exchange) -> None: ...

    def is_sent(self, exchange: Exchange) -> bool:
        return True

    def heard_within(self, url: str, seconds: float) -> bool:
        return False

    def reconfigure(self, settings: UpstreamSettings) -> None: ...

    def forget_addresses(self) -> None: ...

    def serve(self, urls: Collection[str]) -> None: ...


def settle() -> Run:
    """One a turn of the loop, so what is done once a turn is done for each."""
    settings = load({"upstream.urls": [UPSTREAM]}, environ={}).settings
    loop, store, clock = Loop(), new_store(), ManualClock()
    upstream, metrics = Upstream(), Metrics()
    runs = Runs(
        settings=settings,
        clock=clock,
        store=store,
        transport=upstream,
        delivery=Delivery(store, clock, settings.poll),
        metrics=metrics,
        outcomes=Outcomes(metrics),
        admission=Admission(),
    )
    ids = Ids("key")
    accepted = []
    for seq_id in range(MANY):
        record = new_record(ids, seq_id)
        record.prompt_tokens = ANSWER_PROMPT_TOKENS
        store.accept(record)
        body = ANSWER.replace(ANSWER_ID, b"cmpl-" + record.request_id.encode(), 1)
        accepted.append((record, Answer(200, [body], None)))
    queued = iter(accepted)

    def run() -> None:
        record, answer = next(queued)
        runs.dispatch.enqueue(record)
        upstream.sent.pop().answered(answer)
        loop.turn()
        if record.state is not State.SUCCEEDED:
            raise RuntimeError(f"not settled: {record!r}")

    return run


class Socket(asyncio.Transport):
    """Keeps what was written last."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written = bytes(data)

    def is_closing(self) -> bool:
        return False


class Told(Exchange):
    """Keeps the answer."""

    __slots__ = ("answer",)

    def answering(self) -> None:
        """In one piece, so before the answer."""

    def answered(self, answer: Answer) -> None:
        self.answer = answer

    def failed(self, error: Exception) -> None:
        raise error


def pool_exchange() -> Run:
    """A POST on a connection that is kept, answered in one piece."""
    pool = Pool(load({"upstream.urls": [UPSTREAM]}, environ={}).settings.upstream)
    loop, socket = Loop(), Socket()
    pool.open()
    connection = Connection(pool, pool._origins[UPSTREAM])
    connection.connection_made(socket)
    pool.released(connection, reusable=True)
    whole = ANSWER_HEAD + ANSWER
    request_id = Ids("key").issue(DEFAULT.name)

    def run() -> None:
        told = Told()
        pool.send(told, UPSTREAM, UPSTREAM_BODY, request_id=request_id, affinity=f"{SAMPLER}:7")
        connection.data_received(whole)
        loop.turn()
        if told.answer.status != 200 or not socket.written:
            raise RuntimeError(f"not answered: {told.answer}")

    return run
