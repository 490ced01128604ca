"""A gateway in the test's own event loop, with a clock that stands still."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from asgi_gateway import Gateway
from asgi_gateway.asgi import App
from asgi_gateway.configuration import load
from asgi_gateway.settings import Settings
from tests.support.asgi_client import AsgiClient, Connection, Response, turns
from tests.support.clock import ManualClock

SDK_HEADERS = {"X-API-Key": "tml-test", "X-Stainless-Package-Version": "0.38.0"}


# Set by the fixture `each_transport`; None is the default of the settings.
transport: str | None = None


def settings(url: str, **flags: Any) -> Settings:
    """Settings for one upstream; flags by dotted path with __ for the dots."""
    dotted = {name.replace("__", "."): value for name, value in flags.items()}
    usual = {"upstream.urls": [url], "upstream.transport": transport}
    return load({**usual, **dotted}, environ={}).settings


class Driven:
    """A gateway, its clock, and a client that speaks the SDK's routes."""

    def __init__(self, gateway: Gateway, clock: ManualClock) -> None:
        self.gateway = gateway
        self.clock = clock
        self.client = AsgiClient(gateway)
        self.sampling_session_id = ""
        self.session_id = ""

    async def advance(self, seconds: float) -> None:
        """Let time pass and the ticker see it."""
        self.clock.advance(seconds)
        self.gateway.tick()
        await turns()

    async def handshake(self) -> str:
        session = await self.client.post("/api/v1/create_session", {"tags": []}, SDK_HEADERS)
        self.session_id = session.json()["session_id"]
        made = await self.client.post(
            "/api/v1/create_sampling_session",
            {
                "session_id": self.session_id,
                "sampling_session_seq_id": 0,
                "base_model": "stand-in",
            },
            SDK_HEADERS,
        )
        assert made.status == 200, made.body
        self.sampling_session_id = made.json()["sampling_session_id"]
        return self.sampling_session_id

    async def submit(self, seq_id: int = 0, **fields: Any) -> Response:
        body = {
            "sampling_session_id": self.sampling_session_id,
            "seq_id": seq_id,
            "num_samples": 1,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
            "sampling_params": {"max_tokens": 2},
            "type": "sample",
            **fields,
        }
        return await self.client.post("/api/v1/asample", body, SDK_HEADERS)

    def poll(self, request_id: str) -> Connection:
        """Begin a poll; it is parked or answered after a few turns of the loop."""
        return self.client.start(
            "POST",
            "/api/v1/retrieve_future",
            {"request_id": request_id, "allow_metadata_only": False},
            {**SDK_HEADERS, "Accept": "application/x-protobuf"},
        )


@contextlib.asynccontextmanager
async def driven(url: str, **flags: Any) -> AsyncIterator[Driven]:
    """`inner` among the flags is the application that the gateway is wrapped around."""
    clock = ManualClock()
    inner: App | None = flags.pop("inner", None)
    gateway = Gateway(settings(url, **flags), inner, clock=clock)
    async with gateway.running():
        yield Driven(gateway, clock)
