"""The routes that need no trainer."""

from typing import Any

import pytest

from asgi_gateway import Gateway
from asgi_gateway.asgi import Receive, Scope, Send
from asgi_gateway.upstream.listing import MIN_REFRESH_S
from tests.support.asgi_client import AsgiClient
from tests.support.gateway import Driven, driven, settings
from tests.support.upstream import FakeUpstream

API = "/api/v1"
MODELS: dict[str, Any] = {
    "object": "list",
    "data": [
        {"id": "Qwen/Qwen3-8B", "max_model_len": 4096, "parent": None},
        {"id": "run-a_000010", "parent": "Qwen/Qwen3-8B"},
        {"id": "run-a_000020", "parent": "Qwen/Qwen3-8B"},
        {"id": "run_b_final", "parent": "Qwen/Qwen3-8B"},
        {"id": "tabled", "parent": "Qwen/Qwen3-8B"},
        {"id": "nameless", "parent": "Qwen/Qwen3-8B"},
    ],
}
TABLE = {"tinker://table/weights/best": "tabled", "tinker://table/weights/absent": "absent"}


@pytest.fixture
def upstream_models(upstream: FakeUpstream) -> FakeUpstream:
    upstream.models = MODELS
    return upstream


async def read(gateway: Driven, path: str) -> Any:
    response = await gateway.client.get(f"{API}/{path}")
    assert response.status == 200, response.body
    return response.json()


async def refused(gateway: Driven, path: str) -> tuple[int, str]:
    response = await gateway.client.get(f"{API}/{path}")
    return response.status, response.json()["detail"]


# --- looking up ----------------------------------------------------------------------------------


async def test_training_runs_are_those_of_adapters(upstream_models: FakeUpstream) -> None:
    async with driven(upstream_models.url, models__adapters=TABLE) as gateway:
        listed = await read(gateway, "training_runs")
        runs = {run["training_run_id"]: run for run in listed["training_runs"]}
        assert list(runs) == ["table", "run_b", "run-a"]
        assert listed["cursor"] == {"offset": 0, "limit": 20, "total_count": 3}
        run = runs["run-a"]
        assert run["base_model"] == "Qwen/Qwen3-8B"
        assert run["is_lora"] is True
        assert run["lora_rank"] is None
        assert run["last_checkpoint"] is None
        last = run["last_sampler_checkpoint"]
        assert last["tinker_path"] == "tinker://run-a/sampler_weights/000020"
        assert await read(gateway, "training_runs/run-a") == run
        assert runs["table"]["last_checkpoint"]["checkpoint_id"] == "weights/best"


async def test_a_listing_comes_in_pages(upstream_models: FakeUpstream) -> None:
    async with driven(upstream_models.url) as gateway:
        page = await read(gateway, "training_runs?limit=1&offset=1&access_scope=accessible")
        assert [run["training_run_id"] for run in page["training_runs"]] == ["run-a"]
        assert page["cursor"] == {"offset": 1, "limit": 1, "total_count": 2}
        page = await read(gateway, "checkpoints?limit=2&offset=1")
        assert [one["tinker_path"] for one in page["checkpoints"]] == [
            "tinker://run-a/sampler_weights/000020",
            "tinker://run-a/sampler_weights/000010",
        ]
        assert page["cursor"] == {"offset": 1, "limit": 2, "total_count": 3}


async def test_a_run_lists_its_checkpoints(upstream_models: FakeUpstream) -> None:
    async with driven(upstream_models.url) as gateway:
        listed = await read(gateway, "training_runs/run-a/checkpoints")
        assert [one["checkpoint_id"] for one in listed["checkpoints"]] == [
            "sampler_weights/000020",
            "sampler_weights/000010",
        ]
        assert listed["cursor"] is None


async def test_a_run_is_known_by_the_name_that_its_client_has(
    upstream_models: FakeUpstream,
) -> None:
    """`run_b_final` is final of run_b; for who asks for run `run` it is its b_final."""
    async with driven(upstream_models.url) as gateway:
        listed = await read(gateway, "training_runs/run/checkpoints")
        assert [one["tinker_path"] for one in listed["checkpoints"]] == [
            "tinker://run/sampler_weights/b_final"
        ]


async def test_an_unknown_run_is_404_by_name(upstream_models: FakeUpstream) -> None:
    async with driven(upstream_models.url) as gateway:
        for path in ("training_runs/nobody", "training_runs/nobody/checkpoints"):
            gateway.clock.advance(MIN_REFRESH_S)
            assert await refused(gateway, path) == (
                404,
                "training run 'nobody': no upstream lists an adapter of it",
            )


