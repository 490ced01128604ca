"""One JSON line per HTTP request: what it says, what it never says, and that off is nothing."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asgi_gateway import Gateway
from asgi_gateway.accesslog import MAX_PATH_CHARACTERS, Heard
from asgi_gateway.answering import Answering, LoggedAnswering
from asgi_gateway.asgi import REPLY, Receive, Reply, Scope, Send, send_reply
from asgi_gateway.settings import SettingsError
from tests.fuzz.lines import is_one_line
from tests.support.asgi_client import turns
from tests.support.gateway import SDK_HEADERS, driven, settings
from tests.support.guarded_app import guarded
from tests.support.processes import serve
from tests.support.raw_http import one_answer, request
from tests.support.upstream import FakeUpstream, Raw, Request
from tests.support.waiting import until
from tests.support.wire import Remote
from tests.tracing.test_context import PARENT, TRACE_ID
from tests.training.test_behind import behind

API = "/api/v1"
PATHS = [
    '/x\r\n{"forged":1}',
    "/\x1b[2J\x9b\u2028\u202e\ud800\x00",
    "/" + "y" * 1_000_000,
    f"{API}/samplers/tml-secret_Key-9",
    f"/{'z' * 296}/tml-secret_Key-9",
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "access.jsonl"


def logged(path: Path, share: float = 1.0) -> dict[str, Any]:
    return {"log__access": str(path), "log__access_share": share}


def text_of(path: Path) -> str:
    return path.read_text()


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


async def test_what_a_line_says(upstream: FakeUpstream, path: Path) -> None:
    async with driven(upstream.url, **logged(path)) as gateway:
        reply = await gateway.client.get("/livez?token=canary")
        shown = (await gateway.client.get("/metrics")).body.decode()
        assert "asgi_gateway_log_written_total" in shown
    first, second = lines_of(path)
    assert first.pop("seconds") == 0.0
    assert first == {
        "time": "2023-11-14T22:30:00Z",
        "client": "",
        "method": "GET",
        "path": "/livez",
        "status": 200,
        "response_bytes": len(reply.body),
    }
    assert second["path"] == "/metrics"


async def test_over_a_socket(upstream: FakeUpstream, path: Path) -> None:
    with serve(upstream.url, **logged(path)) as served:
        remote = Remote(served.port)
        await remote.handshake()
        assert (await remote.poll(await remote.submit())).status == 200
        served.process.terminate()
        assert await asyncio.to_thread(served.process.wait) == 0
    lines = lines_of(path)
    assert [line["path"].rpartition("/")[2] for line in lines] == [
        "create_session",
        "create_sampling_session",
        "asample",
        "retrieve_future",
    ]
    assert {line["client"] for line in lines} == {"127.0.0.1"}
    assert {line["status"] for line in lines} == {200}
    assert lines[-1]["seconds"] > 0


async def test_how_long_a_poll_was_held(upstream: FakeUpstream, path: Path) -> None:
    """A poll that is held and then told to try again."""
    never = asyncio.Event()

    async def script(_: Request) -> Raw:
        await never.wait()
        return Raw()

    upstream.script = script
    async with driven(upstream.url, **logged(path)) as gateway:
        await gateway.handshake()
        request_id = (await gateway.submit()).json()["request_id"]
        poll = gateway.poll(request_id)
        await turns()
        await gateway.advance(30)
        assert (await poll.response()).status == 408
    poll_line = lines_of(path)[-1]
    assert (poll_line["status"], poll_line["seconds"]) == (408, 30.0)


async def test_ids_of_the_client(upstream: FakeUpstream, path: Path) -> None:
    async with driven(upstream.url, **logged(path)) as gateway:
        client = gateway.client
        good = {"x-request-id": "abc-1.2:3", "traceparent": PARENT}
        await client.start("GET", "/livez", b"", good).response()
        for bad in ("", "a b", "x" * 129, "a\r\nforged", "\u00e9"):
            headers = {"x-request-id": bad, "traceparent": PARENT[:-1]}
            await client.start("GET", "/livez", b"", headers).response()
    first, *rest = lines_of(path)
    assert (first["client_request_id"], first["trace_id"]) == ("abc-1.2:3", TRACE_ID)
    assert not [one for one in rest if {"client_request_id", "trace_id"} & set(one)]


@pytest.mark.parametrize("number", range(5))
async def test_one_request_is_one_line(upstream: FakeUpstream, path: Path, number: int) -> None:
    async with driven(upstream.url, **logged(path)) as gateway:
        scope_path = gateway.client.start("GET", "/", b"", SDK_HEADERS)
        await scope_path.response()
        await raw(gateway.gateway, PATHS[number])
    text = text_of(path)
    assert text.count("\n") == len(text.splitlines()) == 2
    line = text.splitlines()[1]
    assert is_one_line(line)
    assert len(line) < 2 * MAX_PATH_CHARACTERS + 200
    assert "secret" not in line
    assert msgspec.json.decode(line)["status"] == 404


async def raw(gateway: Gateway, path: str) -> None:
    """A request whose path no client of a test would write."""
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"key=canary",
        "headers": [],
        "client": ("::1", 5),
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        pass

    await gateway(scope, receive, send)


async def test_a_share_of_what_went_well_and_all_that_did_not(
    upstream: FakeUpstream, path: Path
) -> None:
    """Of each kind of request, also where they come by turns."""
    async with driven(upstream.url, **logged(path, 0.25)) as gateway:
        for _ in range(200):
            await gateway.client.get("/livez")
            await gateway.client.get(f"{API}/healthz")
        for _ in range(3):
            await gateway.client.get("/nowhere")
            await gateway.client.post("/livez")
            await gateway.client.post(f"{API}/asample", b"{")
    lines = lines_of(path)
    well = [line for line in lines if line["status"] == 200]
    for asked in ("/livez", f"{API}/healthz"):
        # 50 are expected of each; so far off is one run in a million.
        assert 20 <= [line["path"] for line in well].count(asked) <= 80
    statuses = [line["status"] for line in lines if line["status"] != 200]
    assert sorted(statuses) == [400] * 3 + [404] * 3 + [405] * 3
    assert all("seconds" in line for line in well)
    assert all(line["response_bytes"] > 10 for line in lines)


async def test_a_refusal_of_the_share_has_one_line(upstream: FakeUpstream, path: Path) -> None:
    async with driven(upstream.url, **logged(path)) as gateway:
        await gateway.client.post("/livez")
        await gateway.client.get("/nowhere")
    assert [line["status"] for line in lines_of(path)] == [405, 404]


@pytest.mark.parametrize("how", ["url", "embedded"])
async def test_what_a_trainer_answers_has_one_line_too(
    upstream: FakeUpstream, path: Path, how: str
) -> None:
    async with behind(upstream, how, **logged(path)) as both:
        await both.run()
        assert (await both.get("nowhere/at/all")).status == 404
    lines = lines_of(path)
    paths = [line["path"].removeprefix(f"{API}/") for line in lines]
    assert paths == ["create_session", "create_sampling_session", "create_model", "nowhere/at/all"]
    assert [line["status"] for line in lines] == [200, 200, 200, 404]
    assert all(line["response_bytes"] for line in lines)


async def test_both_logs_in_one_file(upstream: FakeUpstream, path: Path) -> None:
    async with driven(upstream.url, **logged(path), log__samples=str(path)) as gateway:
        await gateway.handshake()
        request_id = (await gateway.submit()).json()["request_id"]
        assert (await gateway.poll(request_id).response()).status == 200
    kinds = ["sample" if "outcome" in line else "request" for line in lines_of(path)]
    assert sorted(kinds) == ["request"] * 4 + ["sample"]


def test_off_is_nothing(path: Path) -> None:
    """Not a branch: the other class answers."""
    off = Gateway(settings("http://127.0.0.1:9"))
    assert type(off._answering) is Answering
    assert off._outputs.access is None
    on = Gateway(settings("http://127.0.0.1:9", **logged(path)))
    assert type(on._answering) is LoggedAnswering


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    absent = tmp_path / "absent" / "access.jsonl"
    with pytest.raises(SettingsError, match=r"log\.access: cannot append to .*absent"):
        Gateway(settings("http://127.0.0.1:9", log__access=str(absent)))


async def test_the_share_changes_while_it_runs(upstream: FakeUpstream, path: Path) -> None:
    async with driven(upstream.url, **logged(path, 0.0)) as gateway:
        await gateway.client.get("/livez")
        assert await gateway.gateway.reload(settings(upstream.url, **logged(path))) == (
            "log.access_share",
        )
        await gateway.client.get("/readyz")
    assert [line["path"] for line in lines_of(path)] == ["/readyz"]


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_client_that_left_before_its_answer_has_no_status(at_once: bool) -> None:
    """The handler answers all the same, and the server drops it."""
    lines: list[tuple[int, int]] = []
    waiting: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        heard = Heard(scope, send, 0.0)
        await receive()
        if scope["path"] == "/held":
            waiting.append("here")
            await receive()
        reply = Reply(408, b"not yet")
        if not at_once or not scope["extensions"][REPLY](reply):
            await send_reply(heard, reply)
        lines.append((heard.status, heard.nbytes))

    async with guarded(app) as server:
        reader, writer = await server.connect()
        writer.write(request())
        await one_answer(reader)
        writer.write(request(target=b"/held"))
        await until(lambda: bool(waiting))
        writer.close()
        await until(lambda: len(lines) == 2)
    assert lines == [(408, len(b"not yet")), (0, 0)]
