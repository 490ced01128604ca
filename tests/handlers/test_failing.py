"""What goes wrong apart from the request: the upstream, the gateway itself, the connection."""

import pytest

from asgi_gateway.asgi import Message
from tests.support.gateway import Driven, driven
from tests.support.held import metric
from tests.support.routes import API, NOWHERE, assert_error, created


async def test_an_upstream_that_is_down_is_503() -> None:
    async with driven(NOWHERE) as gateway:
        session = await gateway.client.post(f"{API}/create_session", {})
        gateway.session_id = session.json()["session_id"]
        for response in (
            await created(gateway, 0, base_model="stand-in"),
            await created(gateway, 0, model_path="tinker://run/weights/ckpt"),
            await gateway.client.get(f"{API}/get_server_capabilities"),
        ):
            assert_error(response, 503, "upstream")
            assert response.headers[b"retry-after"] == b"1"


async def test_a_bug_is_a_500_that_tells_nothing(
    gateway: Driven, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("a secret of the inside")

    monkeypatch.setattr(gateway.gateway._catalog, "supported", broken)
    response = await gateway.client.get(f"{API}/get_server_capabilities")
    assert_error(response, 500)
    assert b"secret" not in response.body
    assert "a secret of the inside" in caplog.text
    assert metric((await gateway.client.get("/metrics")).body, "bugs_total") == 1


async def test_a_client_that_leaves_before_its_body_is_there_gets_nothing(gateway: Driven) -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": f"{API}/asample", "headers": []}
    await gateway.gateway(scope, receive, send)
    assert sent == []
