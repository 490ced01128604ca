"""`asgi-gateway serve` is told to stop while clients sample, as a process on real sockets."""

import asyncio
import contextlib
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.asgi_client import Response
from tests.support.processes import Served, environment, process, serve, stand_in
from tests.support.supervised import supervised
from tests.support.upstream import FakeUpstream, Raw, Request, answer, completion
from tests.support.waiting import until
from tests.support.wire import SDK_HEADERS, Remote, Wire, poll, wire
from tests.training.target import Request as Asked
from tests.training.target import Target

pytestmark = pytest.mark.servers

SAMPLES = 300
HANDED_BACK = 100
GENERATION_S = 1.5
PREDRAIN_S = 1.5


class Load:
    """Clients on kept connections that submit a sample and poll it to its end, all at once.

    seen: what each answer was, with the time, in the order of their coming.
    """

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._tasks: list[asyncio.Task[None]] = []
        self.seen: list[tuple[float, str]] = []
        self.accepted: list[str] = []
        self.delivered: list[str] = []
        self.closing = 0

    def start(self, count: int) -> None:
        self._tasks += [asyncio.create_task(self._sample()) for _ in range(count)]

    async def trickle(self, every_s: float) -> None:
        """One more now and then, for as long as the gateway is there."""
        while "submit: refused" not in self.kinds():
            self.start(1)
            await asyncio.sleep(every_s)

    async def end(self) -> None:
        async with asyncio.timeout(30):
            await asyncio.gather(*self._tasks)

    def kinds(self) -> Counter[str]:
        return Counter(kind for _, kind in self.seen)

    def times(self, kind: str) -> list[float]:
        return [at for at, seen in self.seen if seen == kind]

    def _saw(self, kind: str) -> None:
        self.seen.append((time.monotonic(), kind))

    async def _sample(self) -> None:
        try:
            async with wire(self._remote.port) as connection:
                await self._over(connection)
        except ConnectionRefusedError:
            self._saw("submit: refused")
        except (OSError, asyncio.IncompleteReadError) as error:
            self._saw(f"broken: {type(error).__name__}")

    async def _over(self, connection: Wire) -> None:
        body = self._remote.sample()
        submitted = await connection.ask("POST", "/api/v1/asample", body, SDK_HEADERS)
        self._saw(f"submit: {submitted.status}")
        if submitted.status != 200:
            assert b"retry-after" in submitted.headers
            return
        request_id = submitted.json()["request_id"]
        self.accepted.append(request_id)
        while True:
            self._remote.send_poll(connection, request_id)
            polled = await connection.read()
            self._saw(f"poll: {polled.status}")
            if polled.status == 200:
                self.delivered.append(request_id)
                return
            if polled.headers.get(b"connection") == b"close":
                self.closing += 1
                assert await connection.ended()
                return


@contextlib.asynccontextmanager
async def readiness(remote: Remote) -> AsyncIterator[list[tuple[float, Response]]]:
    """Answers of /readyz, ten a second, over one connection until the server ends it."""
    seen: list[tuple[float, Response]] = []

    async def ask() -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            async with wire(remote.port) as connection:
                while True:
                    seen.append((time.monotonic(), await connection.ask("GET", "/readyz")))
                    await asyncio.sleep(0.1)

    asking = asyncio.create_task(ask())
    try:
        yield seen
        async with asyncio.timeout(10):
            await asking
    finally:
        asking.cancel()


