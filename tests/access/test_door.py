"""Who is let in: the same 401 whatever is wrong, 403 for another scope, on every route."""

import asyncio
import timeit
from pathlib import Path
from typing import Any

import pytest

from asgi_gateway import Gateway
from asgi_gateway.access.door import LOOK_EVERY_S, Door
from asgi_gateway.access.penalty import FREE, FREE_PER_S, Penalty, address_of
from asgi_gateway.asgi import Scope
from asgi_gateway.errors import Unauthorized
from asgi_gateway.settings import AccessSettings
from tests.support.asgi_client import AsgiClient, Response
from tests.support.clock import ManualClock
from tests.support.gateway import Driven, driven, settings
from tests.support.held import Held
from tests.support.keyed import API, As, Keyed, entries, hashed, keyed, secret_of
from tests.support.upstream import FakeUpstream
from tests.support.waiting import until

EVERY = {"alice": {}, "probe": {"scopes": ["metrics"]}, "root": {"scopes": ["admin"]}}
OPEN = {"GET /admin", "GET /livez", "GET /readyz", f"GET {API}/healthz"}
RIGHT = secret_of("alice")


def pairs(*headers: tuple[str, str]) -> Scope:
    return {"headers": [(name.encode(), value.encode()) for name, value in headers]}


def door(*, clock: ManualClock | None = None) -> Door:
    keys = (f"alice={hashed(RIGHT)}",)
    return Door(AccessSettings(keys=keys), clock or ManualClock())


# --- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        [("x-api-key", RIGHT)],
        [("authorization", f"Bearer {RIGHT}")],
        [("authorization", f"bearer  {RIGHT} ")],
        [("authorization", "Basic abc"), ("x-api-key", RIGHT)],
        [("authorization", "Bearer wrong"), ("x-api-key", RIGHT)],
        [("x-api-key", RIGHT), ("authorization", "Bearer wrong")],
        [("accept", "*/*"), ("x-api-key", RIGHT), ("x-api-key", "another")],
    ],
)
def test_a_right_key(headers: list[tuple[str, str]]) -> None:
    assert door().enter(pairs(*headers), "sample").name == "alice"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("x-api-key", "")],
        [("x-api-key", RIGHT[:-1])],
        [("x-api-key", RIGHT + "x")],
        [("x-api-key", f" {RIGHT}")],
        [("x-api-key", RIGHT.upper())],
        [("x-api-key", hashed(RIGHT))],
        [("x-api-key", f"Bearer {RIGHT}")],
        [("x-api-key", "alice")],
        [("x-api-key", "wrong"), ("authorization", f"Bearer {RIGHT}")],
        [("authorization", RIGHT)],
        [("authorization", f"Basic {RIGHT}")],
        [("authorization", "Bearer ")],
        [("authorization", "Bearer")],
        [("proxy-authorization", f"Bearer {RIGHT}")],
        [("cookie", f"x-api-key={RIGHT}")],
        [("x-api-key", "é" * 1000)],
    ],
)
async def test_all_failures_look_the_same(
    upstream: FakeUpstream, tmp_path: Path, headers: list[tuple[str, str]]
) -> None:
    with pytest.raises(Unauthorized):
        door().enter(pairs(*headers), "sample")
    async with keyed(upstream.url, tmp_path, EVERY) as gateway:
        client = gateway.gateway.client
        answer = await client.start("POST", f"{API}/asample", {}, dict(headers)).response()
        none = await client.post(f"{API}/create_session")
        assert same(answer, none)
        assert answer.status == 401
        assert answer.json() == {
            "detail": "send an API key of this gateway as X-API-Key or as a Bearer token"
        }
        # The SDK would look for another key if it said invalid_token.
        assert answer.headers[b"www-authenticate"] == b'Bearer realm="asgi-gateway"'


def same(one: Response, other: Response) -> bool:
    return (one.status, one.headers, one.body) == (other.status, other.headers, other.body)


@pytest.mark.parametrize("name", ["api_key", "key", "x-api-key", "access_token"])
async def test_keys_in_urls_are_not_read(upstream: FakeUpstream, tmp_path: Path, name: str) -> None:
    async with keyed(upstream.url, tmp_path, EVERY) as gateway:
        answer = await gateway.gateway.client.get(f"{API}/sessions?{name}={RIGHT}")
        assert answer.status == 401


