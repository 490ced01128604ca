"""The forwarder on real sockets: connections, their reuse and their end, headers, limits."""

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.asgi_client import Connection, Response, turns
from tests.support.gateway import Driven, driven
from tests.support.processes import deaf_port, free_port
from tests.support.upstream import FakeUpstream, Raw, Request, answer, completion, in_order
from tests.support.waiting import event, until

ANSWER_S = 5.0
GOOD = answer(200, completion([11, 12], [-1.0, -2.0]))

pytestmark = pytest.mark.usefixtures("each_transport")


@contextlib.asynccontextmanager
async def ready(upstream: FakeUpstream, **flags: Any) -> AsyncIterator[Driven]:
    """A gateway after the handshake."""
    async with driven(upstream.url, **flags) as gateway:
        await gateway.handshake()
        yield gateway


async def submitted(gateway: Driven, seq_id: int = 0, **fields: Any) -> str:
    promise = await gateway.submit(seq_id, **fields)
    assert promise.status == 200, promise.body
    request_id: str = promise.json()["request_id"]
    return request_id


async def outcome(poll: Connection, within_s: float = ANSWER_S) -> Response:
    async with asyncio.timeout(within_s):
        return await poll.response()


async def parked(gateway: Driven, request_id: str) -> Connection:
    """A poll whose hold has begun."""
    poll = gateway.poll(request_id)
    await turns()
    assert not poll.answered
    return poll


async def sampled(gateway: Driven, seq_id: int = 0, **fields: Any) -> Response:
    return await outcome(gateway.poll(await submitted(gateway, seq_id, **fields)))


def silent(released: asyncio.Event) -> Any:
    """A script that answers nothing until `released`."""

    async def script(request: Request) -> Raw:
        await released.wait()
        return answer(200, completion([11, 12], [-1.0, -2.0], n=request.json()["n"]))

    return script


async def metric(gateway: Driven, name: str) -> float:
    """One series of /metrics."""
    text = (await gateway.client.get("/metrics")).body.decode()
    lines = [line for line in text.splitlines() if line.startswith(f"asgi_gateway_{name} ")]
    return float(lines[0].rsplit(" ", 1)[1])


# --- what is sent ---------------------------------------------------------------------------------


@pytest.mark.parametrize("affinity", ["sample", "session", "none"])
async def test_headers_name_the_request_and_what_a_router_hashes(
    upstream: FakeUpstream, affinity: str
) -> None:
    async with ready(upstream, upstream__affinity=affinity) as gateway:
        request_id = await submitted(gateway, seq_id=10**18 + 1)
        await outcome(gateway.poll(request_id))
        (request,) = upstream.requests
        assert (request.method, request.path) == ("POST", "/v1/completions")
        assert request.headers["content-type"] == "application/json"
        assert request.headers["x-request-id"] == request_id
        session = gateway.sampling_session_id
        assert (
            request.headers.get("x-session-id")
            == {
                "sample": f"{session}:{10**18 + 1}",
                "session": session,
                "none": None,
            }[affinity]
        )
        assert ":" not in session
        assert not {"x-api-key", "cookie", "user-agent", "accept-encoding"} & set(request.headers)


async def test_the_path_of_an_upstreams_url_is_kept(upstream: FakeUpstream) -> None:
    async with driven("", upstream__urls=[f"{upstream.url}/a/b/"]) as gateway:
        await gateway.handshake()
        assert (await sampled(gateway)).status == 200
    assert [request.path for request in upstream.requests] == ["/a/b/v1/completions"]


async def test_cookies_are_ignored_and_redirects_not_followed(upstream: FakeUpstream) -> None:
    elsewhere = {"location": f"{upstream.url}/v1/completions", "set-cookie": "a=b; Path=/"}
    upstream.script = in_order(answer(307, b"", headers=elsewhere), GOOD)
    async with ready(upstream) as gateway:
        assert (await sampled(gateway, 0)).json()["category"] == "server"
        assert (await sampled(gateway, 1)).status == 200
        assert len(upstream.requests) == 2
        assert not any("cookie" in request.headers for request in upstream.requests)


