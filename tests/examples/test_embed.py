"""The programs of examples/embed under every server: they sample, and the rest is their host's."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.contract.sdk import Sdk
from tests.examples.sampled import API, answering, tokens
from tests.support.failing import REASON
from tests.support.processes import (
    SERVERS,
    Served,
    free_port,
    process,
    server_command,
    under,
)
from tests.support.programs import configured, programs, stopped, websocket_echo
from tests.support.upstream import FakeUpstream
from tests.support.wire import Remote

pytestmark = [pytest.mark.servers, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def upstreams() -> AsyncIterator[list[FakeUpstream]]:
    async with answering(21).running() as small, answering(22).running() as large:
        yield [small, large]


@pytest.fixture(scope="module", params=SERVERS)
def started(
    request: pytest.FixtureRequest, upstreams: list[FakeUpstream]
) -> Iterator[dict[str, Served]]:
    small, large = upstreams
    one = configured(small.url)
    examples = {
        "wrapped": one,
        "two_gateways": {"SMALL": small.url, "LARGE": large.url},
        "behind_proxy": one,
    }
    with programs(request.param, examples) as running:
        yield running
        for name, served in running.items():
            assert "Traceback" not in served.process.stderr, (name, served.process.story())


# --- wrapped --------------------------------------------------------------------------------------


async def test_samples_are_the_gateways(started: dict[str, Served]) -> None:
    assert await tokens(Remote(started["wrapped"].port)) == [21]


async def test_everything_else_is_the_inner_applications(started: dict[str, Served]) -> None:
    """Its routes, the state of its lifespan, the futures that it issued, and its own 404."""
    remote = Remote(started["wrapped"].port)
    assert (await remote.get("/status")).json() == {"model": "loaded"}
    for path in ("create_model", "forward_backward"):
        made = (await remote.post(f"{API}/{path}", {"lora_config": {}})).json()
        future = await remote.post(f"{API}/retrieve_future", made)
        assert (future.status, future.json()) == (200, {"trained": made["request_id"]})
    for path in ("/no/such", f"{API}/no_such", "/"):
        missing = await remote.get(path)
        assert missing.status == 404
        assert missing.json() == {"detail": "the training server has no such route"}
    own = await remote.get(f"{API}/samplers/unknown")
    assert (own.status, "training" in own.body.decode()) == (404, False)


async def test_a_websocket_passes(started: dict[str, Served]) -> None:
    port = started["wrapped"].port
    for text in ("hello", "\N{SNOWMAN}"):
        assert await asyncio.to_thread(websocket_echo, port, "/events", text) == text


# --- two gateways ---------------------------------------------------------------------------------


async def test_two_gateways_do_not_mix(
    started: dict[str, Served], upstreams: list[FakeUpstream]
) -> None:
    """Models, upstreams, sessions, samples and counters of one are unknown to the other."""
    port = started["two_gateways"].port
    small, large = Remote(port, "/small"), Remote(port, "/large")
    before = [len(upstream.requests) for upstream in upstreams]
    assert await tokens(small, "small") == [21]
    assert await tokens(large, "large") == [22]
    assert [len(upstream.requests) for upstream in upstreams] == [count + 1 for count in before]
    for remote, model, other in ((small, "small", large), (large, "large", small)):
        told = (await remote.get(f"{API}/get_server_capabilities")).json()
        assert [one["model_name"] for one in told["supported_models"]] == [model]
        assert (await remote.metrics())['samples_total{outcome="succeeded"}'] == 1
        assert (await other.post(f"{API}/asample", remote.sample())).status == 404
        kept = await remote.submit()
        assert (await other.poll(kept)).status in (404, 410)
        assert (await remote.poll(kept)).status == 200
        assert (await remote.metrics())["sessions"] == 1
    with pytest.raises(AssertionError, match="large"):
        await Remote(port, "/small").handshake("large")
    assert (await Remote(port).get(f"{API}/healthz")).body == b"no gateway here\n"


@pytest.mark.sdk
async def test_the_sdk_samples_below_a_prefix(started: dict[str, Served], sdk: Sdk) -> None:
    url = started["two_gateways"].url
    for model, token in (("small", 21), ("large", 22)):
        (sampled,) = await asyncio.to_thread(
            sdk.ask,
            "samples",
            base_url=f"{url}/{model}",
            base_model=model,
            cases=[{"prompt": [1, 2, 3], "params": {"max_tokens": 2}}],
        )
        assert [one["tokens"] for one in sampled["sequences"]] == [[token]], sampled


# --- behind a proxy -------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["/tinker", ""], ids=["whole", "stripped"])
async def test_behind_a_proxy(started: dict[str, Served], prefix: str) -> None:
    """What a proxy sends that passes paths on whole, and one that strips the prefix."""
    remote = Remote(started["behind_proxy"].port, prefix)
    assert await tokens(remote) == [21]
    assert (await remote.get("/readyz")).status == 200
    assert (await Remote(remote.port, "/tinkered").get(f"{API}/healthz")).status == 404


@pytest.mark.parametrize(
    ("server", "flag", "whole"),
    [
        ("uvicorn", "--root-path", 404),
        ("hypercorn", "--root-path", 200),
        ("granian", "--url-path-prefix", 200),
    ],
)
async def test_what_a_servers_own_flag_takes(
    server: str, flag: str, whole: int, upstreams: list[FakeUpstream]
) -> None:
    """uvicorn puts the prefix before every path, also before one that has it already."""
    with under(server, upstreams[0].url, flag, "/tinker") as served:
        remote = Remote(served.port)
        assert (await remote.get(f"{API}/healthz")).status == 200
        assert (await remote.get(f"/tinker{API}/healthz")).status == whole


# --- the start and the end ------------------------------------------------------------------------


@pytest.mark.parametrize(("server", "status"), [("uvicorn", 3), ("hypercorn", 0), ("granian", 1)])
async def test_a_failed_inner_start_ends_the_server(server: str, status: int) -> None:
    """With the inner application's own message; only hypercorn calls that a success."""
    command = server_command(server, free_port(), application="tests.support.failing:create_app")
    with process(command, configured("http://127.0.0.1:9")) as started:
        assert await asyncio.to_thread(started.wait, 20) == status, started.story()
        assert REASON in started.stdout + started.stderr


async def test_the_host_stops_both(started: dict[str, Served]) -> None:
    """The last test of a server: its signals reach the inner application's lifespan."""
    for name, says in (("wrapped", "training server: stopped\n"), ("two_gateways", "")):
        said = await asyncio.to_thread(stopped, started[name].process)
        assert says in said