async def test_without_keys_everybody_is_the_same(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        one, other = As(gateway, "tml-a"), As(gateway, "tml-b")
        await one.handshake()
        assert gateway.gateway._door is None
        listed = await other.get(f"{API}/sessions")
        assert listed.json()["sessions"] == [one.session_id]
        assert [session.caller for session in gateway.gateway._sessions] == ["default"]


def test_a_request_costs_little() -> None:
    """Less than 2 us on a quiet machine; the best of many short runs, and room for a busy one."""
    usual = [(f"x-stainless-{n}", "value") for n in range(13)]
    scope = pairs(*usual, ("x-api-key", RIGHT), ("a", "b"), ("c", "d"), ("e", "f"))
    entering = door()
    runs = timeit.repeat(lambda: entering.enter(scope, "sample"), number=500, repeat=100)
    assert min(runs) / 500 < 6e-6


def test_clients_that_send_it_in_different_places() -> None:
    entering = door()
    for before in (5, 0, 9, 9, 2, 2, 5):
        usual = [(f"x-{n}", "value") for n in range(before)]
        assert entering.enter(pairs(*usual, ("x-api-key", RIGHT)), "sample").name == "alice"
        assert entering.enter(pairs(*usual, ("authorization", f"Bearer {RIGHT}")), "sample")
        for wrong in ([*usual], [*usual, ("x-api-key", "wrong")], [*usual, ("x-other", RIGHT)]):
            with pytest.raises(Unauthorized):
                entering.enter(pairs(*wrong), "sample")


# --- scopes ---------------------------------------------------------------------------------------


async def routes(gateway: Driven) -> list[tuple[str, str, str]]:
    """Method, path and scope of all routes, those that are refused too."""
    return [
        (served.method or "POST", served.path.replace("{id}", "x"), served.access)
        for served in gateway.gateway._table.served()
    ]


async def test_every_route_asks_for_its_scope(upstream: FakeUpstream, tmp_path: Path) -> None:
    async with keyed(upstream.url, tmp_path, EVERY) as gateway:
        callers = {"sample": "alice", "metrics": "probe", "admin": "root"}
        seen = await routes(gateway.gateway)
        assert len(seen) > 40
        assert {f"{method} {path}" for method, path, needed in seen if needed == "none"} == OPEN
        assert [path for _, path, needed in seen if needed == "metrics"] == ["/metrics"]
        gateway.door.penalty._hold_s = 0.0
        for method, path, needed in seen:
            nobody = await gateway.gateway.client.start(method, path).response()
            assert (nobody.status == 401) == (needed != "none"), path
            for grant, name in callers.items():
                caller = gateway.caller(name)
                answer = await caller.start(method, path).response()
                assert (answer.status == 403) == (needed not in ("none", grant)), (path, name)
                assert answer.status != 401
                if answer.status == 403:
                    text = f"this API key does not have the scope {needed!r}"
                    assert answer.json() == {"detail": text}


async def test_unknown_paths_are_nobodys_either(upstream: FakeUpstream, tmp_path: Path) -> None:
    async with keyed(upstream.url, tmp_path, EVERY) as gateway:
        assert (await gateway.gateway.client.get("/nowhere")).status == 401
        assert (await gateway.caller("probe").get("/nowhere")).status == 403
        answer = await gateway.caller("alice").get("/nowhere")
        assert (answer.status, answer.json()["detail"]) == (404, "no route '/nowhere'")


async def test_an_inner_applications_paths_are_its_own(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    async def inner(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for done in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{done}.complete"})
            return
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": b"inner"})

    async with keyed(upstream.url, tmp_path, EVERY, inner=inner) as gateway:
        client = gateway.gateway.client
        assert (await client.get("/nowhere")).status == 299
        assert (await client.post(f"{API}/create_session")).status == 401


async def test_the_key_comes_before_method_and_body(upstream: FakeUpstream, tmp_path: Path) -> None:
    async with keyed(upstream.url, tmp_path, EVERY) as gateway:
        large = {"content-length": str(1 << 40)}
        client = gateway.gateway.client
        for method in ("GET", "POST", "OPTIONS"):
            answer = await client.start(method, f"{API}/asample", b"x", large).response()
            assert answer.status == 401


# --- wrong keys -----------------------------------------------------------------------------------


def at(address: str | None) -> Scope:
    return {"client": (address, 1) if address is not None else None}


async def held_after(penalty: Penalty, address: str) -> int:
    """How many wrong keys in a row are answered at once."""
    for count in range(FREE * 3):
        task = asyncio.ensure_future(penalty.serve(at(address)))
        await asyncio.sleep(0)
        if penalty.held:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert penalty.held == 0
            return count
        await task
    return FREE * 3


async def test_an_address_that_keeps_trying_is_held() -> None:
    clock = ManualClock()
    penalty = Penalty(clock, hold_s=60)
    assert await held_after(penalty, "10.0.0.1") == FREE
    assert await held_after(penalty, "10.0.0.1") == 0
    assert await held_after(penalty, "10.0.0.2") == FREE, "another address"
    clock.advance(2 / FREE_PER_S)
    assert await held_after(penalty, "10.0.0.1") == 2
    clock.advance(1e6)
    assert await held_after(penalty, "10.0.0.1") == FREE


async def test_no_more_than_so_many_are_held() -> None:
    """The rest is told at once: 401 ends the SDK's tries, while 429 would not."""
    penalty = Penalty(ManualClock(), hold_s=60, max_held=2)
    for _ in range(FREE):
        await penalty.serve(at("10.0.0.1"))
    tasks = [asyncio.ensure_future(penalty.serve(at("10.0.0.1"))) for _ in range(3)]
    await until(tasks[2].done)
    assert (penalty.held, tasks[0].done(), tasks[1].done()) == (2, False, False)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert penalty.held == 0


async def test_the_table_of_addresses_is_bounded() -> None:
    penalty = Penalty(ManualClock(), hold_s=0, max_addresses=3)
    for host in ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.1", "10.0.0.4"):
        await penalty.serve(at(host))
    assert list(penalty._buckets) == ["10.0.0.3", "10.0.0.1", "10.0.0.4"]


@pytest.mark.parametrize(
    ("host", "address"),
    [
        (None, ""),
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("2001:db8:0:1:ffff::9", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("not:an:address", "not:an:address"),
    ],
)
def test_whose_connection_it_is(host: str | None, address: str) -> None:
    assert address_of(at(host)) == address


async def test_a_right_key_is_not_held(upstream: FakeUpstream, tmp_path: Path) -> None:
    async with keyed(upstream.url, tmp_path, EVERY) as gateway:
        gateway.door.penalty._hold_s = 60.0
        wrong = As(gateway.gateway, "tml-wrong")
        for _ in range(FREE):
            assert (await wrong.post("create_session")).status == 401
        parked = wrong.start("POST", f"{API}/create_session", b"{}")
        await until(lambda: gateway.door.penalty.held)
        async with asyncio.timeout(5):
            await gateway.caller("alice").handshake()
            assert (await gateway.gateway.client.get("/livez")).status == 200
        assert not parked.answered
        metrics = (await gateway.caller("probe").get("/metrics")).body
        assert b"asgi_gateway_access_held 1\n" in metrics
        assert b"asgi_gateway_access_unauthorized_total 11\n" in metrics
        parked._task.cancel()
        await asyncio.gather(parked._task, return_exceptions=True)


# --- other keys -----------------------------------------------------------------------------------


async def looked(gateway: Keyed, times: int = 2) -> None:
    for _ in range(times):
        await gateway.gateway.advance(LOOK_EVERY_S)
    await until(lambda: gateway.door._reloading is None)


async def test_a_changed_file_is_taken(upstream: FakeUpstream, tmp_path: Path) -> None:
    """What runs under a key that is gone goes on; its next request is 401."""
    held = Held(upstream)
    async with keyed(upstream.url, tmp_path, EVERY) as gateway:
        alice, bob = gateway.caller("alice"), gateway.caller("bob")
        await alice.handshake()
        request_id = await alice.accepted(0)
        poll = alice.poll(request_id)
        assert (await bob.post("create_session")).status == 401
        gateway.file.write_text(entries({"bob": {}}))
        await looked(gateway)
        assert (await bob.post("create_session")).status == 200
        assert (await alice.post("create_session")).status == 401
        assert not poll.answered
        assert gateway.quota.in_flight("alice") == 1
        held.release()
        assert (await poll.response()).status == 200
        assert (await alice.poll(request_id).response()).status == 401
        assert gateway.quota.in_flight("alice") == 0
        # And comes back with what it had.
        gateway.file.write_text(entries({"alice": {}, "bob": {}}))
        await looked(gateway)
        assert (await alice.poll(request_id).response()).status == 200
        assert gateway.door.reloads == 2


async def test_a_bad_file_changes_nothing(
    upstream: FakeUpstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with keyed(upstream.url, tmp_path, EVERY) as gateway:
        alice = gateway.caller("alice")
        gateway.file.write_text(entries({"bob": {}}) + "[alice]\nsha256 = 'tml-canary'\n")
        await looked(gateway)
        for _ in range(3):
            gateway.gateway.gateway.reload_keys()
            await until(lambda: gateway.door._reloading is None)
        assert (await alice.post("create_session")).status == 200
        assert (await gateway.caller("bob").post("create_session")).status == 401
        assert gateway.door.failed_reloads == 4
        assert gateway.door.reloads == 0
        said = [record.message for record in caplog.records]
        assert len(said) == 1, "once"
        assert "alice" in said[0]
        assert "canary" not in said[0]
        gateway.file.write_text("")
        await looked(gateway)
        gateway.file.unlink()
        await looked(gateway)
        assert (await alice.post("create_session")).status == 200
        gateway.file.write_text(entries({"bob": {}}))
        await looked(gateway)
        assert (await alice.post("create_session")).status == 401


async def test_a_file_that_is_being_written_is_not_read(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    async with keyed(upstream.url, tmp_path, {"alice": {}, "bob": {}}) as gateway:
        whole = entries({"alice": {"max_in_flight": 5}, "bob": {}, "carol": {}})
        gateway.file.write_text(whole[: whole.index("[bob]")])
        await looked(gateway, 1)
        gateway.file.write_text(whole)
        await looked(gateway, 1)
        assert (await gateway.caller("bob").post("create_session")).status == 200
        assert gateway.door.reloads == 0
        await looked(gateway, 1)
        assert gateway.door.reloads == 1
        assert (await gateway.caller("carol").post("create_session")).status == 200


async def test_it_is_looked_at_once_a_second(upstream: FakeUpstream, tmp_path: Path) -> None:
    async with keyed(upstream.url, tmp_path, EVERY) as gateway:
        await gateway.gateway.advance(LOOK_EVERY_S)
        gateway.file.write_text(entries({"bob": {}}))
        for _ in range(9):
            await gateway.gateway.advance(LOOK_EVERY_S / 10)
        assert gateway.door._seen == gateway.door._loaded


async def test_a_change_while_it_is_read_is_read_too(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    async with keyed(upstream.url, tmp_path, EVERY) as gateway:
        gateway.gateway.gateway.reload_keys()
        gateway.gateway.gateway.reload_keys()
        await until(lambda: gateway.door.reloads == 2)


async def test_a_reload_that_fails_in_no_known_way_changes_nothing(
    upstream: FakeUpstream,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(_: AccessSettings) -> None:
        raise OverflowError("tml-canary")

    async with keyed(upstream.url, tmp_path, EVERY) as gateway:
        monkeypatch.setattr("asgi_gateway.access.keys.load", load)
        gateway.gateway.gateway.reload_keys()
        await until(lambda: gateway.door._reloading is None)
        assert gateway.door.failed_reloads == 1
        assert (await gateway.caller("alice").post("create_session")).status == 200
        assert [record.message for record in caplog.records] == [
            "the keys stay as they were: access.keys_file: OverflowError"
        ]


async def test_without_keys_there_is_nothing_to_reload(upstream: FakeUpstream) -> None:
    async with driven(upstream.url) as gateway:
        gateway.gateway.reload_keys()


def test_an_app_without_a_lifespan_is_guarded_too(tmp_path: Path) -> None:
    async def ask() -> Response:
        keys = [f"alice={hashed(RIGHT)}"]
        gateway = Gateway(settings("http://127.0.0.1:1", access__keys=keys))
        answer = await AsgiClient(gateway).post(f"{API}/create_session")
        await gateway.close()
        return answer

    assert asyncio.run(ask()).status == 401