async def test_a_run_whose_adapter_was_just_loaded_is_found(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        assert (await read(gateway, "training_runs"))["training_runs"] == []
        upstream.models = MODELS
        gateway.clock.advance(MIN_REFRESH_S)
        assert (await read(gateway, "training_runs/run-a"))["training_run_id"] == "run-a"


async def test_weights_info_tells_the_base_model(upstream_models: FakeUpstream) -> None:
    async with driven(upstream_models.url, models__adapters=TABLE) as gateway:

        async def ask(path: object) -> tuple[int, Any]:
            gateway.clock.advance(MIN_REFRESH_S)
            response = await gateway.client.post(f"{API}/weights_info", {"tinker_path": path})
            return response.status, response.json()

        for path in ("tinker://run-a/weights/000010", "tinker://table/weights/best"):
            assert await ask(path) == (
                200,
                {
                    "base_model": "Qwen/Qwen3-8B",
                    "is_lora": True,
                    "lora_rank": None,
                    "train_unembed": None,
                    "train_mlp": None,
                    "train_attn": None,
                },
            )
        status, answer = await ask("tinker://table/weights/absent")
        assert status == 404
        assert "needs the adapter 'absent'" in answer["detail"]
        status, answer = await ask("tinker://run-a/external_weights/1")
        assert status == 400
        assert "is not of the form" in answer["detail"]
        assert (await ask(7))[0] == 400


async def test_without_any_upstream_it_is_not_ready(upstream: FakeUpstream) -> None:
    upstream.models = {"error": "loading"}
    async with driven(upstream.url) as gateway:
        for path in ("training_runs", "checkpoints", "training_runs/run-a"):
            status, _ = await refused(gateway, path)
            assert status == 503


async def test_sessions_are_listed_newest_first(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        made = []
        for number in range(5):
            body = {"tags": [], "display_name": f"run {number}", "user_metadata": {"n": number}}
            response = await gateway.client.post(f"{API}/create_session", body)
            made.append(response.json()["session_id"])
        assert (await read(gateway, "sessions"))["sessions"] == made[::-1]
        assert (await read(gateway, "sessions?limit=2&offset=1"))["sessions"] == made[3:1:-1]
        assert await read(gateway, f"sessions/{made[3]}") == {
            "training_run_ids": [],
            "sampler_ids": [],
            "user_metadata": {"n": "3"},
            "display_name": "run 3",
        }
        assert (await refused(gateway, "sessions/session-unknown"))[0] == 404


async def test_a_session_names_its_samplers_also_once_finished(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        sampler = await gateway.handshake()
        path = f"sessions/{gateway.session_id}"
        shown = await read(gateway, path)
        assert shown["sampler_ids"] == [sampler]
        assert shown["user_metadata"] is None
        await gateway.client.post(f"{API}/{path}/finish", {"reason": {"type": "success"}})
        assert await read(gateway, path) == shown
        assert (await read(gateway, "sessions"))["sessions"] == [gateway.session_id]


async def test_looking_at_a_session_does_not_keep_it_alive(upstream: FakeUpstream) -> None:
    async with driven(upstream.url, session__retention_s=100.0) as gateway:
        await gateway.handshake()
        await gateway.advance(60)
        await read(gateway, f"sessions/{gateway.session_id}")
        await gateway.advance(60)
        assert (await refused(gateway, f"sessions/{gateway.session_id}"))[0] == 404


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("limit=x", 400, "limit is 'x', must be a whole number of 0 to 10000"),
        ("limit=", 400, "limit is ''"),
        ("limit=-1", 400, "limit is '-1'"),
        ("limit=10001", 400, "limit is '10001'"),
        ("limit=²", 400, "limit is"),
        ("offset=1.5", 400, "offset is '1.5'"),
        ("offset=" + "9" * 5000, 400, "offset is"),
        ("&".join(["a=1"] * 100), 400, "the query cannot be read"),
        ("project_id=p", 422, "project_id: this gateway keeps no projects"),
    ],
)
@pytest.mark.parametrize("path", ["training_runs", "checkpoints", "sessions"])
async def test_a_query_that_means_nothing_is_refused(
    upstream: FakeUpstream, path: str, query: str, status: int, text: str
) -> None:
    async with driven(upstream.url) as gateway:
        found, detail = await refused(gateway, f"{path}?{query}")
        assert found == status
        assert detail.startswith(text)
        assert len(detail) < 200


# --- whose routes they are -----------------------------------------------------------------------


async def test_in_front_of_another_application_these_routes_are_its_own(
    upstream: FakeUpstream,
) -> None:
    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode()})

    gateway = Gateway(settings(upstream.url), inner)
    async with gateway.running():
        client = AsgiClient(gateway)
        for path in ("training_runs", "sessions", "sessions/one", "weights_info", "create_model"):
            response = await client.get(f"{API}/{path}")
            assert (response.status, response.body) == (299, f"{API}/{path}".encode())
        assert (await client.get(f"{API}/samplers/unknown")).status == 404
