"""Ten thousand samples, every kind of end, and then time: everything is as it was before.

The upstream is a client below the sockets, so that the gateway's own books are all that moves.
"""

import asyncio
import contextlib
import gc
import logging
import sys
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any

import msgspec
import pytest

from asgi_gateway.errors import (
    EngineFault,
    Interrupted,
    Rejected,
    StaleConnection,
    Unavailable,
    UpstreamError,
)
from asgi_gateway.settings import UpstreamSettings
from asgi_gateway.upstream.client import ServedModel
from asgi_gateway.upstream.dispatch import SETTLED_IN_LINE
from asgi_gateway.upstream.exchange import Answer, Exchange
from tests.support.asgi_client import turns
from tests.support.gateway import Driven, driven
from tests.support.upstream import completion

SAMPLES, AT_ONCE = 10_000, 500
DELIVERED_S, UNDELIVERED_S, RETENTION_S = 300, 2048, 86_400
ANSWER = msgspec.json.encode(completion([11, 12, 13], [-1.0, -2.0, -3.0]))
# Raised once a sample; the next try goes well.
AT_FIRST: dict[int, type[UpstreamError]] = {3: Unavailable, 4: StaleConnection, 5: EngineFault}


class SocketlessClient:
    """Ends every tenth sample in another way than well, by its seq_id; the rest after a turn."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self._tried: set[str] = set()
        self.hold: asyncio.Event | None = None

    def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def forget_addresses(self) -> None:
        pass

    def serve(self, urls: Collection[str]) -> None:
        pass

    async def models(self, url: str) -> list[ServedModel]:
        return [ServedModel("stand-in", 65536)]

    async def health(self, url: str) -> None: ...

    def is_sent(self, exchange: Exchange) -> bool:
        return True

    def heard_within(self, url: str, seconds: float) -> bool:
        return False

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
        assert affinity is not None
        exchange.work = asyncio.create_task(
            self._run(exchange, request_id, int(affinity.split(":")[1]))
        )

    def abort(self, exchange: Exchange) -> None:
        exchange.work.cancel()

    async def _run(self, exchange: Exchange, request_id: str, seq_id: int) -> None:
        await asyncio.sleep(0)
        if self.hold is not None:
            await self.hold.wait()
        kind = seq_id // 10 % 6 if seq_id % 10 == 0 else None
        if kind == 0:
            exchange.failed(Rejected("no", "user"))
        elif kind == 1:
            exchange.failed(Interrupted("cut"))
        elif kind == 2:
            exchange.answering()
            exchange.answered(Answer(200, [b"no JSON"], None))
        elif kind is not None and request_id not in self._tried:
            self._tried.add(request_id)
            exchange.failed(AT_FIRST[kind]("at first"))
        else:
            self._tried.discard(request_id)
            exchange.answering()
            exchange.answered(Answer(200, [ANSWER], None))


def books(gateway: Driven) -> dict[str, Any]:
    """How much of everything a gateway holds."""
    app = gateway.gateway
    store, sampling, sessions = app._store, app._sampling, app._sessions
    dispatch = sampling._dispatch
    return {
        "records": len(store._records),
        "targets": len(store.targets),
        "parked": len(store.waiting._parked),
        "counts": list(store.counts),
        "charged bytes": store.charged_bytes,
        "result bytes": store.results_bytes,
        "clocks": [len(c) for c in (store._work, store._undelivered, store._delivered)],
        "upstreams": [upstream.in_flight for upstream in app.fleet.upstreams],
        "line": [len(dispatch._waiting), dispatch._repeats.later, dispatch.running],
        "holds": [len(sampling.delivery._holds), len(sampling.delivery._wakes)],
        "traces": len(sampling._traces.held),
        "sessions": [len(sessions._sessions), len(sessions._sampling)],
        "session clocks": [len(sessions._alive), len(sessions._kept)],
    }


@contextlib.asynccontextmanager
async def socketless(monkeypatch: pytest.MonkeyPatch, **flags: Any) -> AsyncIterator[Driven]:
    monkeypatch.setattr("asgi_gateway.app.Client", SocketlessClient)
    async with driven("http://127.0.0.1:9", upstream__transport="aiohttp", **flags) as gateway:
        await turns()
        yield gateway


async def pass_time(gateway: Driven, seconds: float) -> None:
    """Advance, and let the ticker come back for what its budget left."""
    await gateway.advance(seconds)
    for _ in range(SAMPLES // 2048 + 1):
        await gateway.advance(0)


async def one_sample(gateway: Driven, seq_id: int) -> None:
    """Submitted, and then fetched, left alone, abandoned, or fetched twice."""
    promise = await gateway.submit(seq_id)
    assert promise.status == 200, promise.body
    request_id = promise.json()["request_id"]
    habit = seq_id % 7
    if habit == 0:
        return
    poll = gateway.poll(request_id)
    if habit == 1:
        poll.hang_up()
    response = await poll.response()
    assert response.status in (200, 408, 410), response.body
    if habit == 2 and response.status == 200:
        assert (await gateway.poll(request_id).response()).body == response.body


async def many_samples(gateway: Driven, count: int) -> None:
    """In waves, each of a session of its own; delayed retries get their time in between."""
    for start in range(0, count, AT_ONCE):
        await gateway.handshake()
        wave = [
            asyncio.ensure_future(one_sample(gateway, seq_id))
            for seq_id in range(start, start + AT_ONCE)
        ]
        await turns(50)
        while not all(sample.done() for sample in wave):
            await gateway.advance(1)
        for sample in wave:
            sample.result()


async def forgotten(gateway: Driven) -> None:
    """Let every lifetime end."""
    for seconds in (DELIVERED_S, UNDELIVERED_S, RETENTION_S):
        await pass_time(gateway, seconds)


async def test_ten_thousand_samples_leave_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "asgi_gateway")  # pytest keeps what is logged
    # The session's timeout is out of the way, so that each result ends by its own clock.
    async with socketless(monkeypatch, session__timeout_s=RETENTION_S) as gateway:
        before, tasks = books(gateway), asyncio.all_tasks()
        await many_samples(gateway, AT_ONCE)  # what is made once is made now
        await forgotten(gateway)
        gc.collect()
        blocks = sys.getallocatedblocks()

        await many_samples(gateway, SAMPLES)
        held = books(gateway)
        assert held["records"] > SAMPLES * 0.9
        assert held["result bytes"] > SAMPLES * len(ANSWER) / 100
        assert held["sessions"] == [SAMPLES // AT_ONCE] * 2
        assert held["line"] == [0, 0, 0]
        assert held["holds"] == [0, 0]

        await pass_time(gateway, DELIVERED_S)
        undelivered = books(gateway)
        assert undelivered["clocks"] == [0, undelivered["records"], 0]
        assert 0 < undelivered["records"] < SAMPLES / 2
        await pass_time(gateway, UNDELIVERED_S)
        assert books(gateway)["records"] == 0
        await pass_time(gateway, RETENTION_S)

        assert books(gateway) == before
        assert asyncio.all_tasks() == tasks
        gc.collect()
        # One block a sample would be ten thousand.
        assert sys.getallocatedblocks() - blocks < 1000
        assert gateway.gateway._metrics.bugs == 0
        assert gateway.gateway._store.late_events == [0] * 6


@pytest.mark.parametrize("end", ["finish", "lapse"])
async def test_a_session_that_ends_takes_its_samples_with_it(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Running, queued, parked and settled ones."""
    async with socketless(monkeypatch, upstream__max_connections=20) as gateway:
        before, tasks = books(gateway), asyncio.all_tasks()
        await gateway.handshake()
        for seq_id in range(1, 50):
            await one_sample(gateway, 10 * seq_id + 1)
        client: Any = gateway.gateway._client
        client.hold = asyncio.Event()
        ids = [(await gateway.submit(1000 + number)).json()["request_id"] for number in range(500)]
        polls = [gateway.poll(request_id) for request_id in ids]
        await turns()
        held = books(gateway)
        assert held["line"] == [480, 0, 20]
        assert (held["parked"], held["holds"][0]) == (500, 500)

        if end == "finish":
            path = f"/api/v1/sessions/{gateway.session_id}/finish"
            assert (await gateway.client.post(path)).status == 200
        else:
            await gateway.advance(300)
        assert {(await poll.response()).status for poll in polls} == {410}
        await turns()
        await pass_time(gateway, RETENTION_S)
        assert books(gateway) == before
        assert asyncio.all_tasks() == tasks


