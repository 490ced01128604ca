"""Which weights a client's name or path stands for."""

import re
import time

import pytest

from asgi_gateway.errors import Malformed, NotFound
from asgi_gateway.settings import ModelSettings, SettingsError, UpstreamSettings
from asgi_gateway.upstream.catalog import Catalog
from asgi_gateway.upstream.client import Client
from asgi_gateway.upstream.listing import MIN_REFRESH_S
from asgi_gateway.upstream.naming import parse
from tests.support.catalog import BASE, SAMPLER, lora, opened, serve
from tests.support.clock import ManualClock
from tests.support.gateway import driven
from tests.support.upstream import FakeUpstream


async def refused(catalog: Catalog, base_model: str | None, model_path: str | None) -> str:
    with pytest.raises(Malformed) as raised:
        await catalog.resolve(base_model, model_path)
    return str(raised.value)


# --- base models ---------------------------------------------------------------------------------


async def test_a_base_model_goes_up_by_its_own_name(upstream: FakeUpstream) -> None:
    serve(upstream, BASE)
    async with opened(upstream.url) as made:
        model = await made.catalog.resolve("Qwen/Qwen3-8B", None)
        assert model.upstream_name == model.base_model == "Qwen/Qwen3-8B"
        assert model.model_path is None
        assert model.cache_salt


async def test_a_configured_name_stands_for_the_upstreams(upstream: FakeUpstream) -> None:
    serve(upstream, {**BASE, "id": "qwen"})
    base = ("Qwen/Qwen3-8B=qwen", "Qwen/Qwen3-4B=absent")
    async with opened(upstream.url, base=base) as made:
        model = await made.catalog.resolve("Qwen/Qwen3-8B", None)
        assert (model.upstream_name, model.base_model) == ("qwen", "Qwen/Qwen3-8B")
        text = await refused(made.later(), "Qwen/Qwen3-4B", None)
        assert "'Qwen/Qwen3-4B' is not served here: no upstream lists 'absent'" in text
        text = await refused(made.later(), "qwen", None)
        assert text.endswith("served: Qwen/Qwen3-4B, Qwen/Qwen3-8B")
        shown = {model.model_name: model for model in made.catalog.supported()}
        assert shown["Qwen/Qwen3-8B"].sampleable is True
        assert shown["Qwen/Qwen3-8B"].trainable is False
        assert shown["Qwen/Qwen3-8B"].max_context_length == 4096
        assert shown["Qwen/Qwen3-4B"].sampleable is False


async def test_a_served_name_is_answered_with_the_hub_name_it_was_loaded_by(
    upstream: FakeUpstream,
) -> None:
    serve(upstream, {**BASE, "id": "qwen", "root": "Qwen/Qwen3-8B"}, lora("run_1", "qwen"))
    async with opened(upstream.url) as made:
        assert made.catalog.names() == ["Qwen/Qwen3-8B"]
        for name in ("Qwen/Qwen3-8B", "qwen"):
            model = await made.catalog.resolve(name, None)
            assert (model.upstream_name, model.base_model) == ("qwen", "Qwen/Qwen3-8B")
        assert (await made.catalog.resolve(None, SAMPLER)).base_model == "Qwen/Qwen3-8B"


async def test_two_names_of_the_same_weights_stay_two(upstream: FakeUpstream) -> None:
    serve(upstream, {**BASE, "id": "a", "root": "x/y"}, {**BASE, "id": "b", "root": "x/y"})
    async with opened(upstream.url) as made:
        assert made.catalog.names() == ["b", "x/y"]
        assert (await made.catalog.resolve("b", None)).upstream_name == "b"


async def test_an_adapter_is_no_base_model(upstream: FakeUpstream) -> None:
    serve(upstream, BASE, lora("run_1"), lora("plain"))
    async with opened(upstream.url) as made:
        text = await refused(made.later(), "run_1", None)
        assert text.endswith(f"it is an adapter, ask for it by model_path {SAMPLER}")
        assert (await refused(made.later(), "plain", None)).endswith("ask for it by model_path")
        assert made.catalog.names() == ["Qwen/Qwen3-8B"]


async def test_one_of_the_two_is_needed(upstream: FakeUpstream) -> None:
    async with opened(upstream.url) as made:
        assert await refused(made.catalog, None, None) == "base_model or model_path is needed"


# --- paths ---------------------------------------------------------------------------------------


async def test_a_path_goes_up_by_the_rule(upstream: FakeUpstream) -> None:
    serve(upstream, BASE, lora("run_1"))
    async with opened(upstream.url) as made:
        model = await made.catalog.resolve(None, SAMPLER)
        assert model.upstream_name == "run_1"
        assert model.base_model == "Qwen/Qwen3-8B"
        assert model.model_path == SAMPLER
        assert made.catalog.max_context("run_1") == 4096


