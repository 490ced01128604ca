"""The real nginx and HAProxy with the configurations for several gateways, two of which share a
real store behind them: any answers for any, and any may die, hang or be restarted.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.support.processes import START_S
from tests.support.proxies import HOST, NAMES, Proxy, proxy
from tests.support.supervised import Supervised
from tests.support.upstream import FakeUpstream, Raw, Request
from tests.support.valkey import valkey
from tests.support.wire import SDK_HEADERS, Remote, Wire, poll, wire

pytestmark = [pytest.mark.system, pytest.mark.servers]

# Long, so that nothing ends by itself; below what the client waits.
HELD_S = 15.0
LEASE_S = 1.5
# Silence is noticed by nginx so soon; its 15 s are long for a test.
NGINX = {"proxy_read_timeout 15s;": "proxy_read_timeout 3s;"}
# HAProxy's two checks of 3 s, what is between them, and a busy machine.
SILENCE_SEEN_S = 15.0


class Several:
    """Two gateways with one store, the proxy before them and the upstream behind."""

    def __init__(self, gateways: list[Supervised], before: Proxy, upstream: FakeUpstream) -> None:
        self.gateways = gateways
        self.proxy = before
        self.upstream = upstream
        self.remotes = [Remote(gateway.port) for gateway in gateways]

    async def until_up(self) -> None:
        """Both get requests."""
        if self.proxy.name == "haproxy":
            for server in ("one", "two"):
                await until(functools.partial(self.is_, "UP", server))

    def is_(self, status: str, server: str, backend: str = "ready") -> bool:
        return self.proxy.status(server, backend) == status

    async def parked_at_both(
        self, stack: contextlib.AsyncExitStack, request_id: str
    ) -> tuple[list[Wire], list[int]]:
        """Polls through the proxy until each gateway holds one, and how many each holds. Mostly two
        polls do, but where a server has just come back it may have two turns."""
        polls: list[Wire] = []
        while True:
            polls.append(await stack.enter_async_context(self.proxy.wire()))
            self.remotes[0].send_poll(polls[-1], request_id)
            async with asyncio.timeout(START_S):
                while True:
                    counts = [(await each.metrics())["polls_inflight"] for each in self.remotes]
                    if sum(counts) == len(polls):
                        break
                    await asyncio.sleep(0.02)
            if min(counts) > 0:
                return polls, [int(count) for count in counts]
            assert len(polls) < 6, counts


async def until(found: Callable[[], bool], within_s: float = START_S) -> None:
    async with asyncio.timeout(within_s):
        while not found():  # noqa: ASYNC110 - another process's state
            await asyncio.sleep(0.05)


async def answer_of(connection: Wire) -> int:
    """The status, or 0 where the connection was closed instead: HAProxy does either, where the
    gateway's own connection broke."""
    try:
        return (await connection.read()).status
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0


@pytest.fixture(params=NAMES)
async def several(
    request: pytest.FixtureRequest, upstream: FakeUpstream, tmp_path: Path
) -> AsyncIterator[Several]:
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(valkey(tmp_path))
        given = {
            "store__url": store.url,
            "store__lease_s": LEASE_S,
            "poll__hold_s": HELD_S,
            "access__hosts": HOST,
        }
        gateways = []
        for _ in range(2):
            gateways.append(Supervised(upstream.url, None, given))
            stack.callback(gateways[-1].close)
        before = stack.enter_context(
            proxy(
                request.param,
                tmp_path,
                [f"127.0.0.1:{gateway.port}" for gateway in gateways],
                changes=NGINX if request.param == "nginx" else {},
            )
        )
        made = Several(gateways, before, upstream)
        for remote in made.remotes:
            await remote.until(lambda now: now["ready"] == 1)
        await made.until_up()
        yield made


async def silent(request: Request) -> Raw:
    """An upstream that never answers."""
    await asyncio.Event().wait()
    return Raw()


