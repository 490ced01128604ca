"""Sessions and sampling sessions: how they are made, for which models, and how shown."""

import json

import pytest

from tests.support.gateway import Driven
from tests.support.routes import API, assert_error, assert_json, created, ready
from tests.support.upstream import FakeUpstream


async def test_create_session(gateway: Driven) -> None:
    one, two = [
        assert_json(
            await gateway.client.post(f"{API}/create_session", {"tags": [], "user_metadata": {}}),
            type="create_session",
        )
        for _ in range(2)
    ]
    assert one["session_id"] != two["session_id"]


async def test_create_sampling_session_is_idempotent(gateway: Driven) -> None:
    first = await created(gateway, 5, base_model="stand-in")
    body = assert_json(first, type="create_sampling_session")
    assert ":" not in body["sampling_session_id"]
    assert (await created(gateway, 5, base_model="stand-in")).body == first.body
    other = await created(gateway, 6, base_model="stand-in")
    assert other.json()["sampling_session_id"] != body["sampling_session_id"]


async def test_the_same_number_for_other_weights_is_refused(upstream: FakeUpstream) -> None:
    async with ready(upstream.url, models__base=["stand-in", "alias=stand-in"]) as gateway:
        assert_error(await created(gateway, 0, base_model="alias"), 422, "0", "another model")
        assert (await created(gateway, 0, base_model="stand-in")).status == 200


async def test_numbers_belong_to_their_session(gateway: Driven) -> None:
    first = gateway.sampling_session_id
    await gateway.handshake()
    assert gateway.sampling_session_id != first


async def test_an_adapter_is_served_by_its_path() -> None:
    adapter = {"id": "run-1_ckpt", "parent": "stand-in"}
    fake = FakeUpstream({"data": [{"id": "stand-in"}, adapter]})
    async with fake.running() as upstream, ready(upstream.url) as gateway:
        path = "tinker://run-1/sampler_weights/ckpt"
        made = assert_json(await created(gateway, 1, model_path=path))
        sampler = await gateway.client.get(f"{API}/samplers/{made['sampling_session_id']}")
    assert_json(
        sampler,
        sampler_id=made["sampling_session_id"],
        base_model="stand-in",
        model_path=path,
    )


async def test_sampler_of_a_base_model(gateway: Driven) -> None:
    response = await gateway.client.get(f"{API}/samplers/{gateway.sampling_session_id}")
    body = assert_json(response, sampler_id=gateway.sampling_session_id, base_model="stand-in")
    assert "model_path" not in body


async def test_an_unknown_sampler_is_404(gateway: Driven) -> None:
    assert_error(await gateway.client.get(f"{API}/samplers/sampler-x"), 404)


async def test_an_unknown_base_model_names_the_served(gateway: Driven) -> None:
    response = await created(gateway, 1, base_model="other")
    assert_error(response, 400, "'other'", "served: stand-in")


@pytest.mark.parametrize("name", ["\ud800", "a\0b", "x" * 10_000, "\n"])
async def test_a_strange_base_model(gateway: Driven, name: str) -> None:
    body = {"session_id": gateway.session_id, "sampling_session_seq_id": 1, "base_model": name}
    response = await gateway.client.post(
        f"{API}/create_sampling_session", json.dumps(body).encode()
    )
    assert_error(response, 400)
    assert len(response.body) < 1000


@pytest.mark.parametrize(
    "path", ["run/ckpt", "tinker://run", "tinker://../x/y", "tinker://a/b c", "tinker://run/x/none"]
)
async def test_a_model_path_that_leads_nowhere(gateway: Driven, path: str) -> None:
    assert_error(await created(gateway, 1, model_path=path), 400, "model_path")


async def test_no_model_at_all(gateway: Driven) -> None:
    assert_error(await created(gateway, 1), 400, "base_model or model_path")


async def test_a_sampling_session_of_an_unknown_session(gateway: Driven) -> None:
    gateway.session_id = "session-x"
    assert_error(await created(gateway, 1, base_model="stand-in"), 404)