async def test_a_path_goes_up_by_the_table_first(upstream: FakeUpstream) -> None:
    serve(upstream, BASE, lora("run_1"), lora("best"))
    async with opened(upstream.url, adapters={SAMPLER: "best"}) as made:
        assert (await made.catalog.resolve(None, SAMPLER)).upstream_name == "best"
        training = await made.catalog.resolve(None, "tinker://run/weights/1")
        assert training.upstream_name == "run_1"


async def test_a_short_path_means_the_same_weights(upstream: FakeUpstream) -> None:
    serve(upstream, BASE, lora("run_1"))
    async with opened(upstream.url) as made:
        short = await made.catalog.resolve(None, "tinker://run/1")
        long = await made.catalog.resolve(None, SAMPLER)
        assert (short.upstream_name, short.cache_salt) == (long.upstream_name, long.cache_salt)
        assert short.model_path == "tinker://run/1"


async def test_a_path_of_the_trainer_itself_needs_no_listing(upstream: FakeUpstream) -> None:
    serve(upstream, {**BASE, "id": "qwen", "root": "Qwen/Qwen3-8B"})
    async with opened(upstream.url) as made:
        model = await made.later().resolve(None, SAMPLER, trusted=True)
        assert (model.upstream_name, model.base_model) == ("run_1", "Qwen/Qwen3-8B")
        assert made.catalog.max_context("run_1") == 4096
        model = await made.later().resolve("Org/Told", SAMPLER, trusted=True)
        assert model.base_model == "Org/Told"
        serve(upstream, {**BASE, "id": "a"}, {**BASE, "id": "b"})
        await made.later().refresh()
        with pytest.raises(Malformed, match="is not known; give base_model too"):
            await made.later().resolve(None, SAMPLER, trusted=True)


async def test_a_path_of_the_trainer_waits_for_no_list(upstream: FakeUpstream) -> None:
    serve(upstream, BASE)
    async with opened(upstream.url) as made:
        # The clock stands still: a list would be waited for half a second of real time.
        began = time.monotonic()
        for number in range(5):
            path = f"tinker://run/sampler_weights/{number}"
            assert (await made.catalog.resolve(None, path, trusted=True)).model_path == path
        assert time.monotonic() - began < MIN_REFRESH_S


async def test_the_path_wins_over_the_base_model(upstream: FakeUpstream) -> None:
    serve(upstream, BASE, lora("run_1"))
    async with opened(upstream.url) as made:
        model = await made.catalog.resolve("meta-llama/Llama-3.1-8B", SAMPLER)
        assert (model.upstream_name, model.base_model) == ("run_1", "Qwen/Qwen3-8B")


async def test_an_adapter_that_is_not_listed_is_named_with_its_path(
    upstream: FakeUpstream,
) -> None:
    serve(upstream, BASE)
    async with opened(upstream.url) as made:
        text = await refused(made.later(), "Qwen/Qwen3-8B", SAMPLER)
        assert text == f"model_path {SAMPLER} needs the adapter 'run_1', which no upstream lists"
        with pytest.raises(NotFound, match=f"tinker_path {SAMPLER} needs the adapter 'run_1'"):
            await made.later().adapter(parse(SAMPLER))


async def test_what_is_not_a_path_asks_nobody(upstream: FakeUpstream) -> None:
    async with opened(upstream.url) as made:
        asked = upstream.connections
        for hostile in ("tinker://../weights/1", "tinker://r/weights/..", "file:///etc/passwd"):
            assert "is not of the form" in await refused(made.catalog, None, hostile)
        assert upstream.connections == asked


@pytest.mark.parametrize(
    ("base", "parent", "asked", "expected"),
    [
        (("Org/A=qwen",), "qwen", None, "Org/A"),
        (("Org/A=qwen", "Org/B=qwen"), "qwen", "Org/B", "Org/B"),
        (("short=qwen", "Org/B=qwen"), "qwen", None, "Org/B"),
        # vLLM lets an operator write any parent beside an adapter.
        ((), "Org/Written", None, "Org/Written"),
        ((), "written", None, "qwen"),
        ((), "written", "Org/Asked", "qwen"),
    ],
)
async def test_the_base_model_of_an_adapter_is_its_parents_public_name(
    upstream: FakeUpstream, base: tuple[str, ...], parent: str, asked: str | None, expected: str
) -> None:
    serve(upstream, {**BASE, "id": "qwen"}, lora("run_1", parent))
    async with opened(upstream.url, base=base) as made:
        assert (await made.catalog.resolve(asked, SAMPLER)).base_model == expected
        assert made.catalog.max_context("run_1") == 4096


async def test_whole_weights_behind_a_path_take_the_clients_base_model(
    upstream: FakeUpstream,
) -> None:
    serve(upstream, {**BASE, "id": "run_1"})
    async with opened(upstream.url) as made:
        model = await made.catalog.resolve("Qwen/Qwen3-8B", SAMPLER)
        assert (model.upstream_name, model.base_model) == ("run_1", "Qwen/Qwen3-8B")
        assert (await made.catalog.resolve(None, SAMPLER)).base_model == "run_1"