async def test_polls_land_on_the_other_gateway(several: Several) -> None:
    """Each request goes to the next gateway, over one HTTP/2 connection of the client."""
    client = several.remotes[0]
    async with several.proxy.client() as http:
        session = await http.post("/api/v1/create_session", json={"tags": []})
        asked = {
            "session_id": session.json()["session_id"],
            "sampling_session_seq_id": 0,
            "base_model": "stand-in",
        }
        made = await http.post("/api/v1/create_sampling_session", json=asked)
        client.sampling_session_id = made.json()["sampling_session_id"]

        async def sample(tokens: list[int]) -> None:
            accepted = await http.post("/api/v1/asample", json=client.sample(tokens))
            assert (accepted.status_code, accepted.http_version) == (200, "HTTP/2"), accepted.text
            body, headers = poll(accepted.json()["request_id"])
            answer = await http.post("/api/v1/retrieve_future", json=body, headers=headers)
            assert answer.status_code == 200, answer.text

        await asyncio.gather(*(sample([n, n + 1]) for n in range(50)))
        for number in range(10):
            await sample([number])
    counts = [await remote.metrics() for remote in several.remotes]
    ran = [count['samples_total{outcome="succeeded"}'] for count in counts]
    answered = [count['polls_total{result="ready"}'] for count in counts]
    assert sum(ran) == sum(answered) == 60
    assert min(ran + answered) >= 10
    # Submit and poll by turns: the last ten ran at one and were answered by the other.
    assert abs(ran[0] - answered[0]) >= 8 or abs(ran[0] - 30) < 20


async def test_a_poll_ends_where_its_gateway_was_killed(several: Several) -> None:
    """Its connection breaks and the client repeats it; the sample was the other one's."""
    release = asyncio.Event()
    answer = several.upstream.script

    async def script(request: Request) -> Raw:
        await release.wait()
        return await answer(request)

    several.upstream.script = script
    kept, killed = several.remotes[0], several.gateways[1]
    await kept.handshake()
    request_id = await kept.submit()
    async with contextlib.AsyncExitStack() as stack:
        polls, (_, lost) = await several.parked_at_both(stack, request_id)
        killed.kill()
        answers = [asyncio.create_task(answer_of(connection)) for connection in polls]
        done: list[int] = []
        for answered in asyncio.as_completed(answers):
            done.append(await answered)
            if len(done) == lost:
                break
        assert set(done) <= {502, 0}
        # All of these find the gateway that is there, at once.
        for _ in range(6):
            async with several.proxy.wire() as connection:
                began = asyncio.get_running_loop().time()
                assert (await connection.ask("GET", "/api/v1/healthz")).status == 200
                assert asyncio.get_running_loop().time() - began < 2
        release.set()
        assert sorted(await asyncio.gather(*answers)) == sorted(
            [*done, *[200] * (len(polls) - lost)]
        )


async def test_what_is_not_for_clients(several: Several) -> None:
    for path in ("/metrics", "/admin", "/admin/state"):
        async with several.proxy.wire() as connection:
            assert (await connection.ask("GET", path)).status == 404


async def test_a_client_that_hangs_up_is_seen(several: Several) -> None:
    several.upstream.script = silent
    client = several.remotes[0]
    await client.handshake()
    request_id = await client.submit()
    async with contextlib.AsyncExitStack() as stack:
        polls, _ = await several.parked_at_both(stack, request_id)
        for connection in polls:
            connection.hang_up(reset=True)
        for remote in several.remotes:
            await remote.polls_parked(0, within_s=HELD_S / 2)


async def test_a_gateway_that_hangs_leaves_the_rotation(several: Several) -> None:
    """What was on its way to it ends early, and nothing more goes there."""
    several.upstream.script = silent
    client = several.remotes[0]
    await client.handshake()
    request_id = await client.submit()
    loop = asyncio.get_running_loop()

    async def ask(connection: Wire) -> int:
        """A submit, or whatever is answered at once."""
        said = await connection.ask("POST", "/api/v1/asample", client.sample(), SDK_HEADERS)
        return said.status

    async with contextlib.AsyncExitStack() as stack:
        parked, _ = await several.parked_at_both(stack, request_id)
        with several.gateways[1].process.frozen():
            began = loop.time()
            waiting = []
            for _ in range(4):
                each = await stack.enter_async_context(several.proxy.wire())
                waiting.append(asyncio.create_task(ask(each)))
            async with asyncio.timeout(SILENCE_SEEN_S):
                statuses = {await task for task in waiting}
            assert 200 in statuses
            assert statuses - {200}
            assert statuses - {200} <= {502, 503, 504}
            if several.proxy.name == "haproxy":
                # Polls that were parked there are over, before their hold is.
                await until(lambda: several.proxy.status("two") == "DOWN", SILENCE_SEEN_S)
                ends = [asyncio.create_task(answer_of(connection)) for connection in parked]
                ended, others = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                assert {task.result() for task in ended} <= {0, 502, 503}
                assert loop.time() - began < HELD_S
                for task in others:
                    task.cancel()
            for _ in range(6):
                async with several.proxy.wire() as connection:
                    began = loop.time()
                    assert await ask(connection) == 200
                    assert loop.time() - began < 2
        if several.proxy.name == "haproxy":
            await until(lambda: several.proxy.status("two") == "UP")