async def test_sigterm_under_load_loses_nothing() -> None:
    """Field 6.03: readiness fails first, then new samples are refused, running ones finish."""
    with (
        stand_in("--gen-seconds", str(GENERATION_S), "--jitter", "0.5") as upstream,
        serve(upstream, drain__predrain_s=PREDRAIN_S, drain__grace_s=40) as served,
    ):
        remote = Remote(served.port)
        await remote.handshake()
        load = Load(remote)
        load.start(SAMPLES)
        trickle = asyncio.create_task(load.trickle(0.02))
        await until(lambda: len(load.accepted) >= SAMPLES, 20)
        async with readiness(remote) as ready:
            await until(lambda: ready)
            began = time.monotonic()
            served.process.terminate()
            assert await asyncio.to_thread(served.process.wait, 30) == 0
            took_s = time.monotonic() - began
        await trickle
        await load.end()
        # Whoever connects in the very moment in which the listener closes may be cut off.
        cut_off = {kind for kind in load.kinds() if kind.startswith("broken")}
        assert all(at > max(load.times("poll: 200")) for kind in cut_off for at in load.times(kind))
        expected = {"submit: 200", "submit: 503", "submit: refused", "poll: 200"}
        assert set(load.kinds()) - cut_off == expected
        assert sorted(load.delivered) == sorted(load.accepted), "all that was accepted came"
        assert PREDRAIN_S <= took_s < 30
        unready = [at for at, answer in ready if answer.status == 503]
        first_refused = min(load.times("submit: 503"))
        assert [answer.status for _, answer in ready] == sorted(
            answer.status for _, answer in ready
        )
        assert unready[0] < first_refused - PREDRAIN_S / 3, "readiness fails some time before"
        assert first_refused < min(load.times("submit: refused"))
        assert max(load.times("poll: 200")) > first_refused, "and results go out after it"
        (reason,) = ready[-1][1].json()["reasons"]
        assert reason.startswith(("draining: ", "the gateway is stopping"))
        assert "Traceback" not in served.process.stderr


async def test_a_second_sigterm_hands_back_what_runs(tmp_path: Path) -> None:
    """And after a restart each client hears of it and may submit it again under its id."""
    waits = {"drain__predrain_s": 60, "drain__grace_s": 60}
    with (
        stand_in("--gen-seconds", "60") as upstream,
        supervised(upstream, tmp_path / "state", **waits) as served,
    ):
        remote = Remote(served.port)
        await remote.handshake()
        load = Load(remote)
        load.start(HANDED_BACK)
        body = remote.sample()
        first = (await remote.post("/api/v1/asample", body)).json()["request_id"]
        await remote.polls_parked(HANDED_BACK)
        served.process.terminate()
        await until(lambda: "draining for at most 120 s" in served.process.stderr)
        assert (await remote.get("/readyz")).status == 503
        assert (await remote.metrics())["draining"] == 1
        began = time.monotonic()
        served.process.terminate()
        assert await asyncio.to_thread(served.process.wait) == 0
        assert time.monotonic() - began < 10
        await load.end()
        assert load.kinds() == {"submit: 200": HANDED_BACK, "poll: 408": HANDED_BACK}
        assert load.closing == HANDED_BACK
        text = f"stopped with {HANDED_BACK + 1} samples unfinished, 0 results undelivered"
        assert text in served.process.stderr
        assert "Traceback" not in served.process.stderr

        served.settings |= {"drain__predrain_s": 0, "drain__grace_s": 0}
        served.start()
        assert (await remote.metrics())["samples_lost"] == HANDED_BACK + 1
        for request_id in load.accepted[:10]:
            assert (await remote.poll(request_id)).status == 410
        again = await remote.post("/api/v1/asample", body)
        assert again.json()["request_id"] == first


async def parked(served: Served, count: int, stack: contextlib.AsyncExitStack) -> list[Wire]:
    """Connections that each have a poll parked, all for one sample."""
    remote = Remote(served.port)
    await remote.handshake()
    request_id = await remote.submit()
    connections = []
    for _ in range(count):
        connection = await stack.enter_async_context(wire(served.port))
        connection.send("POST", "/api/v1/retrieve_future", *poll(request_id))
        connections.append(connection)
    await remote.polls_parked(count)
    return connections


async def test_a_thousand_idle_connections_and_a_thousand_parked_polls() -> None:
    """Fields 4.08 and 4.13."""
    with (
        stand_in("--gen-seconds", "60") as upstream,
        serve(upstream, drain__grace_s=0.5) as served,
    ):
        async with contextlib.AsyncExitStack() as stack:
            idle = [await stack.enter_async_context(wire(served.port)) for _ in range(1000)]
            for connection in idle:
                connection.send("GET", "/livez")
            assert {(await connection.read()).status for connection in idle} == {200}
            polls = await parked(served, 1000, stack)
            began = time.monotonic()
            served.process.terminate()
            held = [await connection.read() for connection in polls]
            assert {reply.status for reply in held} == {408}
            assert {reply.headers[b"connection"] for reply in held} == {b"close"}
            assert all([await connection.ended() for connection in (*idle, *polls)])
            assert await asyncio.to_thread(served.process.wait) == 0
            assert 0.5 <= time.monotonic() - began < 8
            assert "Traceback" not in served.process.stderr