async def test_of_several_bases_an_unknown_parent_says_itself(upstream: FakeUpstream) -> None:
    serve(upstream, {**BASE, "id": "a"}, {**BASE, "id": "b"}, lora("run_1", "c"))
    async with opened(upstream.url, max_context_length=99) as made:
        assert (await made.catalog.resolve(None, SAMPLER)).base_model == "c"
        assert made.catalog.max_context("run_1") == 99


async def test_salts_differ_where_weights_do(upstream: FakeUpstream) -> None:
    long = ["L" * 1100 + "a", "L" * 1100 + "b"]
    serve(upstream, BASE, lora("run_1"), lora("run_2"), *({**BASE, "id": name} for name in long))
    async with opened(upstream.url) as made:
        models = [
            await made.catalog.resolve(None, SAMPLER),
            await made.catalog.resolve(None, "tinker://run/weights/1"),
            await made.catalog.resolve(None, "tinker://run/sampler_weights/2"),
            await made.catalog.resolve("Qwen/Qwen3-8B", None),
            *[await made.catalog.resolve(name, None) for name in long],
        ]
    salts = {model.cache_salt for model in models}
    assert len(salts) == len(models)
    # What vLLM 0.32 takes: at most 128 characters, no slash, backslash or @.
    assert all(re.fullmatch(r"[0-9a-f]{32}", salt) for salt in salts)


def test_names_that_cannot_work_are_refused_at_start() -> None:
    with pytest.raises(SettingsError, match="unknown placeholder"):
        Catalog(
            Client(UpstreamSettings()), (), ModelSettings(adapter_name="{nobody}"), ManualClock()
        )


# --- what is listed ------------------------------------------------------------------------------


async def test_adapters_are_those_that_can_be_sampled_from(upstream: FakeUpstream) -> None:
    serve(
        upstream,
        {**BASE, "id": "base_model"},
        {**BASE, "id": "whole"},
        lora("run_1", "base_model"),
        lora("plain", "base_model"),
    )
    table = {"tinker://full/weights/1": "whole", "tinker://gone/weights/1": "absent"}
    async with opened(upstream.url, adapters=table) as made:
        found = await made.catalog.adapters()
        assert [(str(a.path), a.upstream_name, a.base_model, a.is_lora) for a in found] == [
            ("tinker://full/weights/1", "whole", "whole", False),
            (SAMPLER, "run_1", "base_model", True),
        ]


async def test_adapters_keep_the_time_of_their_first_listing(upstream: FakeUpstream) -> None:
    serve(upstream, BASE, lora("run_2"))
    async with opened(upstream.url) as made:
        first = made.clock.wall_time()
        made.clock.advance(60)
        serve(upstream, BASE, lora("run_1"), lora("run_2"))
        found = await made.catalog.adapters()
        assert [(a.upstream_name, a.since) for a in found] == [
            ("run_2", first),
            ("run_1", first + 60),
        ]


# --- through the gateway -------------------------------------------------------------------------


async def test_a_sampler_keeps_the_weights_of_its_creation(upstream: FakeUpstream) -> None:
    serve(upstream, BASE, lora("run_1"))
    async with driven(upstream.url) as gateway:
        session = await gateway.client.post("/api/v1/create_session", {"tags": []})
        made = await gateway.client.post(
            "/api/v1/create_sampling_session",
            {
                "session_id": session.json()["session_id"],
                "sampling_session_seq_id": 0,
                "base_model": "other/model",
                "model_path": SAMPLER,
            },
        )
        assert made.status == 200, made.body
        gateway.sampling_session_id = made.json()["sampling_session_id"]
        sampler = await gateway.client.get(f"/api/v1/samplers/{gateway.sampling_session_id}")
        assert sampler.json() == {
            "sampler_id": gateway.sampling_session_id,
            "base_model": "Qwen/Qwen3-8B",
            "model_path": SAMPLER,
        }
        serve(upstream, BASE, lora("run_2"))
        await gateway.advance(MIN_REFRESH_S)
        await gateway.client.get("/api/v1/get_server_capabilities")
        promise = await gateway.submit()
        await gateway.poll(promise.json()["request_id"]).response()
        [request] = upstream.requests
        assert request.json()["model"] == "run_1"
        assert re.fullmatch(r"[0-9a-f]{32}", request.json()["cache_salt"])


async def test_an_adapter_that_is_not_loaded_is_a_400_of_the_user(upstream: FakeUpstream) -> None:
    serve(upstream, BASE)
    async with driven(upstream.url) as gateway:
        session = await gateway.client.post("/api/v1/create_session", {"tags": []})
        made = await gateway.client.post(
            "/api/v1/create_sampling_session",
            {
                "session_id": session.json()["session_id"],
                "sampling_session_seq_id": 0,
                "model_path": SAMPLER,
            },
        )
        assert made.status == 400
        assert made.json()["detail"] == (
            f"model_path {SAMPLER} needs the adapter 'run_1', which no upstream lists"
        )
