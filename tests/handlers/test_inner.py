"""Whose path it is: the gateway's, or that of the application it is wrapped around."""

import pytest

from asgi_gateway import Gateway
from asgi_gateway.asgi import Message, Receive, Scope, Send
from tests.support.asgi_client import AsgiClient
from tests.support.clock import ManualClock
from tests.support.gateway import settings
from tests.support.routes import API, NOWHERE, assert_error


class Inner:
    """An application that keeps what it was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[Scope, Receive, Send]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls.append((scope, receive, send))


async def unused_receive() -> Message:
    raise AssertionError("the gateway read what is not its own")


async def unused_send(_: Message) -> None:
    raise AssertionError("the gateway answered what is not its own")


@pytest.mark.parametrize(
    "scope",
    [
        {"type": "http", "method": "GET", "path": "/", "headers": []},
        {"type": "http", "method": "POST", "path": f"{API}/forward_backward", "headers": []},
        {"type": "http", "method": "POST", "path": "/asample", "root_path": "", "headers": []},
        {"type": "http", "method": "POST", "path": "/x/api/v1/asample", "root_path": "/y"},
        {"type": "http", "method": "GET", "path": "/xmetrics", "root_path": "/x", "headers": []},
        {"type": "websocket", "path": f"{API}/asample", "headers": []},
        {"type": "something-new"},
    ],
    ids=lambda scope: f"{scope['type']} {scope.get('path', '')}",
)
async def test_what_is_not_ours_goes_to_the_inner_application_untouched(scope: Scope) -> None:
    inner = Inner()
    gateway = Gateway(settings(NOWHERE), inner, clock=ManualClock())
    before = dict(scope)
    await gateway(scope, unused_receive, unused_send)
    ((given_scope, given_receive, given_send),) = inner.calls
    assert given_scope is scope
    assert scope == before
    assert given_receive is unused_receive
    assert given_send is unused_send


async def test_what_is_ours_does_not_reach_the_inner_application() -> None:
    inner = Inner()
    gateway = Gateway(settings(NOWHERE), inner, clock=ManualClock())
    async with gateway.running():
        client = AsgiClient(gateway)
        assert (await client.get(f"{API}/healthz")).status == 200
        assert_error(await client.get(f"{API}/asample"), 405)
    assert inner.calls == []


async def test_below_a_root_path() -> None:
    gateway = Gateway(settings(NOWHERE), clock=ManualClock())
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    async with gateway.running():
        scope = {
            "type": "http",
            "method": "GET",
            "path": f"/mounted{API}/healthz",
            "root_path": "/mounted",
            "headers": [],
        }
        await gateway(scope, receive, send)
    assert sent[0]["status"] == 200


async def test_a_websocket_without_an_inner_application_is_closed() -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    gateway = Gateway(settings(NOWHERE), clock=ManualClock())
    await gateway({"type": "websocket", "path": "/"}, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]