async def test_a_second_signal_in_the_moment_of_the_end_cuts_no_answer_off() -> None:
    """Without a grace the first one ends the drain; the second finds polls being let go."""
    async with contextlib.AsyncExitStack() as stack:
        upstream = stack.enter_context(stand_in("--gen-seconds", "60"))
        served = stack.enter_context(serve(upstream, drain__predrain_s=0, drain__grace_s=0))
        polls = await parked(served, 100, stack)
        with served.process.frozen():  # the kernel makes one of two that are the same
            served.process.signal(signal.SIGINT)
            served.process.signal(signal.SIGTERM)
        assert {(await connection.read()).status for connection in polls} == {408}
        assert await asyncio.to_thread(served.process.wait) == 0


async def test_with_nothing_to_do_the_grace_is_not_used(upstream: FakeUpstream) -> None:
    with serve(upstream.url, drain__predrain_s=0.2, drain__grace_s=60) as served:
        remote = Remote(served.port)
        await remote.handshake()
        assert (await remote.poll(await remote.submit())).status == 200
        began = time.monotonic()
        served.process.terminate()
        assert await asyncio.to_thread(served.process.wait) == 0
        assert 0.2 <= time.monotonic() - began < 5


# `serve` with a shorter patience for what holds up its end.
IMPATIENT = """
import sys
import asgi_gateway.serve
from asgi_gateway.__main__ import main
asgi_gateway.serve.FINISH_S = 1.0
sys.exit(main(["serve", "--port", "0", "--upstream", sys.argv[1]]))
"""
LARGE, SEQUENCES = 60_000, 16


async def test_an_answer_that_nobody_takes_does_not_hold_up_the_end(
    upstream: FakeUpstream,
) -> None:
    """And one that somebody takes slowly is whole."""

    async def script(request: Request) -> Raw:
        return answer(200, completion([7] * LARGE, [-0.5] * LARGE, n=SEQUENCES))

    upstream.script = script
    with process([sys.executable, "-c", IMPATIENT, upstream.url]) as started:
        line = await asyncio.to_thread(started.first_line)
        remote = Remote(int(line.rsplit(":", 1)[1]))
        await remote.handshake()
        request_id = await remote.submit(
            num_samples=SEQUENCES, sampling_params={"max_tokens": LARGE}
        )
        await remote.until(lambda now: now["samples_undelivered"] == 1)
        async with wire(remote.port) as deaf, wire(remote.port) as slow:
            deaf.pause()
            for connection in (deaf, slow):
                remote.send_poll(connection, request_id)
            await remote.until(lambda now: now["samples_undelivered"] == 0)
            began = time.monotonic()
            started.terminate()
            whole = await slow.read()
            assert (whole.status, len(whole.body)) == (200, int(whole.headers[b"content-length"]))
            assert await asyncio.to_thread(started.wait) == 0
            assert 1 <= time.monotonic() - began < 8
            assert "Traceback" not in started.stderr, started.story()


@pytest.mark.parametrize("signals", [1, 3], ids=["waits", "told-again"])
async def test_a_trainer_that_says_nothing_does_not_hold_up_the_end(
    upstream: FakeUpstream, signals: int
) -> None:
    """It was asked by the gateway itself, in a handler that waits for it."""
    async with Target().running() as trainer:
        trainer.script = Asked.wait_for_hang_up
        environ = environment(training__url=trainer.url, drain__grace_s=0.5)
        with process([sys.executable, "-c", IMPATIENT, upstream.url], environ) as started:
            line = await asyncio.to_thread(started.first_line)
            async with wire(int(line.rsplit(":", 1)[1])) as connection:
                connection.send("POST", "/api/v1/create_session", {"tags": []}, SDK_HEADERS)
                await until(lambda: trainer.requests)
                for _ in range(signals):
                    started.terminate()
                    await asyncio.sleep(0.2)
                assert await asyncio.to_thread(started.wait) == 0
                assert await connection.ended()
            assert "Traceback" not in started.stderr, started.story()
