"""A gateway in this process for the targets that send it requests, and what no answer may be."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any, TypeVar
from unittest import mock

import msgspec

from asgi_gateway.asgi import Message
from asgi_gateway.upstream import listing
from tests.support.clock import ManualClock
from tests.support.gateway import Driven
from tests.support.inprocess import InProcess, Sent, new_gateway

T = TypeVar("T")
# The store and the upstream's list of what was sent grow; a new gateway costs little.
CASES_PER_GATEWAY = 5000
MAX_DETAIL = 1200
_LEAKS = (b"Traceback", b".py", b"msgspec.", b"in-process.invalid", b" object at 0x")


class Answered(msgspec.Struct):
    status: int
    headers: dict[bytes, bytes]
    body: bytes


class Service:
    """`ids` are those that exist: what a case calls @sampler@, @session@, @spare@ and @request@."""

    def __init__(self, **flags: Any) -> None:
        self._flags = flags
        self._left = 0
        self.loop = asyncio.new_event_loop()
        # What a callback or a task raises is nobody's answer, and only logged.
        self.unseen: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.unseen.append(context))
        self.upstream = InProcess()
        self.ids: dict[str, str] = {}
        self.seq_id = 0
        self._driven: Driven | None = None
        # Who asks for what is not listed waits for the next round; no time passes here.
        self._patch = mock.patch.object(listing, "MIN_REFRESH_S", 0.0)
        self._patch.start()
        logging.getLogger("asgi_gateway").setLevel(logging.CRITICAL)

    def close(self) -> None:
        if self._driven is not None:
            self.run(self._driven.gateway.close())
        self.loop.close()
        self._patch.stop()
        logging.getLogger("asgi_gateway").setLevel(logging.NOTSET)

    def run(self, what: Awaitable[T]) -> T:
        async def step() -> T:
            return await what

        return self.loop.run_until_complete(step())

    @property
    def driven(self) -> Driven:
        assert self._driven is not None
        return self._driven

    def ready(self) -> None:
        """A gateway with ids to ask for; a fresh one now and then."""
        if self._left == 0:
            self.run(self._fresh())
            self._left = CASES_PER_GATEWAY
        self._left -= 1

    async def _fresh(self) -> None:
        if self._driven is not None:
            await self._driven.gateway.close()
        self.upstream, clock = InProcess(), ManualClock()
        gateway = new_gateway(self.upstream, clock, **self._flags)
        await gateway.open()
        gateway._sampling.delivery.stop_holding()  # polls are answered at once
        self._driven = driven = Driven(gateway, clock)
        sampler = await driven.handshake()
        request = (await driven.submit(10**15)).json()["request_id"]
        self.upstream.sent[-1].complete()
        self.ids = {"@sampler@": sampler, "@session@": driven.session_id, "@request@": request}
        await self.renew_spare()

    async def renew_spare(self) -> None:
        """A session that a case may finish."""
        made = await self.driven.client.post("/api/v1/create_session", b"{}")
        self.ids["@spare@"] = made.json()["session_id"]

    async def ask(
        self, method: str, path: str, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> Answered:
        """One request by raw ASGI, and a turn of the loop for what follows from it."""
        messages: list[Message] = [{"type": "http.request", "body": body}]
        sent: list[Message] = []

        async def receive() -> Message:
            return messages.pop() if messages else {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        target, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": target,
            "raw_path": target.encode("utf-8", "surrogateescape"),
            "query_string": query.encode("utf-8", "surrogateescape"),
            "headers": headers,
        }
        await self.driven.gateway(scope, receive, send)
        await asyncio.sleep(0)
        start, end = sent
        return Answered(start["status"], dict(start["headers"]), end["body"])

    def sent(self) -> list[Sent]:
        """What went upstream and is not answered yet; it is answered now."""

        async def answered() -> list[Sent]:
            under_way = self.upstream.under_way
            for sent in under_way:
                sent.answer(400, b"no")
            self.upstream.sent.clear()
            return under_way

        return self.run(answered())


def fair(service: Service, answer: Answered) -> None:
    """What holds for the answer to anything at all."""
    assert not service.unseen, service.unseen
    assert service.driven.gateway._metrics.bugs == 0, "a bug was met"
    assert answer.status < 500, f"{answer.status} {answer.body!r}"
    assert int(answer.headers[b"content-length"]) == len(answer.body)
    for name, value in answer.headers.items():
        assert b"\r" not in name + value
        assert b"\n" not in name + value
        assert not name.startswith(b"access-control")
    if answer.status == 200 or answer.status == 408:
        return
    told = msgspec.json.decode(answer.body)
    assert list(told) == ["detail"], told
    detail = told["detail"]
    assert isinstance(detail, str)
    assert detail
    assert len(detail) <= MAX_DETAIL, f"a detail of {len(detail)} characters"
    for leak in _LEAKS:
        assert leak not in answer.body, f"{leak!r} in {answer.body!r}"
