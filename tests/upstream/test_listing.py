"""When the upstreams are asked for their lists."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from asgi_gateway.errors import Malformed, Unready
from tests.support.asgi_client import turns
from tests.support.catalog import BASE, SAMPLER, lora, opened, serve
from tests.support.upstream import FakeUpstream


async def test_an_adapter_loaded_a_moment_ago_is_found(upstream: FakeUpstream) -> None:
    serve(upstream, BASE)
    async with opened(upstream.url) as made:
        serve(upstream, BASE, lora("run_1"))
        # The clock has not moved since the last asking: it waits its turn rather than refuse.
        assert (await made.catalog.resolve(None, SAMPLER)).upstream_name == "run_1"


async def test_an_adapter_loaded_while_a_list_is_on_its_way_is_found(
    upstream: FakeUpstream,
) -> None:
    serve(upstream, BASE)
    async with opened(upstream.url) as made:
        catalog = made.later()
        under_way = asyncio.ensure_future(catalog.refresh())
        await turns(1)
        asked = asyncio.ensure_future(catalog.resolve(None, SAMPLER))
        await under_way
        serve(upstream, BASE, lora("run_1"))
        assert (await asked).upstream_name == "run_1"


async def test_a_name_that_comes_as_a_round_ends_waits_for_the_next(upstream: FakeUpstream) -> None:
    serve(upstream, BASE)
    async with opened(upstream.url) as made:
        catalog, listing = made.later(), made.catalog._listing
        coming: list[asyncio.Future[None]] = []
        took_in = listing._changed

        def changed() -> None:
            took_in()
            if not coming:  # its first step is between the end of the round and what follows it
                coming.append(asyncio.ensure_future(listing.look_for(lambda: False)))

        listing._changed = changed
        since = listing._ended
        await catalog.refresh()
        await asyncio.wait_for(coming[0], 5)
        assert listing._ended == since + 2


async def test_many_unknown_names_ask_once(upstream: FakeUpstream) -> None:
    serve(upstream, BASE)
    async with opened(upstream.url) as made:
        catalog = made.later()
        since = made.catalog._listing._ended
        names = [f"tinker://run/weights/{number}" for number in range(50)]
        asked = (catalog.resolve(None, name) for name in names)
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(answer, Malformed)
        assert made.catalog._listing._ended == since + 1


async def test_an_upstream_that_went_down_keeps_its_models() -> None:
    async with FakeUpstream().running() as stays, FakeUpstream().running() as leaves:
        serve(stays, BASE)
        serve(leaves, {**BASE, "id": "Qwen/Qwen3-4B"})
        async with opened(stays.url, leaves.url) as made:
            assert made.catalog.names() == ["Qwen/Qwen3-4B", "Qwen/Qwen3-8B"]
            leaves.models = {"error": "no list"}
            await made.later().refresh()
            assert made.catalog.names() == ["Qwen/Qwen3-4B", "Qwen/Qwen3-8B"]
            serve(leaves, {**BASE, "id": "Qwen/Qwen3-1B"})
            await made.later().refresh()
            assert made.catalog.names() == ["Qwen/Qwen3-1B", "Qwen/Qwen3-8B"]


async def test_before_any_answer_it_is_not_the_clients_fault(upstream: FakeUpstream) -> None:
    upstream.models = {"error": "loading"}
    async with opened(upstream.url) as made:
        assert not made.catalog.known
        for ask in (
            made.later().resolve("Qwen/Qwen3-8B", None),
            made.later().resolve(None, SAMPLER),
            made.later().adapters(),
            made.later().adapters("run"),
        ):
            with pytest.raises(Unready):
                await ask


async def test_one_that_hangs_holds_up_nobody_who_needs_the_others(upstream: FakeUpstream) -> None:
    """Also a name that was loaded a moment ago; what nobody has is known when all have spoken."""
    serve(upstream, BASE)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with hanging() as (deaf, answer), opened(upstream.url, deaf) as made:
        assert (await made.catalog.resolve("Qwen/Qwen3-8B", None)).upstream_name
        serve(upstream, BASE, lora("run_1"))
        assert (await made.later().resolve(None, SAMPLER)).upstream_name == "run_1"
        assert loop.time() - began < 3
        unknown = asyncio.ensure_future(
            made.later().resolve(None, "tinker://other/sampler_weights/2")
        )
        await asyncio.sleep(1)
        assert not unknown.done()
        answer(BASE, lora("other_2"))
        assert (await asyncio.wait_for(unknown, 5)).upstream_name == "other_2"


async def test_close_ends_what_is_late(upstream: FakeUpstream) -> None:
    serve(upstream, BASE)
    async with hanging() as (deaf, _):
        async with opened(upstream.url, deaf) as made:
            assert (await made.catalog.resolve("Qwen/Qwen3-8B", None)).upstream_name
            late = list(made.catalog._listing._late.values())
            assert late
        assert all(task.cancelled() for task in late)


@contextlib.asynccontextmanager
async def hanging() -> AsyncIterator[tuple[str, Callable[..., None]]]:
    """An upstream that takes a request for its list and says nothing before it is told to."""
    told = asyncio.Event()
    listed: list[bytes] = [b""]
    serving = set()

    async def serve_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        await reader.readuntil(b"\r\n\r\n")
        await told.wait()
        head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % len(listed[-1]) + listed[-1])
        writer.close()
        await writer.wait_closed()

    def answer(*models: dict[str, Any]) -> None:
        listed.append(msgspec.json.encode({"object": "list", "data": models}))
        told.set()

    server = await asyncio.start_server(serve_late, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", answer
    finally:
        told.set()
        await asyncio.gather(*filter(None, serving), return_exceptions=True)
        server.close()
