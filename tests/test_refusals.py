"""What is refused for want of a trainer, and what is no route at all."""

import pytest

from asgi_gateway.rest import refusals
from tests.support.gateway import Driven, driven
from tests.support.upstream import FakeUpstream

API = "/api/v1"


async def refused(gateway: Driven, path: str, method: str) -> tuple[int, str]:
    response = await gateway.client.start(method, f"{API}/{path}").response()
    return response.status, response.json()["detail"]


@pytest.mark.parametrize("path", sorted(refusals()))
async def test_what_needs_a_trainer_says_so_whatever_the_method(
    upstream: FakeUpstream, path: str
) -> None:
    async with driven(upstream.url) as gateway:
        for method in ("GET", "POST", "PUT", "DELETE"):
            status, detail = await refused(gateway, path.replace("*", "run:0"), method)
            assert status == 422
            assert detail == refusals()[path].text
            assert detail.startswith("this gateway samples only; ")


async def test_a_refusal_names_the_call(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        assert await refused(gateway, "create_model", "POST") == (
            422,
            "this gateway samples only; create_model needs a trainer (training.url)",
        )
        path = "training_runs/run/checkpoints/sampler_weights/1/publish"
        assert await refused(gateway, path, "POST") == (
            422,
            "this gateway samples only; publishing a checkpoint needs a trainer (training.url)",
        )


async def test_a_refusal_does_not_read_what_is_sent(upstream: FakeUpstream) -> None:
    """Batches are megabytes, compressed or not: neither 413 nor 415 would name the reason."""
    async with driven(upstream.url, limits__body_bytes=10) as gateway:
        response = await gateway.client.post(
            f"{API}/forward_backward", b"x" * 1000, {"Content-Encoding": "zstd"}
        )
        assert response.status == 422
        assert b"forward_backward needs a trainer" in response.body


@pytest.mark.parametrize(
    "path",
    [
        "nothing",
        "training_runs/",
        "training_runs//checkpoints",
        "training_runs/run/",
        "training_runs/run/checkpoints/",
        "training_runs/run/checkpoints/weights",
        "training_runs/run/checkpoints//1",
        "training_runs/run/checkpoints/weights/1/other",
        "training_runs/run/checkpoints/weights/1/archive/more",
        "training_runs/run/checkpoints/weights/1/publish/x/y/z",
        "sessions/",
        "sessions/one/two",
        "samplers/",
        "samplers/a/b",
        "sessions//finish",
        "client/*",
        "*",
        "",
    ],
)
async def test_an_unknown_route_stays_404(upstream: FakeUpstream, path: str) -> None:
    async with driven(upstream.url) as gateway:
        for method in ("GET", "POST"):
            status, detail = await refused(gateway, path, method)
            assert status == 404
            assert detail == f"no route {f'{API}/{path}'!r}"


async def test_a_wrong_method_says_the_right_one(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        response = await gateway.client.post(f"{API}/training_runs/run")
        assert response.status == 405
        assert response.headers[b"allow"] == b"GET"