async def test_proxies_of_the_environment_are_ignored(
    upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    async with ready(upstream) as gateway:
        assert (await sampled(gateway)).status == 200


# --- reuse, and the race with an upstream that closes idle connections ----------------------------


async def test_connections_are_reused(upstream: FakeUpstream) -> None:
    async with ready(upstream) as gateway:
        for seq_id in range(5):
            assert (await sampled(gateway, seq_id)).status == 200
    assert [request.nth for request in upstream.requests] == [1, 2, 3, 4, 5]


async def test_idle_connections_are_dropped_before_the_upstream_drops_them(
    upstream: FakeUpstream,
) -> None:
    async with ready(upstream, upstream__keepalive_s=0.1) as gateway:
        assert (await sampled(gateway, 0)).status == 200
        await event(upstream.requests[0].hung_up)
        assert (await sampled(gateway, 1)).status == 200
    assert [request.nth for request in upstream.requests] == [1, 1]


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_connection_found_closed_is_tried_once_more_on_a_fresh_one(
    upstream: FakeUpstream, how: str
) -> None:
    async def script(request: Request) -> Raw:
        return GOOD if request.nth == 1 else Raw(b"", how)

    upstream.script = script
    async with ready(upstream) as gateway:
        assert (await sampled(gateway, 0)).status == 200
        request_id = await submitted(gateway, 1)
        assert (await outcome(gateway.poll(request_id))).status == 200
        assert await metric(gateway, 'retries_total{reason="stale_connection"}') == 1
    assert [request.nth for request in upstream.requests] == [1, 2, 1]
    assert [request.request_id for request in upstream.requests[1:]] == [request_id] * 2


async def test_it_is_tried_once_more_and_not_twice(upstream: FakeUpstream) -> None:
    upstream.script = in_order(GOOD, Raw(b"", "close"))
    async with ready(upstream) as gateway:
        assert (await sampled(gateway, 0)).status == 200
        assert (await sampled(gateway, 1)).status == 410
    assert len(upstream.requests) == 3


async def test_many_connections_found_closed_at_once(upstream: FakeUpstream) -> None:
    """No sample is lost, and each comes twice at most."""
    released = asyncio.Event()

    async def script(request: Request) -> Raw:
        if request.nth > 1:
            return Raw(b"", "reset")
        await released.wait()
        return GOOD

    upstream.script = script
    async with ready(upstream) as gateway:
        for wave in range(2):
            ids = [await submitted(gateway, 100 * wave + i) for i in range(100)]
            if not wave:
                await until(lambda: upstream.active == 100)
            released.set()
            for request_id in ids:
                assert (await outcome(gateway.poll(request_id))).status == 200
    counts = Counter(request.request_id for request in upstream.requests)
    assert Counter(counts.values()) == {1: 100, 2: 100}


@pytest.mark.parametrize("begun", [GOOD.data[:-3], b"garbage\r\n\r\n"])
async def test_an_answer_that_had_begun_is_not_asked_for_again(
    upstream: FakeUpstream, begun: bytes
) -> None:
    """Also on a reused connection: the upstream has run the sample.

    A close within the headers looks to aiohttp like one before them; nobody sends half of those.
    """
    upstream.script = in_order(GOOD, Raw(begun, "close"), GOOD)
    async with ready(upstream) as gateway:
        assert (await sampled(gateway, 0)).status == 200
        assert (await sampled(gateway, 1)).status == 410
    assert [request.nth for request in upstream.requests] == [1, 2]


async def test_a_reused_connection_that_dies_later_was_running_the_sample(
    upstream: FakeUpstream,
) -> None:
    async def script(request: Request) -> Raw:
        if request.nth == 1:
            return GOOD
        await asyncio.sleep(1.1)
        return Raw(b"", "close")

    upstream.script = script
    async with ready(upstream) as gateway:
        assert (await sampled(gateway, 0)).status == 200
        assert (await sampled(gateway, 1)).status == 410
    assert len(upstream.requests) == 2


# --- time -----------------------------------------------------------------------------------------


async def test_silence_for_the_read_timeout_hands_the_sample_back(upstream: FakeUpstream) -> None:
    upstream.script = silent(asyncio.Event())
    async with ready(upstream, upstream__read_timeout_s=0.2) as gateway:
        assert (await sampled(gateway)).status == 410
        await event(upstream.requests[0].hung_up)
    assert len(upstream.requests) == 1


async def test_silence_within_the_body_hands_the_sample_back(upstream: FakeUpstream) -> None:
    async def script(request: Request) -> Raw:
        await request.write(GOOD.data[:-5])
        await asyncio.Event().wait()
        return Raw()

    upstream.script = script
    async with ready(upstream, upstream__read_timeout_s=0.2) as gateway:
        assert (await sampled(gateway)).status == 410
        await event(upstream.requests[0].hung_up)


async def test_the_work_clock_ends_the_upstream_request(upstream: FakeUpstream) -> None:
    upstream.script = silent(asyncio.Event())
    async with ready(upstream, session__timeout_s=10_000) as gateway:
        request_id = await submitted(gateway)
        await until(lambda: upstream.requests)
        await gateway.advance(2047)
        assert not upstream.requests[0].hung_up.is_set()
        poll = await parked(gateway, request_id)
        await gateway.advance(2.1)
        failure = (await outcome(poll)).json()
        assert failure["category"] == "server"
        assert "2048 s" in failure["error"]
        await event(upstream.requests[0].hung_up, 1)
    assert len(upstream.requests) == 1


async def test_waiting_in_line_has_no_clock(upstream: FakeUpstream) -> None:
    released = asyncio.Event()
    upstream.script = silent(released)
    async with ready(
        upstream,
        upstream__max_connections=1,
        upstream__read_timeout_s=50_000,
        session__timeout_s=50_000,
    ) as gateway:
        ids = [await submitted(gateway, seq_id) for seq_id in range(2)]
        await until(lambda: upstream.requests)
        poll = await parked(gateway, ids[1])
        await gateway.advance(40_000)
        waiting = await outcome(poll)
        assert waiting.status == 408
        assert waiting.json()["queue_state"] == "paused_capacity"
        released.set()
        assert (await outcome(gateway.poll(ids[1]))).status == 200


async def test_a_connect_that_hangs_is_unavailability() -> None:
    """A listener whose accept queue is full: the connect neither stands nor fails."""
    async with contextlib.AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(FakeUpstream().running())
        gateway = await stack.enter_async_context(
            ready(upstream, upstream__connect_timeout_s=0.1, upstream__unavailable_grace_s=5)
        )
        port = int(upstream.url.rsplit(":", 1)[1])
        await upstream.stop()
        stack.enter_context(deaf_port(port))
        poll = gateway.poll(await submitted(gateway))
        for _ in range(12):
            await asyncio.sleep(0.05)
            await gateway.advance(1)
            if poll.answered:
                break
        assert (await outcome(poll)).status == 410


async def test_stopping_does_not_wait_for_a_connect_that_hangs() -> None:
    async with contextlib.AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(FakeUpstream().running())
        gateway = await stack.enter_async_context(ready(upstream, upstream__connect_timeout_s=30))
        port = int(upstream.url.rsplit(":", 1)[1])
        await upstream.stop()
        stack.enter_context(deaf_port(port))
        await submitted(gateway)
        await asyncio.sleep(0.05)
        async with asyncio.timeout(3):
            await gateway.gateway.close()


# --- the end of a session -------------------------------------------------------------------------


async def test_a_lapsed_session_ends_its_upstream_work(upstream: FakeUpstream) -> None:
    upstream.script = silent(asyncio.Event())
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway)
        await until(lambda: upstream.requests)
        await gateway.advance(299)
        assert not upstream.requests[0].hung_up.is_set()
        await gateway.advance(2)
        await event(upstream.requests[0].hung_up, 1)
        assert (await outcome(gateway.poll(request_id))).status == 410


