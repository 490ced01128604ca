"""The same suite under uvicorn, hypercorn and granian, each as a user starts it: one worker, real
sockets, `create_app` as the factory.

What a server lets us know of its clients differs (measured with uvicorn 0.54, hypercorn 0.18 and
granian 2.8.9), and these tests pin what holds on all three:

| the client ...                                      | uvicorn | hypercorn | granian |
|-----------------------------------------------------|---------|-----------|---------|
| hangs up while its poll is parked: seen at once     | yes     | yes       | yes     |
| hangs up as the result of its parked poll comes     | yes     | mostly    | yes     |
| hangs up before its request is complete: seen       | yes     | yes       | yes     |
| hangs up right after asking for a ready result      | no      | mostly    | no      |

Where it is not seen, a result that nobody read gets the shorter lifetime of a delivered one, 300 s
instead of 2,048 by default; it is not lost. Rows without three times yes are races of packets, and
only their "yes" is pinned.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest
import pytest_asyncio

from loadgen.sampling_pb2 import SampleResponse
from tests.support.processes import SERVERS, Served, under
from tests.support.upstream import FakeUpstream, Raw, Request, answer, completion
from tests.support.waiting import event, until
from tests.support.wire import SDK_HEADERS, Remote, Wire, poll, wire

pytestmark = [pytest.mark.servers, pytest.mark.asyncio(loop_scope="module")]

HOLD_S = 1
DELIVERED_S = 1
UNDELIVERED_S = 4
# The ticker's period, and what a busy machine adds to it.
LATE_S = 0.35


class Gated(FakeUpstream):
    """Answers a prompt at once, or where `hold` was asked for its first id, when that opens."""

    def __init__(self) -> None:
        super().__init__()
        self._gates: dict[int, asyncio.Event] = {}
        self._unused = iter(range(100, 100_000))
        self.script = self._wait_for_gate

    def hold(self) -> tuple[list[int], asyncio.Event]:
        """A prompt that is not answered until the event is set."""
        token = next(self._unused)
        gate = self._gates[token] = asyncio.Event()
        return [token, 1], gate

    async def arrived(self, request_id: str) -> Request:
        """The completion that this sample became, once it is here."""
        await until(lambda: request_id in {request.request_id for request in self.requests})
        (found,) = [request for request in self.requests if request.request_id == request_id]
        return found

    async def _wait_for_gate(self, request: Request) -> Raw:
        asked = request.json()
        if gate := self._gates.get(asked["prompt"][0]):
            await gate.wait()
        return answer(200, completion([11, 12], [-1.0, -2.0], n=asked["n"]))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def upstream() -> AsyncIterator[Gated]:
    async with Gated().running() as gated:
        yield gated


@pytest.fixture(scope="module", params=SERVERS)
def served(request: pytest.FixtureRequest, upstream: Gated) -> Iterator[Served]:
    with under(
        request.param,
        upstream.url,
        poll__hold_s=HOLD_S,
        store__retrieved_ttl_s=DELIVERED_S,
        store__completed_ttl_s=UNDELIVERED_S,
    ) as running:
        yield running
        assert "Traceback" not in running.process.stderr, running.process.story()


@pytest_asyncio.fixture(loop_scope="module")
async def remote(served: Served) -> Remote:
    """A client after its handshake."""
    client = Remote(served.port)
    await client.handshake()
    return client


async def parked(remote: Remote, connection: Wire, request_id: str) -> None:
    """Send a poll and wait until the gateway has parked it."""
    remote.send_poll(connection, request_id)
    await polls(remote, 1)


async def polls(remote: Remote, count: int, within_s: float = 0.8) -> None:
    """Until `count` polls are parked; shorter than a hold, so that none ended by itself."""
    await remote.polls_parked(count, within_s)


async def settled(remote: Remote, count: int = 1) -> list[str]:
    """Ids of samples whose results are there, undelivered."""
    before = await remote.metrics()
    ids = [await remote.submit() for _ in range(count)]
    await successes(remote, before, count)
    return ids


async def successes(remote: Remote, before: dict[str, float], more: int) -> None:
    name = 'samples_total{outcome="succeeded"}'
    await remote.until(lambda now: now.get(name, 0) >= before.get(name, 0) + more)


# --- plain requests -------------------------------------------------------------------------------


async def test_a_sample(remote: Remote) -> None:
    assert (await remote.get("/api/v1/healthz")).json() == {"status": "ok"}
    capabilities = (await remote.get("/api/v1/get_server_capabilities")).json()
    assert [model["model_name"] for model in capabilities["supported_models"]] == ["stand-in"]
    request_id = await remote.submit(num_samples=3)
    result = await remote.poll(request_id)
    assert result.status == 200
    assert result.headers[b"content-type"] == b"application/x-protobuf"
    assert int(result.headers[b"content-length"]) == len(result.body)
    assert len(SampleResponse.FromString(result.body).sequences) == 3


async def test_a_connection_is_used_again(served: Served, remote: Remote) -> None:
    """Whatever was answered on it, with and without bodies that nobody read."""
    (request_id,) = await settled(remote)
    async with wire(served.port) as connection:
        for _ in range(3):
            result = await connection.ask("POST", "/api/v1/retrieve_future", *poll(request_id))
            assert result.status == 200
            for method, path, body, status in (
                ("GET", "/api/v1/healthz", b"", 200),
                ("POST", "/api/v1/asample", b"{", 400),
                ("POST", "/no/such/route", b"x" * 5000, 404),
                ("PUT", "/api/v1/asample", b"x" * 5000, 405),
                ("HEAD", "/api/v1/healthz", b"", 405),
                ("POST", "/api/v1/retrieve_future", {"request_id": "unknown"}, 404),
            ):
                reply = await connection.ask(method, path, body, SDK_HEADERS)
                assert reply.status == status, (method, path, reply)


async def test_what_is_not_offered(served: Served) -> None:
    async with wire(served.port) as connection:
        unknown = await connection.ask("GET", "/api/v1/no_such_route")
        assert unknown.status == 404
        assert "no_such_route" in unknown.json()["detail"]
        for method, path, allowed in (
            ("GET", "/api/v1/asample", b"POST"),
            ("DELETE", "/api/v1/healthz", b"GET"),
            ("HEAD", "/metrics", b"GET"),
        ):
            wrong = await connection.ask(method, path)
            assert (wrong.status, wrong.headers[b"allow"]) == (405, allowed)


async def test_a_body_in_many_small_pieces(served: Served, remote: Remote) -> None:
    tokens = list(range(10_000, 50_000))
    body = msgspec.json.encode(remote.sample(tokens))
    assert len(body) > 200_000
    async with wire(served.port) as connection:
        connection.send_head("POST", "/api/v1/asample", len(body), SDK_HEADERS)
        for start in range(0, len(body), 1024):
            await connection.send_bytes(body[start : start + 1024])
        promise = await connection.read()
        assert promise.status == 200, promise.body
        small, headers = poll(promise.json()["request_id"])
        data = msgspec.json.encode(small)
        connection.send_head("POST", "/api/v1/retrieve_future", len(data), headers)
        for index in range(len(data)):
            await connection.send_bytes(data[index : index + 1])
            await asyncio.sleep(0)
        assert (await connection.read()).status == 200


async def test_a_chunked_body(served: Served) -> None:
    async with wire(served.port) as connection:
        head = (
            b"POST /api/v1/create_session HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        await connection.send_bytes(head + b"5\r\n{'tag\r\n".replace(b"'", b'"'))
        await connection.send_bytes(b'6\r\ns":[]}\r\n0\r\n\r\n')
        made = await connection.read()
        assert made.status == 200
        assert made.json()["session_id"]


async def test_a_body_that_waits_to_be_asked_for(served: Served) -> None:
    """As curl sends bodies above a megabyte."""
    async with wire(served.port) as connection:
        connection.send_head("POST", "/api/v1/create_session", 2, {"Expect": "100-continue"})
        assert await connection.read_interim() == 100
        await connection.send_bytes(b"{}")
        assert (await connection.read()).status == 200


async def test_a_body_that_is_too_large(served: Served) -> None:
    """Known by its length it is refused before it is sent; without one, as soon as it is."""
    async with wire(served.port) as connection:
        connection.send_head("POST", "/api/v1/asample", (32 << 20) + 1, SDK_HEADERS)
        refused = await connection.read()
        assert refused.status == 413
        assert str(32 << 20) in refused.json()["detail"]
    async with wire(served.port) as connection:
        connection.send_head("POST", "/api/v1/retrieve_future", (64 << 10) + 1, SDK_HEADERS)
        assert (await connection.read()).status == 413
    async with wire(served.port) as connection:
        head = (
            b"POST /api/v1/create_session HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        await connection.send_bytes(head + (b"400\r\n" + b" " * 1024 + b"\r\n") * 66)
        assert (await connection.read()).status == 413


# --- the long poll --------------------------------------------------------------------------------


async def test_an_unfinished_sample_holds_its_poll(remote: Remote, upstream: Gated) -> None:
    prompt, gate = upstream.hold()
    request_id = await remote.submit(prompt)
    began = time.monotonic()
    held = await remote.poll(request_id)
    assert HOLD_S - 0.1 <= time.monotonic() - began <= HOLD_S + LATE_S
    assert held.status == 408
    assert held.json() == {
        "type": "try_again",
        "request_id": request_id,
        "queue_state": "active",
        "queue_state_reason": None,
    }
    gate.set()
    assert (await remote.poll(request_id)).status == 200


async def test_a_parked_poll_gets_the_result_at_once(
    served: Served, remote: Remote, upstream: Gated
) -> None:
    prompt, gate = upstream.hold()
    request_id = await remote.submit(prompt)
    async with wire(served.port) as first, wire(served.port) as second:
        for connection in (first, second):
            remote.send_poll(connection, request_id)
        await polls(remote, 2)
        began = time.monotonic()
        gate.set()
        results = [await first.read(), await second.read()]
        assert time.monotonic() - began < 0.3
        assert [result.status for result in results] == [200, 200]
        assert results[0].body == results[1].body


@pytest.mark.parametrize("reset", [False, True])
async def test_a_dropped_poll_is_let_go_and_cancels_nothing(
    served: Served, remote: Remote, upstream: Gated, reset: bool
) -> None:
    prompt, gate = upstream.hold()
    request_id = await remote.submit(prompt)
    sent = await upstream.arrived(request_id)
    async with wire(served.port) as connection:
        await parked(remote, connection, request_id)
        connection.hang_up(reset=reset)
        await polls(remote, 0, within_s=0.4)
    with pytest.raises(TimeoutError):
        await event(sent.hung_up, 0.3)
    gate.set()
    assert (await remote.poll(request_id)).status == 200
    assert [request.request_id for request in upstream.requests].count(request_id) == 1


# --- delivered or not -----------------------------------------------------------------------------


async def test_a_poll_that_hung_up_delivered_nothing(
    served: Served, remote: Remote, upstream: Gated
) -> None:
    """Its results outlive the delivered lifetime, and end with the undelivered one."""
    before = await remote.metrics()
    gates, ids = [], []
    for _ in range(2):
        prompt, gate = upstream.hold()
        gates.append(gate)
        ids.append(await remote.submit(prompt))
    async with wire(served.port) as one, wire(served.port) as other:
        for connection, request_id in zip((one, other), ids, strict=True):
            remote.send_poll(connection, request_id)
        await polls(remote, 2)
        one.hang_up()
        other.hang_up(reset=True)
        await polls(remote, 0)
    for gate in gates:
        gate.set()
    await successes(remote, before, 2)
    await asyncio.sleep(DELIVERED_S + LATE_S)
    assert (await remote.poll(ids[0])).status == 200
    await asyncio.sleep(UNDELIVERED_S - DELIVERED_S)
    assert (await remote.poll(ids[1])).status == 410


@pytest.mark.parametrize("served", ["uvicorn"], indirect=True)
@pytest.mark.parametrize("reset", [False, True])
async def test_a_poll_that_hung_up_as_its_result_came(
    served: Served, remote: Remote, upstream: Gated, reset: bool
) -> None:
    """Both while the gateway cannot look: it finds the result ready and the client gone.

    hypercorn hands a disconnect on in several steps, granian from another thread: both lose this
    race at times, and the result is then kept for the shorter time.
    """
    before = await remote.metrics()
    prompt, gate = upstream.hold()
    request_id = await remote.submit(prompt)
    async with wire(served.port) as connection:
        await parked(remote, connection, request_id)
        with served.process.frozen():
            gate.set()
            await until(lambda: not upstream.active)
            connection.hang_up(reset=reset)
            await asyncio.sleep(0.05)
    await successes(remote, before, 1)
    await asyncio.sleep(DELIVERED_S + LATE_S)
    assert (await remote.poll(request_id)).status == 200


async def test_a_delivered_result_lives_from_its_last_delivery(remote: Remote) -> None:
    (request_id,) = await settled(remote)
    for _ in range(3):
        assert (await remote.poll(request_id)).status == 200
        await asyncio.sleep(0.6 * DELIVERED_S)
    assert (await remote.poll(request_id)).status == 200
    await asyncio.sleep(DELIVERED_S + LATE_S)
    assert (await remote.poll(request_id)).status == 410


async def test_a_result_delivered_to_a_parked_poll_is_delivered(
    served: Served, remote: Remote, upstream: Gated
) -> None:
    prompt, gate = upstream.hold()
    request_id = await remote.submit(prompt)
    async with wire(served.port) as connection:
        await parked(remote, connection, request_id)
        gate.set()
        assert (await connection.read()).status == 200
    await asyncio.sleep(DELIVERED_S + LATE_S)
    assert (await remote.poll(request_id)).status == 410


async def test_a_try_again_delivers_nothing(remote: Remote, upstream: Gated) -> None:
    before = await remote.metrics()
    prompt, gate = upstream.hold()
    request_id = await remote.submit(prompt)
    assert (await remote.poll(request_id)).status == 408
    gate.set()
    await successes(remote, before, 1)
    await asyncio.sleep(DELIVERED_S + LATE_S)
    assert (await remote.poll(request_id)).status == 200


async def test_half_a_poll_delivered_nothing(served: Served, remote: Remote) -> None:
    """The client goes away in the middle of its own request, for a result that is ready."""
    (request_id,) = await settled(remote)
    body, headers = poll(request_id)
    data = msgspec.json.encode(body)
    async with wire(served.port) as connection:
        connection.send_head("POST", "/api/v1/retrieve_future", len(data), headers)
        await connection.send_bytes(data[:-2])
        await asyncio.sleep(0.05)
        connection.hang_up()
    await asyncio.sleep(DELIVERED_S + LATE_S)
    assert (await remote.poll(request_id)).status == 200


async def test_a_ready_result_is_delivered_at_once(remote: Remote) -> None:
    ids = await settled(remote, 5)
    began = time.monotonic()
    for request_id in ids:
        assert (await remote.poll(request_id)).status == 200
    assert time.monotonic() - began < 0.5


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", SERVERS)
async def test_sigterm_with_a_parked_poll(server: str, upstream: Gated) -> None:
    """The poll is answered, within its hold at the latest, then the process goes.

    hypercorn's worker is not told of the signal, and what is still open after the graceful time of
    3 s is cancelled: it has to be longer than the hold, or the poll ends with a 500.
    """
    prompt, _ = upstream.hold()
    with under(server, upstream.url, poll__hold_s=HOLD_S) as served:
        remote = Remote(served.port)
        await remote.handshake()
        request_id = await remote.submit(prompt)
        work = await upstream.arrived(request_id)
        async with wire(served.port) as connection, wire(served.port) as idle:
            assert (await idle.ask("GET", "/api/v1/healthz")).status == 200
            await parked(remote, connection, request_id)
            began = time.monotonic()
            served.process.terminate()
            held = await connection.read()
            assert (held.status, held.json()["type"]) == (408, "try_again")
            await event(work.hung_up)
            status = await asyncio.to_thread(served.process.wait)
            assert time.monotonic() - began < HOLD_S + 3
        # uvicorn ends itself with the signal that it got, once everything is closed.
        assert status in (0, -15), served.process.story()
        assert "Traceback" not in served.process.stderr, served.process.story()


@pytest.mark.parametrize(
    ("server", "flags"),
    [
        ("uvicorn", ["--timeout-keep-alive", "1"]),
        ("hypercorn", ["--keep-alive", "1"]),
        ("granian", ["--http1-header-read-timeout", "1000"]),
    ],
)
async def test_how_long_an_idle_connection_lives(
    server: str, flags: list[str], upstream: Gated
) -> None:
    """The flags that docs/servers.md names. granian has no other; it ends no poll that waits."""
    with under(server, upstream.url, *flags, poll__hold_s=2) as served:
        remote = Remote(served.port)
        await remote.handshake()
        prompt, gate = upstream.hold()
        request_id = await remote.submit(prompt)
        async with wire(served.port) as connection:
            remote.send_poll(connection, request_id)
            assert (await connection.read()).status == 408
            began = time.monotonic()
            assert await connection.ended()
            assert 0.5 < time.monotonic() - began < 2.5
        gate.set()


@pytest.mark.parametrize("server", SERVERS)
async def test_a_configuration_that_is_wrong_starts_nothing(server: str) -> None:
    with (
        pytest.raises(AssertionError, match=r"(?s)ended before.*poll\.hold_s"),
        under(server, "http://127.0.0.1:1", poll__hold_s=1000),
    ):
        pass
