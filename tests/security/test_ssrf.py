"""API7: no value of a request, and no answer of an upstream, makes the gateway call somebody."""

import asyncio
import json

import pytest

from asgi_gateway.upstream import listing
from tests.security.trap import hostile_urls, trap
from tests.support.asgi_client import turns
from tests.support.gateway import SDK_HEADERS, driven
from tests.support.upstream import FakeUpstream, answer
from tests.support.waiting import until

API = "/api/v1"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for weights that are not listed waits for the next round; the clock stands still."""
    monkeypatch.setattr(listing, "MIN_REFRESH_S", 0.0)


async def test_no_field_of_a_request_is_a_place_to_go_to(upstream: FakeUpstream) -> None:
    async with trap() as caught, driven(upstream.url) as gateway:
        await gateway.handshake()
        urls = hostile_urls(caught.port)
        assert len(urls) >= 50
        client = gateway.client
        for number, url in enumerate(urls):
            for field in ("base_model", "model_path"):
                made = await client.post(
                    f"{API}/create_sampling_session",
                    {
                        "session_id": gateway.session_id,
                        "sampling_session_seq_id": number + 1,
                        field: url,
                    },
                )
                assert made.status == 400, (field, url, made.body)
            info = await client.post(f"{API}/weights_info", {"tinker_path": url})
            assert info.status in (400, 404), (url, info.body)
            for kind in (
                {"type": "image_asset_pointer", "location": url, "format": "png"},
                {"type": "image", "data": url, "format": "png"},
                {"type": "encoded_text", "tokens": [1], "location": url},
            ):
                sample = await gateway.submit(1000 + number, prompt={"chunks": [kind]})
                assert sample.status in (200, 422), (url, sample.body)
            for path in (f"samplers/{url}", f"training_runs/{url}", url):
                assert (await client.get(f"{API}/{path}")).status in (400, 404, 405, 422)
        assert caught.hits == 0
        # Only what was sampled went to the upstream, and nothing of the URLs with it.
        await until(lambda: len(upstream.requests) == len(urls))
        for request in upstream.requests:
            assert request.path == "/v1/completions"
            assert request.json()["prompt"] == [1]
            assert str(caught.port).encode() not in request.body


@pytest.mark.usefixtures("each_transport")
async def test_headers_name_no_host_to_go_to(upstream: FakeUpstream) -> None:
    async with trap() as caught, driven(upstream.url) as gateway:
        await gateway.handshake()
        there = f"127.0.0.1:{caught.port}"
        headers = {
            "Host": there,
            "X-Forwarded-Host": there,
            "X-Forwarded-For": "127.0.0.1",
            "Forwarded": f"host={there}",
            "X-Original-URL": f"http://{there}/",
            "X-Session-ID": "mine",
            "X-Request-Id": "mine",
            "Proxy": f"http://{there}",
            "X-HTTP-Method-Override": "DELETE",
            "Authorization": "Bearer secret",
            "Cookie": "a=b",
        }
        body = {
            "sampling_session_id": gateway.sampling_session_id,
            "seq_id": 0,
            "prompt": {"chunks": [{"tokens": [1]}]},
            "sampling_params": {"max_tokens": 2},
        }
        promise = await gateway.client.post(f"{API}/asample", body, {**SDK_HEADERS, **headers})
        assert promise.status == 200
        await until(lambda: len(upstream.requests) == 1)
        (request,) = upstream.requests
        assert request.request_id == promise.json()["request_id"]
        assert request.headers["x-session-id"] == f"{gateway.sampling_session_id}:0"
        assert set(request.headers) <= {
            *("host", "content-type", "content-length", "accept", "x-request-id", "x-session-id"),
        }
        assert request.headers["host"] == upstream.url.removeprefix("http://")
        assert caught.hits == 0


@pytest.mark.usefixtures("each_transport")
@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
async def test_an_upstreams_redirect_is_not_followed(upstream: FakeUpstream, status: int) -> None:
    async with trap() as caught, driven(upstream.url) as gateway:
        await gateway.handshake()

        async def elsewhere(_: object) -> object:
            return answer(status, b"{}", headers={"Location": f"http://127.0.0.1:{caught.port}/x"})

        upstream.script = elsewhere  # type: ignore[assignment]
        request_id = (await gateway.submit()).json()["request_id"]
        failed = await gateway.poll(request_id).response()
        assert failed.json()["category"] == "server"
        assert str(caught.port).encode() not in failed.body
        assert caught.hits == 0


async def test_a_redirect_of_the_model_list_is_not_followed() -> None:
    async with trap() as caught:

        async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(
                b"HTTP/1.1 307 x\r\nlocation: http://127.0.0.1:%d/v1/models\r\n"
                b"content-length: 0\r\nconnection: close\r\n\r\n" % caught.port
            )
            writer.close()

        server = await asyncio.start_server(redirect, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            async with driven(f"http://127.0.0.1:{port}") as gateway:
                await turns(20)
                ready = await gateway.client.get("/readyz")
                assert ready.status == 503
                assert json.dumps(port) not in ready.body.decode()
        assert caught.hits == 0