async def test_a_finished_session_ends_its_upstream_work(upstream: FakeUpstream) -> None:
    upstream.script = silent(asyncio.Event())
    async with ready(upstream, upstream__max_connections=1) as gateway:
        ids = [await submitted(gateway, seq_id) for seq_id in range(3)]
        await until(lambda: upstream.requests)
        polls = [gateway.poll(request_id) for request_id in ids]
        path = f"/api/v1/sessions/{gateway.session_id}/finish"
        assert (await gateway.client.post(path, {"reason": {"type": "success"}})).status == 200
        await event(upstream.requests[0].hung_up, 1)
        for poll in polls:
            assert (await outcome(poll)).status == 410
    assert len(upstream.requests) == 1


async def test_a_poll_keeps_its_session_alive(upstream: FakeUpstream) -> None:
    """Any request of a session is a sign of life, also where heartbeats do not get through."""
    upstream.script = silent(asyncio.Event())
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway)
        await until(lambda: upstream.requests)
        for _ in range(20):
            poll = await parked(gateway, request_id)
            await gateway.advance(30)
            assert (await outcome(poll)).status == 408
        assert not upstream.requests[0].hung_up.is_set()


async def test_a_dropped_poll_cancels_nothing(upstream: FakeUpstream) -> None:
    released = asyncio.Event()
    upstream.script = silent(released)
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway)
        await until(lambda: upstream.requests)
        poll = await parked(gateway, request_id)
        await gateway.advance(1)
        poll.hang_up()
        await poll.response()
        assert not upstream.requests[0].hung_up.is_set()
        released.set()
        assert (await outcome(gateway.poll(request_id))).status == 200
    assert len(upstream.requests) == 1


def _requests(upstream: FakeUpstream, count: int) -> bool:
    return len(upstream.requests) == count


def _active(upstream: FakeUpstream, count: int) -> bool:
    return upstream.active == count


# --- limits ---------------------------------------------------------------------------------------


