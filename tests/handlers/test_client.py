"""Routes that serve a client rather than a sample: its config, its life, what it reports."""

import pytest

from tests.support.gateway import Driven, driven
from tests.support.routes import API, assert_error, assert_json
from tests.support.upstream import FakeUpstream


async def test_client_config_says_the_configured_limits(upstream: FakeUpstream) -> None:
    async with driven(upstream.url, client__sample_max_concurrent_requests=77) as gateway:
        response = await gateway.client.post(f"{API}/client/config", {"sdk_version": "0.38.0"})
    body = assert_json(response, sample_max_concurrent_requests=77)
    assert set(body) == {
        "sample_max_concurrent_requests",
        "sample_dispatch_bytes_semaphore_size",
        "inflight_response_bytes_semaphore_size",
        "sample_use_retrieve_futures",
        "sample_join_sampling_session",
    }


async def test_dynamic_config_says_when_to_ask_again(gateway: Driven) -> None:
    response = await gateway.client.post(f"{API}/client/dynamic_config", {"sdk_version": "0.38.0"})
    assert_json(response, refresh_interval_sec=300)


async def test_heartbeat(gateway: Driven) -> None:
    body = {"session_id": gateway.session_id, "type": "session_heartbeat"}
    response = await gateway.client.post(f"{API}/session_heartbeat", body)
    assert_json(response, type="session_heartbeat")


async def test_a_heartbeat_of_a_session_never_issued_is_404(gateway: Driven) -> None:
    response = await gateway.client.post(f"{API}/session_heartbeat", {"session_id": "session-x"})
    assert_error(response, 404)


async def test_capabilities_list_the_models(upstream: FakeUpstream) -> None:
    async with driven(upstream.url, models__base=["org/model=stand-in"]) as gateway:
        body = assert_json(await gateway.client.get(f"{API}/get_server_capabilities"))
    assert body["supported_models"] == [
        {
            "model_name": "org/model",
            "max_context_length": 65536,
            "sampleable": True,
            "trainable": False,
        }
    ]


async def test_healthz(gateway: Driven) -> None:
    assert_json(await gateway.client.get(f"{API}/healthz"), status="ok")


@pytest.mark.parametrize("data", [b"", b"{}", b"not json", b"\xff\x00", b"x" * (256 << 10)])
async def test_telemetry_takes_anything_up_to_its_cap(gateway: Driven, data: bytes) -> None:
    response = await gateway.client.post(f"{API}/telemetry", data)
    assert_json(response, status="accepted")


async def test_telemetry_over_its_cap(gateway: Driven) -> None:
    response = await gateway.client.post(f"{API}/telemetry", b"x" * ((256 << 10) + 1))
    assert_error(response, 413)