@pytest.fixture
def haproxy_alone(several: Several) -> Several:
    if several.proxy.name != "haproxy":
        pytest.skip("nginx does not ask /readyz")
    return several


async def test_a_gateway_that_drains_gets_nothing_new(haproxy_alone: Several) -> None:
    """From about a second on; its parked poll is answered by itself."""
    several = haproxy_alone
    release = asyncio.Event()
    answer = several.upstream.script

    async def script(request: Request) -> Raw:
        await release.wait()
        return await answer(request)

    several.upstream.script = script
    one, two = several.remotes
    several.gateways[1].stop()
    several.gateways[1].settings |= {"drain__predrain_s": 60.0}
    several.gateways[1].start()
    await several.until_up()
    await one.handshake()
    request_id = await one.submit()
    async with contextlib.AsyncExitStack() as stack:
        polls, (_, there) = await several.parked_at_both(stack, request_id)
        several.gateways[1].process.terminate()
        await until(lambda: several.proxy.status("two") == "NOLB", 5.0)
        before = int(several.proxy.figures("ready", "two")["stot"])
        for _ in range(10):
            async with several.proxy.wire() as connection:
                answered = await connection.ask(
                    "POST", "/api/v1/asample", one.sample(), SDK_HEADERS
                )
                assert answered.status == 200
        assert int(several.proxy.figures("ready", "two")["stot"]) == before
        await two.polls_parked(there)
        release.set()
        assert {(await each.read()).status for each in polls} == {200}
    several.gateways[1].process.terminate()
    assert await asyncio.to_thread(several.gateways[1].process.wait) == 0
    await until(lambda: several.proxy.status("two") == "DOWN")


async def test_while_none_is_ready_polls_are_held(haproxy_alone: Several) -> None:
    """And while there is none the answer takes its time, or it would be asked again at once."""
    several = haproxy_alone
    several.upstream.script = silent
    one = several.remotes[0]
    await one.handshake()
    request_id = await one.submit()
    for gateway in several.gateways:
        gateway.stop()
        gateway.settings |= {"drain__predrain_s": 60.0}
        gateway.start()
    await several.until_up()
    request_id = await one.submit()
    for gateway in several.gateways:
        gateway.process.terminate()
    for server in ("one", "two"):
        await until(functools.partial(several.is_, "NOLB", server), 5.0)
    loop = asyncio.get_running_loop()
    async with several.proxy.wire() as connection:
        began = loop.time()
        one.send_poll(connection, request_id)
        held = await connection.read()
        assert held.status == 408, held.body
        assert loop.time() - began > HELD_S - 1
    for gateway in several.gateways:
        gateway.process.terminate()
        assert await asyncio.to_thread(gateway.process.wait) == 0
    for server in ("one", "two"):
        await until(functools.partial(several.is_, "DOWN", server, "alive"))
    async with several.proxy.wire() as connection:
        began = loop.time()
        one.send_poll(connection, request_id)
        assert (await connection.read()).status == 503
        assert loop.time() - began > 2
    await asyncio.to_thread(several.gateways[0].start)
    await until(functools.partial(several.is_, "UP", "one"))
    assert (await one.poll(request_id)).status == 410  # given back by the gateway that stopped


async def test_a_submit_goes_to_the_gateway_that_takes_connections(several: Several) -> None:
    """A connect that fails is repeated elsewhere within the request; nobody sees an error."""
    client = several.remotes[0]
    await client.handshake()
    several.gateways[1].kill()
    async with several.proxy.client() as http:
        for _ in range(8):
            accepted = await http.post("/api/v1/asample", json=client.sample())
            assert accepted.status_code == 200, accepted.text
    async with wire(several.gateways[0].port) as connection:
        assert (await connection.ask("GET", "/readyz")).status == 200