async def test_no_more_than_max_connections_and_first_come_first_served(
    upstream: FakeUpstream,
) -> None:
    turn = asyncio.Semaphore(0)

    async def script(request: Request) -> Raw:
        await turn.acquire()
        return GOOD

    upstream.script = script
    async with ready(upstream, upstream__max_connections=3) as gateway:
        ids = [await submitted(gateway, seq_id) for seq_id in range(12)]
        for done in range(12):
            await until(functools.partial(_requests, upstream, min(done + 3, 12)))
            assert upstream.active <= 3
            turn.release()
            await until(functools.partial(_active, upstream, min(3, 12 - done - 1)))
        for request_id in ids:
            assert (await outcome(gateway.poll(request_id))).status == 200
    assert upstream.peak == 3
    sent = [request.request_id for request in upstream.requests]
    # The first three each have a new connection, and those stand in any order.
    assert (set(sent[:3]), sent[3:]) == (set(ids[:3]), ids[3:])
    assert upstream.connections <= 4  # one of them asked for the models


async def test_a_thousand_samples_over_fifty_connections(upstream: FakeUpstream) -> None:
    async def script(request: Request) -> Raw:
        await asyncio.sleep(0)
        (token,) = request.json()["prompt"]
        return answer(200, completion([token, token + 1], [-0.5, -0.25]))

    upstream.script = script
    async with ready(upstream, upstream__max_connections=50) as gateway:
        prompts = [{"chunks": [{"type": "encoded_text", "tokens": [n]}]} for n in range(1000)]
        ids = [await submitted(gateway, n, prompt=prompts[n]) for n in range(1000)]
        results = await asyncio.gather(*(outcome(gateway.poll(i), 30) for i in ids))
        assert {result.status for result in results} == {200}
        for n, result in enumerate(results):
            assert n.to_bytes(4, "little") + (n + 1).to_bytes(4, "little") in result.body
    assert upstream.peak <= 50
    assert upstream.connections <= 51
    assert len(upstream.requests) == 1000


async def test_the_prompt_is_dropped_when_a_2xx_answer_begins(upstream: FakeUpstream) -> None:
    begin, finish = asyncio.Event(), asyncio.Event()

    async def script(request: Request) -> Raw:
        await begin.wait()
        await request.write(GOOD.data[:-5])
        await finish.wait()
        return Raw(GOOD.data[-5:], "keep")

    upstream.script = script
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [123_456] * 60_000}]}
    async with ready(upstream) as gateway:
        request_id = await submitted(gateway, prompt=prompt, sampling_params={"max_tokens": 1})
        await until(lambda: upstream.requests)
        assert await metric(gateway, "charged_bytes") > 400_000
        begin.set()
        async with asyncio.timeout(2):
            while await metric(gateway, "charged_bytes") > 10_000:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        finish.set()
        assert (await outcome(gateway.poll(request_id))).status == 200


async def test_the_prompt_is_kept_while_the_answer_may_still_be_a_refusal(
    upstream: FakeUpstream,
) -> None:
    async def script(request: Request) -> Raw:
        if len(upstream.requests) == 2:
            return GOOD
        refusal = answer(503, b"x" * 100)
        await request.write(refusal.data[:-50])
        await asyncio.sleep(0.05)
        return Raw(refusal.data[-50:], "keep")

    upstream.script = script
    async with ready(upstream) as gateway:
        assert (await sampled(gateway)).status == 200
    assert len({request.body for request in upstream.requests}) == 1


# --- unusual but right ----------------------------------------------------------------------------


async def test_a_chunked_answer_in_small_pieces(upstream: FakeUpstream) -> None:
    body = GOOD.data.partition(b"\r\n\r\n")[2]

    async def script(request: Request) -> Raw:
        await request.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for start in range(0, len(body), 7):
            piece = body[start : start + 7]
            await request.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return Raw(b"0\r\n\r\n", "keep")

    upstream.script = script
    async with ready(upstream) as gateway:
        assert (await sampled(gateway)).status == 200


async def test_a_large_prompt() -> None:
    """Over a mebibyte, where aiohttp would warn; it goes up whole and with its length."""
    tokens = [151_000 + n % 900 for n in range(200_000)]
    models = {"data": [{"id": "stand-in", "max_model_len": 1_000_000, "parent": None}]}
    async with FakeUpstream(models).running() as upstream, ready(upstream) as gateway:
        prompt = {"chunks": [{"type": "encoded_text", "tokens": tokens}]}
        result = await sampled(gateway, prompt=prompt)
        assert result.status == 200
        assert upstream.requests[0].json()["prompt"] == tokens
        assert "transfer-encoding" not in upstream.requests[0].headers


async def test_a_large_answer(upstream: FakeUpstream) -> None:
    count = 200_000
    upstream.script = in_order(answer(200, completion([7] * count, [-0.125] * count)))
    async with ready(upstream) as gateway:
        result = await sampled(gateway, sampling_params={"max_tokens": 50_000})
        assert result.status == 200
        assert result.body.count(b"\x07\0\0\0") == count