async def test_sessions_that_come_and_go_do_not_grow_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The only connection is busy all the time, so nothing of the line comes to its head."""
    async with socketless(monkeypatch, upstream__max_connections=1) as gateway:
        client: Any = gateway.gateway._client
        client.hold = asyncio.Event()
        await gateway.handshake()
        lives = (await gateway.submit(1)).json()["request_id"]
        waits = (await gateway.submit(11)).json()["request_id"]
        for _ in range(20):
            await gateway.handshake()
            for number in range(200):
                assert (await gateway.submit(10 * number + 1)).status == 200
            path = f"/api/v1/sessions/{gateway.session_id}/finish"
            assert (await gateway.client.post(path)).status == 200
            await gateway.advance(0)
        assert books(gateway)["records"] == 2
        waiting, _, running = books(gateway)["line"]
        assert (waiting < SETTLED_IN_LINE + 200, running) == (True, 1)
        client.hold.set()
        for request_id in (lives, waits):
            assert (await gateway.poll(request_id).response()).status == 200
        assert books(gateway)["line"] == [0, 0, 0]


async def test_closing_leaves_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = asyncio.all_tasks()
    async with socketless(monkeypatch, upstream__max_connections=20) as gateway:
        client: Any = gateway.gateway._client
        client.hold = asyncio.Event()
        await gateway.handshake()
        ids = [(await gateway.submit(seq_id)).json()["request_id"] for seq_id in range(100)]
        polls = [gateway.poll(request_id) for request_id in ids]
        await turns()
        assert len(asyncio.all_tasks() - tasks) > 120
    assert {(await poll.response()).status for poll in polls} == {410}
    await turns()
    assert asyncio.all_tasks() == tasks
    left = books(gateway)
    assert (left["records"], left["charged bytes"], left["line"]) == (0, 0, [0, 0, 0])
