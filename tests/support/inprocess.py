"""A whole gateway without a socket: its upstream is this object, which keeps what it was sent."""

import contextlib
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any
from unittest import mock

import msgspec

from asgi_gateway import Gateway
from asgi_gateway.asgi import App
from asgi_gateway.upstream.client import ServedModel
from asgi_gateway.upstream.exchange import Answer, Exchange
from tests.support.clock import ManualClock
from tests.support.gateway import Driven, settings
from tests.support.upstream import completion

URL = "http://in-process.invalid:1"
SERVED = [
    ServedModel("stand-in", max_model_len=65_536),
    ServedModel("run_step", parent="stand-in", max_model_len=None),
]


class Sent(msgspec.Struct, eq=False):
    """One POST: over once the upstream has answered or the gateway has given it up."""

    exchange: Exchange
    request_id: str
    affinity: str | None
    body: bytes
    fresh: bool
    more: dict[str, str]
    over: bool = False

    def answer(self, status: int, body: bytes | object, retry_after: str | None = None) -> None:
        """A whole answer; anything that is not bytes is sent as JSON."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        self._end()
        if 200 <= status < 300:
            self.exchange.answering()
        self.exchange.answered(Answer(status, [data], retry_after))

    def complete(self, first_token: int = 11) -> None:
        """Two tokens a choice, and scores for as many prompts as `n` and the prompt are."""
        asked = msgspec.json.decode(self.body)
        prompts = len(asked["prompt"]) if isinstance(asked["prompt"][0], list) else 1
        tokens = [first_token, first_token + 1]
        self.answer(200, completion(tokens, [-1.0, -2.0], n=asked["n"] * prompts))

    def fail(self, error: Exception) -> None:
        """No whole answer: Unavailable, StaleConnection or Interrupted."""
        self._end()
        self.exchange.failed(error)

    def _end(self) -> None:
        assert not self.over
        self.over = True
        self.exchange.work = None


class InProcess:
    """Stands for `upstream.client.Client`, models and completions."""

    def __init__(self, _: object = None) -> None:
        self.served = SERVED
        self.sent: list[Sent] = []
        self.listings = 0

    @property
    def under_way(self) -> list[Sent]:
        return [sent for sent in self.sent if not sent.over]

    def open(self) -> None: ...

    async def close(self) -> None: ...

    def forget_addresses(self) -> None: ...

    def serve(self, urls: Collection[str]) -> None: ...

    async def health(self, url: str) -> None: ...

    def is_sent(self, exchange: Exchange) -> bool:
        return isinstance(exchange.work, Sent)

    def heard_within(self, url: str, seconds: float) -> bool:
        return False

    async def models(self, url: str) -> list[ServedModel]:
        self.listings += 1
        return self.served

    def send(
        self,
        exchange: Exchange,
        url: str,
        body: bytes,
        *,
        request_id: str,
        affinity: str | None,
        fresh: bool = False,
        more: Sequence[tuple[str, str]] = (),
    ) -> None:
        assert url == URL
        exchange.work = sent = Sent(exchange, request_id, affinity, body, fresh, dict(more))
        self.sent.append(sent)

    def abort(self, exchange: Exchange) -> None:
        sent, exchange.work = exchange.work, None
        if isinstance(sent, Sent):
            assert not sent.over, "aborted after its end"
            sent.over = True


def new_gateway(
    upstream: InProcess, clock: ManualClock, inner: App | None = None, **flags: Any
) -> Gateway:
    given = {
        "upstream__transport": "aiohttp",
        # What becomes of one sample must not depend on those before it.
        "upstream__breaker_failures": 0,
        **flags,
    }
    with mock.patch("asgi_gateway.app.Client", return_value=upstream):
        return Gateway(settings(URL, **given), inner, clock=clock)


@contextlib.asynccontextmanager
async def in_process(**flags: Any) -> AsyncIterator[tuple[Driven, InProcess]]:
    """A running gateway and its upstream; flags as of `gateway.driven`."""
    upstream, clock = InProcess(), ManualClock()
    gateway = new_gateway(upstream, clock, **flags)
    async with gateway.running():
        yield Driven(gateway, clock), upstream
