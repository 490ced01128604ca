"""Settings that change while samples run, as clients and upstreams see them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from asgi_gateway.errors import NotFound
from asgi_gateway.settings import SettingsError
from tests.support import gateway as support
from tests.support.gateway import SDK_HEADERS, Driven, driven
from tests.support.held import Held, metric
from tests.support.keyed import entries, secret_of
from tests.support.upstream import FakeUpstream, Raw, Request, answer
from tests.support.waiting import until

# --- upstreams that come and go -------------------------------------------------------------------


@contextlib.asynccontextmanager
async def three() -> AsyncIterator[tuple[FakeUpstream, FakeUpstream, FakeUpstream]]:
    async with (
        FakeUpstream().running() as one,
        FakeUpstream().running() as two,
        FakeUpstream().running() as three,
    ):
        yield one, two, three


def name(upstream: FakeUpstream) -> str:
    return upstream.url.removeprefix("http://")


async def use(gateway: Driven, *upstreams: FakeUpstream, **changed: Any) -> tuple[str, ...]:
    urls = [upstream.url for upstream in upstreams]
    return await gateway.gateway.reload(support.settings("", upstream__urls=urls, **changed))


async def submitted(gateway: Driven, count: int, first: int = 0) -> list[str]:
    answers = [await gateway.submit(first + number) for number in range(count)]
    assert {answer.status for answer in answers} == {200}
    return [answer.json()["request_id"] for answer in answers]


async def outcome(gateway: Driven, request_id: str) -> int:
    poll = gateway.poll(request_id)
    await until(lambda: poll.answered)
    return (await poll.response()).status


@pytest.fixture(params=["httptools", "aiohttp"])
def each_transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "transport", request.param)


@pytest.mark.usefixtures("each_transport")
async def test_one_goes_with_its_samples_and_another_comes() -> None:
    async with three() as (left, right, new):
        urls = [left.url, right.url]
        async with driven("", upstream__urls=urls) as gateway:
            await gateway.handshake()
            held = Held(left)
            ids = await submitted(gateway, 12)
            await until(lambda: len(left.requests) + len(right.requests) == 12)
            there, at_right = len(left.requests), len(right.requests)
            assert there
            assert await use(gateway, right, new) == ("upstream.urls",)
            ids += await submitted(gateway, 20, first=100)
            await until(lambda: len(right.requests) + len(new.requests) == at_right + 20)
            assert new.requests, "the new one has its share at once"
            text = (await gateway.client.get("/metrics")).body
            assert metric(text, "upstream_draining", upstream=name(left)) == 1
            assert metric(text, "upstream_inflight", upstream=name(left)) == there
            assert name(new).encode() in text
            held.release()
            for request_id in ids:
                assert await outcome(gateway, request_id) == 200
            assert len(left.requests) == there
            await gateway.advance(0.1)
            assert [state.name for state in gateway.gateway.fleet.states] == [
                name(right),
                name(new),
            ]
            assert name(left).encode() not in (await gateway.client.get("/metrics")).body
            # Of the transport too, and it is listed and asked no more.
            transport = vars(gateway.gateway)["_transport"]
            assert left.url not in (vars(transport).get("_origins") or vars(transport)["_urls"])


async def test_the_others_keep_what_they_had() -> None:
    """Rendezvous: of the keys that one had only those move whose new one it is."""
    async with three() as (left, right, new):
        urls = [left.url, right.url]
        async with driven("", upstream__urls=urls) as gateway:
            await gateway.handshake()
            fleet, store = gateway.gateway.fleet, vars(gateway.gateway)["_store"]
            ids = await submitted(gateway, 40)
            for request_id in ids:
                assert await outcome(gateway, request_id) == 200
            before = [fleet.choose(store.find(request_id)).url for request_id in ids]
            upstreams = list(fleet.upstreams)
            await use(gateway, new, left, right)
            assert fleet.upstreams[1:] == tuple(upstreams), "as they stood"
            after = [fleet.choose(store.find(request_id)).url for request_id in ids]
            moved = [now for was, now in zip(before, after, strict=True) if was != now]
            assert set(moved) == {new.url}
            assert len(moved) < 30


async def test_one_that_is_taken_out_and_hangs_gives_its_samples_back() -> None:
    """Its connection breaks, or it says nothing more: both as if it were configured still."""
    async with three() as (left, right, _), driven("", upstream__urls=[left.url]) as gateway:
        await gateway.handshake()
        held = Held(left)
        broken, waiting = await submitted(gateway, 2)
        await held.running(2)
        await use(gateway, right)

        async def breaks(_: Request) -> Raw:
            return Raw(then="reset")

        left.script = breaks
        for request in left.requests[:1]:
            request.writer.transport.abort()
        statuses = {await outcome(gateway, left.requests[0].request_id)}
        assert statuses == {410}
        held.release()
        other = ({broken, waiting} - {left.requests[0].request_id}).pop()
        assert await outcome(gateway, other) == 200
        # Nothing was sent again to the one that is gone.
        assert len(left.requests) == 2


async def test_a_sample_that_waits_for_one_that_is_away_goes_to_the_new_one() -> None:
    async with three() as (left, right, _), driven("", upstream__urls=[left.url]) as gateway:
        await gateway.handshake()

        async def busy(_: Request) -> Raw:
            return answer(503, {"detail": "busy"})

        left.script = busy
        (request_id,) = await submitted(gateway, 1)
        await until(lambda: len(left.requests) >= 2)
        await use(gateway, right)
        sent = len(left.requests)
        poll = gateway.poll(request_id)
        for _ in range(40):
            await gateway.advance(0.5)
            await asyncio.sleep(0.01)
            if poll.answered:
                break
        assert (await poll.response()).status == 200
        assert len(right.requests) == 1
        assert len(left.requests) == sent


async def test_one_that_comes_back_is_given_samples_again() -> None:
    """While its last samples ran, and though somebody had drained it before; and one that is
    leaving cannot be taken back by the status page."""
    async with three() as (left, right, _):
        urls = [left.url, right.url]
        async with driven("", upstream__urls=urls) as gateway:
            await gateway.handshake()
            held = Held(left)
            await submitted(gateway, 12)
            await held.running()
            gateway.gateway.drain_upstream(right.url, True)
            await use(gateway, right)
            assert gateway.gateway.fleet.reason.endswith(f": {name(right)} is draining")
            with pytest.raises(NotFound, match="no upstream has this URL"):
                gateway.gateway.drain_upstream(left.url, False)
            assert (await gateway.submit(500)).status == 429
            await use(gateway, left, right)
            assert [state.draining for state in gateway.gateway.fleet.states] == [False, True]
            (request_id,) = await submitted(gateway, 1, first=501)
            held.release()
            assert await outcome(gateway, request_id) == 200


async def test_all_others_at_once_and_the_models_of_the_new_one() -> None:
    async with three() as (left, right, _):
        right.models = {"object": "list", "data": [{"id": "new-one", "max_model_len": 100}]}
        async with driven("", upstream__urls=[left.url]) as gateway:
            await gateway.handshake()
            await use(gateway, right)
            await until(lambda: vars(gateway.gateway)["_catalog"].names() == ["new-one"])
            capabilities = await gateway.client.get("/api/v1/get_server_capabilities")
            (model,) = capabilities.json()["supported_models"]
            assert model["model_name"] == "new-one"


async def test_what_a_source_has_told_stays(upstream: FakeUpstream, tmp_path: Path) -> None:
    source = f"sqlite:///{tmp_path}/tinker.db"

    def told(**changed: Any) -> dict[str, Any]:
        return {"upstream__urls": [], "upstream__source": source, **changed}

    async with driven("", **told()) as gateway:
        gateway.gateway.fleet.replace([upstream.url])
        before = gateway.gateway.fleet.upstreams
        assert await gateway.gateway.reload(support.settings("", **told(poll__hold_s=3))) == (
            "poll.hold_s",
        )
        assert gateway.gateway.fleet.upstreams == before
        await gateway.handshake()
        (request_id,) = await submitted(gateway, 1)
        assert await outcome(gateway, request_id) == 200
        with pytest.raises(SettingsError, match=r"upstream\.source: from .* needs a restart"):
            await gateway.gateway.reload(support.settings(upstream.url))


# --- some of the others, as a client sees them ----------------------------------------------------


async def test_a_parked_poll_is_answered_by_the_new_hold(upstream: FakeUpstream) -> None:
    Held(upstream)
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        (request_id,) = await submitted(gateway, 1)
        poll = gateway.poll(request_id)
        await gateway.advance(0)
        await gateway.advance(10)
        assert not poll.answered
        await gateway.gateway.reload(support.settings(upstream.url, poll__hold_s=5))
        await gateway.advance(0.1)
        assert (await poll.response()).status == 408


async def test_limits_are_those_of_now(upstream: FakeUpstream) -> None:
    held = Held(upstream)
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        await submitted(gateway, 3)
        await gateway.gateway.reload(
            support.settings(upstream.url, store__max_in_flight=3, limits__body_bytes=100)
        )
        assert (await gateway.submit(3)).status == 429
        long = {"request_id": "x" * 100}
        assert (await gateway.client.post("/api/v1/retrieve_future", long)).status == 413
        await gateway.gateway.reload(
            support.settings(upstream.url, client__sample_max_concurrent_requests=9)
        )
        assert (await gateway.submit(3)).status == 200
        told = await gateway.client.post("/api/v1/client/config", {}, SDK_HEADERS)
        assert told.json()["sample_max_concurrent_requests"] == 9
        held.release()


async def test_a_session_lapses_by_the_new_timeout(upstream: FakeUpstream) -> None:
    held = Held(upstream)
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        await submitted(gateway, 1)
        await held.running()
        await gateway.advance(20)
        await gateway.gateway.reload(support.settings(upstream.url, session__timeout_s=10))
        await gateway.advance(0.1)
        await until(lambda: upstream.requests[0].hung_up.is_set())


async def test_adapters_are_those_of_now(upstream: FakeUpstream) -> None:
    path = "tinker://run/sampler_weights/last"
    upstream.models = {
        "object": "list",
        "data": [
            {"id": "stand-in", "max_model_len": 65536, "parent": None},
            {"id": "my-lora", "parent": "stand-in"},
        ],
    }
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        body = {"session_id": gateway.session_id, "sampling_session_seq_id": 1, "model_path": path}
        route = "/api/v1/create_sampling_session"
        assert (await gateway.client.post(route, body, SDK_HEADERS)).status == 400
        await gateway.gateway.reload(
            support.settings(upstream.url, models__adapters={path: "my-lora"})
        )
        assert (await gateway.client.post(route, body, SDK_HEADERS)).status == 200


async def test_a_longer_grace_keeps_what_waits(upstream: FakeUpstream) -> None:
    async def busy(_: Request) -> Raw:
        return answer(503, {"detail": "busy"})

    upstream.script = busy
    async with driven(upstream.url, upstream__unavailable_grace_s=20) as gateway:
        await gateway.handshake()
        ids = await submitted(gateway, 1)
        await until(lambda: len(upstream.requests) >= 2)
        await gateway.gateway.reload(support.settings(upstream.url))
        for _ in range(60):
            await gateway.advance(1)
            await asyncio.sleep(0)
        poll = gateway.poll(ids[0])
        await asyncio.sleep(0.05)
        assert [poll.answered] == [False]
        upstream.script = FakeUpstream().script
        for _ in range(40):
            await gateway.advance(1)
            await asyncio.sleep(0.01)
            if poll.answered:
                break
        assert (await poll.response()).status == 200


# --- keys -----------------------------------------------------------------------------------------


async def test_keys_of_another_file(upstream: FakeUpstream, tmp_path: Path) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text(entries({"alice": {}}))
    two.write_text(entries({"bob": {}}))
    async with driven(upstream.url, access__keys_file=str(one)) as gateway:

        async def status(who: str) -> int:
            headers = {"X-API-Key": secret_of(who)}
            asked = gateway.client.start("GET", "/api/v1/sessions", headers=headers)
            return (await asked.response()).status

        await gateway.gateway.reload(support.settings(upstream.url, access__keys_file=str(two)))
        assert (await status("bob"), await status("alice")) == (200, 401)
        # It is the other file that is looked at now.
        one.write_text(entries({"alice": {}, "carol": {}}))
        two.write_text(entries({"bob": {}, "dave": {}}))
        for _ in range(3):
            await gateway.advance(1)
            await until(lambda: vars(gateway.gateway)["_door"]._reloading is None)
        assert (await status("dave"), await status("carol")) == (200, 401)
        two.unlink()
        with pytest.raises(SettingsError, match="cannot read"):
            await gateway.gateway.reload(
                support.settings(upstream.url, access__keys_file=str(two), poll__hold_s=3)
            )
        assert (await status("bob")) == 200
        assert gateway.gateway.settings.poll.hold_s == 30


async def test_what_was_lost_at_an_upstream_is_forgotten_with_it() -> None:
    async with three() as (one, two, _), driven("", upstream__urls=[one.url]) as gateway:
        await gateway.handshake()
        for number, upstream in enumerate((two, one, two)):
            (request_id,) = await submitted(gateway, 1, first=number)
            assert await outcome(gateway, request_id) == 200
            await use(gateway, upstream)
            await gateway.advance(0.1)
        guard = vars(vars(vars(gateway.gateway)["_sampling"])["_runs"])["_remedies"]._poison
        assert set(guard._answered) <= {two.url}
