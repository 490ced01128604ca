"""A catalog of its own against a scripted upstream's model list."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from asgi_gateway.settings import ModelSettings, UpstreamSettings
from asgi_gateway.upstream.catalog import Catalog
from asgi_gateway.upstream.client import Client
from asgi_gateway.upstream.listing import MIN_REFRESH_S
from tests.support.clock import ManualClock
from tests.support.upstream import FakeUpstream

BASE: dict[str, Any] = {"id": "Qwen/Qwen3-8B", "max_model_len": 4096, "parent": None}
SAMPLER = "tinker://run/sampler_weights/1"


def lora(name: str, parent: str = "Qwen/Qwen3-8B") -> dict[str, Any]:
    return {"id": name, "root": f"/loras/{name}", "parent": parent, "max_model_len": None}


def serve(upstream: FakeUpstream, *models: dict[str, Any]) -> None:
    upstream.models = {"object": "list", "data": list(models)}


class Opened:
    """A catalog that has asked once, with a clock that stands still."""

    def __init__(self, catalog: Catalog, clock: ManualClock) -> None:
        self.catalog = catalog
        self.clock = clock

    def later(self) -> Catalog:
        """Far enough from the last asking that the next needs no waiting."""
        self.clock.advance(MIN_REFRESH_S)
        return self.catalog


@contextlib.asynccontextmanager
async def opened(*urls: str, **settings: Any) -> AsyncIterator[Opened]:
    client = Client(UpstreamSettings(urls=urls))
    client.open()
    clock = ManualClock()
    catalog = Catalog(client, urls, ModelSettings(**settings), clock)
    try:
        await catalog.refresh()
        yield Opened(catalog, clock)
    finally:
        await catalog.close()
        await client.close()
