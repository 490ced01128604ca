"""The SDK's routes, a gateway that is ready for them, and what their answers have in common."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from tests.support.asgi_client import Response
from tests.support.gateway import Driven, driven

API = "/api/v1"
NOWHERE = "http://127.0.0.1:9"

POSTS = [
    f"{API}/asample",
    f"{API}/retrieve_future",
    f"{API}/session_heartbeat",
    f"{API}/telemetry",
    f"{API}/client/config",
    f"{API}/client/dynamic_config",
    f"{API}/create_session",
    f"{API}/create_sampling_session",
    f"{API}/sessions/session-1/finish",
]
GETS = [
    f"{API}/get_server_capabilities",
    f"{API}/healthz",
    f"{API}/samplers/sampler-1",
    "/metrics",
]
READING_POSTS = [path for path in POSTS if not path.endswith("telemetry")]


@contextlib.asynccontextmanager
async def ready(url: str, **flags: Any) -> AsyncIterator[Driven]:
    """A gateway with one session and one sampling session."""
    async with driven(url, **flags) as gateway:
        await gateway.handshake()
        yield gateway


def assert_error(response: Response, status: int, *words: str) -> None:
    """An error is JSON with a `detail` and says its length: the SDK takes less as noise."""
    assert response.status == status, response.body
    assert response.headers[b"content-type"] == b"application/json"
    assert response.headers[b"content-length"] == b"%d" % len(response.body)
    detail = response.json()["detail"]
    assert isinstance(detail, str)
    for word in words:
        assert word in detail


def assert_json(response: Response, **fields: Any) -> Any:
    assert response.status == 200, response.body
    assert response.headers[b"content-type"] == b"application/json"
    assert response.headers[b"content-length"] == b"%d" % len(response.body)
    body = response.json()
    assert {name: body[name] for name in fields} == fields
    return body


async def created(gateway: Driven, seq_id: int, **fields: Any) -> Response:
    return await gateway.client.post(
        f"{API}/create_sampling_session",
        {"session_id": gateway.session_id, "sampling_session_seq_id": seq_id, **fields},
    )


async def finished(gateway: Driven) -> Response:
    return await gateway.client.post(
        f"{API}/sessions/{gateway.session_id}/finish",
        {"reason": {"type": "success"}, "detail": None},
    )
