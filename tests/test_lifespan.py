"""The gateway's lifetime: alone, around another application, and under hosts that skip lifespan."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asgi_gateway import Gateway
from asgi_gateway.asgi import App, Message, Receive, Scope, Send
from tests.support.asgi_client import AsgiClient, turns
from tests.support.clock import ManualClock
from tests.support.gateway import driven, settings
from tests.support.upstream import FakeUpstream

NOWHERE = "http://127.0.0.1:9"
Behaviour = Callable[[Receive, Send], Awaitable[None]]


class Host:
    """What a server does: one lifespan scope, its events one after the other."""

    def __init__(self, app: App) -> None:
        self.scope: Scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        self._app = app
        self._events: asyncio.Queue[Message] = asyncio.Queue()
        self._answers: asyncio.Queue[Message] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def _say(self, kind: str) -> Message:
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        self._events.put_nowait({"type": kind})
        return await self._answers.get()

    async def _run(self) -> None:
        await self._app(self.scope, self._events.get, self._answers.put)

    async def start(self) -> Message:
        return await self._say("lifespan.startup")

    async def stop(self) -> Message:
        answer = await self._say("lifespan.shutdown")
        assert self._task is not None
        await self._task
        return answer

    async def ended(self) -> None:
        assert self._task is not None
        await self._task


class Inner:
    """An application whose lifespan does what a test says; everything else answers 204."""

    def __init__(self, behaviour: Behaviour | None) -> None:
        self._behaviour = behaviour
        self.scope: Scope | None = None
        self.lifespan: asyncio.Task[Any] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        self.scope = scope
        self.lifespan = asyncio.current_task()
        if self._behaviour is None:
            raise AssertionError("this application knows http only")
        await self._behaviour(receive, send)


def answering(*answers: str, log: list[str] | None = None) -> Behaviour:
    """Gives these answers, one per event, and returns."""

    async def behaviour(receive: Receive, send: Send) -> None:
        for answer in answers:
            event = await receive()
            if log is not None:
                log.append(f"inner {event['type'].removeprefix('lifespan.')}")
            await send({"type": answer, "message": "as told"})

    return behaviour


STARTED, FAILED = "lifespan.startup.complete", "lifespan.startup.failed"
STOPPED, NOT_STOPPED = "lifespan.shutdown.complete", "lifespan.shutdown.failed"


class Watched(Gateway):
    """A gateway that says when it opens and closes."""

    def __init__(self, inner: App | None = None, log: list[str] | None = None) -> None:
        super().__init__(settings(NOWHERE), inner, clock=ManualClock())
        self.log = [] if log is None else log

    async def open(self) -> None:
        await super().open()
        self.log.append("open")

    async def close(self) -> None:
        if self.is_open():
            self.log.append("close")
        await super().close()

    def is_open(self) -> bool:
        return self._ticker is not None


async def tasks_of(work: Callable[[], Awaitable[None]]) -> set[asyncio.Task[Any]]:
    """Tasks that are there after `work` and were not before."""
    before = asyncio.all_tasks()
    await work()
    await turns()
    return asyncio.all_tasks() - before


# --- alone and around another -------------------------------------------------------------------


async def test_alone() -> None:
    gateway = Watched()
    host = Host(gateway)
    assert (await host.start())["type"] == STARTED
    assert gateway.is_open()
    assert (await host.stop())["type"] == STOPPED
    assert not gateway.is_open()
    assert gateway.log == ["open", "close"]


async def test_ours_starts_first_and_stops_last() -> None:
    log: list[str] = []
    inner = Inner(answering(STARTED, STOPPED, log=log))
    host = Host(Watched(inner, log))
    assert (await host.start())["type"] == STARTED
    assert log == ["open", "inner startup"]
    assert (await host.stop())["type"] == STOPPED
    assert log == ["open", "inner startup", "inner shutdown", "close"]


async def test_the_inner_application_gets_the_hosts_scope() -> None:
    """So what it puts into `state` reaches its requests."""
    inner = Inner(answering(STARTED, STOPPED))
    host = Host(Watched(inner))
    await host.start()
    assert inner.scope is host.scope
    await host.stop()


async def test_an_inner_application_without_lifespan_is_served() -> None:
    gateway = Watched(Inner(None))
    host = Host(gateway)
    assert (await host.start())["type"] == STARTED
    response = await AsgiClient(gateway).get("/inner")
    assert response.status == 204
    assert (await host.stop())["type"] == STOPPED


async def test_an_inner_application_that_returns_at_once_is_served() -> None:
    gateway = Watched(Inner(answering()))
    host = Host(gateway)
    assert (await host.start())["type"] == STARTED
    assert (await host.stop())["type"] == STOPPED


async def test_an_inner_application_that_returns_after_its_start_is_served() -> None:
    gateway = Watched(Inner(answering(STARTED)))
    host = Host(gateway)
    assert (await host.start())["type"] == STARTED
    await turns()
    assert (await host.stop())["type"] == STOPPED


async def test_an_inner_application_that_dies_while_it_serves_does_not_stop_ours() -> None:
    async def dies(receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": STARTED})
        raise OSError("later")

    gateway = Watched(Inner(dies))
    host = Host(gateway)
    assert (await host.start())["type"] == STARTED
    await turns()
    assert gateway.is_open()
    assert (await host.stop())["type"] == STOPPED


@pytest.mark.parametrize("message", ["no database", ""])
async def test_a_failed_inner_start_fails_ours(message: str) -> None:
    async def fails(receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": FAILED, "message": message})

    gateway = Watched(Inner(fails))
    host = Host(gateway)
    answer = await host.start()
    assert answer["type"] == FAILED
    assert answer["message"] == (message or "the inner application failed to start")
    await host.ended()
    assert not gateway.is_open()


async def test_a_failed_inner_start_that_raises_too() -> None:
    """As Starlette does: it says what failed, then lets the exception out."""

    async def fails(receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": FAILED, "message": "no database"})
        raise OSError("no database")

    answer = await Host(Watched(Inner(fails))).start()
    assert answer == {"type": FAILED, "message": "no database"}


async def test_our_own_failed_start_is_reported_and_the_inner_is_not_started() -> None:
    class Broken(Watched):
        async def open(self) -> None:
            raise OSError("no descriptors left")

    inner = Inner(answering(STARTED, STOPPED))
    host = Host(Broken(inner))
    assert await host.start() == {"type": FAILED, "message": "OSError: no descriptors left"}
    await host.ended()
    assert inner.scope is None


async def test_a_failed_inner_stop_is_reported_after_ours_has_stopped() -> None:
    gateway = Watched(Inner(answering(STARTED, NOT_STOPPED)))
    host = Host(gateway)
    await host.start()
    assert await host.stop() == {"type": NOT_STOPPED, "message": "as told"}
    assert not gateway.is_open()


async def lingers(receive: Receive, send: Send) -> None:
    """Answers everything and never returns."""
    while True:
        event = await receive()
        await send({"type": f"{event['type']}.complete"})


async def fails_and_lingers(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": FAILED})
    await receive()


async def test_an_inner_application_that_never_returns_does_not_hold_up_the_stop() -> None:
    inner = Inner(lingers)
    gateway = Watched(inner)
    host = Host(gateway)
    await host.start()
    assert (await host.stop())["type"] == STOPPED
    assert not gateway.is_open()
    assert inner.lifespan is not None
    assert inner.lifespan.done()


async def test_an_inner_application_that_failed_and_lingers_is_ended() -> None:
    inner = Inner(fails_and_lingers)
    host = Host(Watched(inner))
    assert (await host.start())["type"] == FAILED
    await host.ended()
    assert inner.lifespan is not None
    assert inner.lifespan.done()


@pytest.mark.parametrize(
    "behaviour", [None, answering(STARTED, STOPPED), answering(FAILED), lingers, fails_and_lingers]
)
async def test_no_task_is_left(behaviour: Behaviour | None) -> None:
    async def life() -> None:
        host = Host(Watched(Inner(behaviour)))
        if (await host.start())["type"] == STARTED:
            await host.stop()
        await host.ended()

    assert await tasks_of(life) == set()


async def test_the_end_of_the_host_ends_the_inner_application() -> None:
    """hypercorn cancels the lifespan task of an application that starts too slowly."""
    inner = Inner(lambda receive, send: asyncio.Event().wait())  # type: ignore[arg-type,return-value]
    host = Host(Watched(inner))
    starting = asyncio.ensure_future(host.start())
    await turns()
    assert host._task is not None
    host._task.cancel()
    starting.cancel()
    await asyncio.wait([host._task, starting])
    await turns()
    assert inner.lifespan is not None
    assert inner.lifespan.done()


# --- open and close -----------------------------------------------------------------------------


async def test_opening_twice_and_closing_twice_is_once() -> None:
    gateway = Watched()

    async def life() -> None:
        await gateway.open()
        ticker = gateway._ticker
        await gateway.open()
        assert gateway._ticker is ticker
        await gateway.close()
        await gateway.close()

    assert await tasks_of(life) == set()


async def test_closing_what_was_never_open_is_nothing() -> None:
    await Watched().close()


async def test_running_opens_and_closes_around_a_failure_too() -> None:
    gateway = Watched()

    async def host() -> None:
        async with gateway.running() as same:
            assert same is gateway
            assert gateway.is_open()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await host()
    assert not gateway.is_open()


async def test_a_host_without_lifespan_opens_at_the_first_request(upstream: FakeUpstream) -> None:
    gateway = Gateway(settings(upstream.url), clock=ManualClock())
    client = AsgiClient(gateway)
    both = await asyncio.gather(
        client.get("/api/v1/get_server_capabilities"), client.get("/api/v1/healthz")
    )
    assert [response.status for response in both] == [200, 200]
    assert gateway._ticker is not None
    await gateway.close()


async def test_requests_for_the_inner_application_open_nothing() -> None:
    gateway = Watched(Inner(None))
    assert (await AsgiClient(gateway).get("/inner")).status == 204
    assert not gateway.is_open()


async def test_a_request_after_the_end_does_not_open_it_again(upstream: FakeUpstream) -> None:
    """Nothing would ever close it; a late request of a stopping host is told to come again."""
    gateway = Gateway(settings(upstream.url), clock=ManualClock())
    async with gateway.running():
        pass
    response = await AsgiClient(gateway).post("/api/v1/client/config", {"sdk_version": "0.38.0"})
    opened = gateway._ticker is not None
    await gateway.close()
    assert not opened
    assert response.status == 503


async def test_closing_ends_all_work_and_its_ids_answer_gone(upstream: FakeUpstream) -> None:
    begun = asyncio.Event()

    async def never(_: object) -> Any:
        begun.set()
        await asyncio.Event().wait()

    upstream.script = never
    async with driven(upstream.url) as gateway:
        await gateway.handshake()
        request_id = (await gateway.submit()).json()["request_id"]
        await begun.wait()
        poll = gateway.poll(request_id)
        await turns()
        assert not poll.answered
    response = await poll.response()
    assert response.status == 410
    await upstream.requests[0].hung_up.wait()


async def test_closing_does_not_wait_for_a_model_list() -> None:
    """Nor does an upstream that accepts and says nothing leave a task behind."""
    asked = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    before = asyncio.all_tasks()
    async with Gateway(settings(url), clock=ManualClock()).running():
        await asked.wait()
    server.close()
    while left := asyncio.all_tasks() - before:
        await asyncio.wait(left)


async def test_after_the_close_what_is_the_trainers_is_503(upstream: FakeUpstream) -> None:
    gateway = Gateway(settings(upstream.url, training__url="http://127.0.0.1:1"))
    async with gateway.running():
        pass
    for path in ("create_model", "retrieve_future"):
        answered = await AsgiClient(gateway).post(f"/api/v1/{path}", {"request_id": "x"})
        assert (answered.status, "closed" in answered.json()["detail"]) == (503, True)
