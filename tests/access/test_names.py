"""Without keys, on this machine alone: names that no page from elsewhere can have are answered."""

import contextlib
import sys
from collections.abc import Iterator

import pytest

from asgi_gateway.access.visited import own_names
from asgi_gateway.configuration import load
from tests.support.keyed import hashed, secret_of
from tests.support.processes import environment, process, serve
from tests.support.raw import Answers, answers, asked, connected, scraped

pytestmark = pytest.mark.servers

NOBODY = "http://127.0.0.1:1"
TARGETS = ("/livez", "/metrics", "/openapi.json", "/api/v1/healthz", "/nowhere")


def get(host: str | None, target: str = "/livez") -> bytes:
    lines = [f"GET {target} HTTP/1.1", *([] if host is None else [f"Host: {host}"])]
    return "\r\n".join([*lines, "", ""]).encode()


def post(host: str, target: str) -> bytes:
    lines = [f"POST {target} HTTP/1.1", f"Host: {host}", "Content-Length: 2", "", "{}"]
    return "\r\n".join(lines).encode()


def is_refused(answer: Answers) -> bool:
    if answer.statuses != [403]:
        return False
    assert b"access.hosts" in answer.got
    assert answer.closed
    return True


def test_a_rebound_name_gets_nothing_of_any_route() -> None:
    with serve(NOBODY) as gateway:
        for host in (
            "evil.example",
            "evil.example:8000",
            "127.0.0.1.evil.example",
            "10.0.0.1.nip.io",
        ):
            for target in TARGETS:
                assert is_refused(asked(gateway.port, get(host, target), most=9)), (host, target)
            for route in ("create_session", "asample", "retrieve_future", "client/config"):
                assert is_refused(asked(gateway.port, post(host, f"/api/v1/{route}"), most=9))
        with connected(gateway.port) as wire:  # in pieces, as a head may come
            data = get("evil.example")
            for at in range(0, len(data), 7):
                wire.sendall(data[at : at + 7])
            assert is_refused(answers(wire))
        for host in (
            "127.0.0.1", "localhost:8000", "LOCALHOST", "[::1]:8000", "192.168.7.9:80",
            "gateway:8000", "box", "app.localhost:3000", "host.docker.internal:8000", "2130706433",
        ):  # fmt: skip
            assert asked(gateway.port, get(host)).statuses == [200], host
        assert asked(gateway.port, b"GET /livez HTTP/1.0\r\n\r\n").statuses == [200]
        count = scraped(gateway.port, "connections_closed_total", reason="foreign_name")
        assert count == 4 * (len(TARGETS) + 4) + 1


def test_names_that_an_operator_gives() -> None:
    with serve(NOBODY, access__hosts="Gateway.Example.org,other.example") as gateway:
        assert asked(gateway.port, get("gateway.example.org:8000")).statuses == [200]
        assert asked(gateway.port, get("other.example")).statuses == [200]
        assert is_refused(asked(gateway.port, get("evil.example"), most=9))
    with serve(NOBODY, access__hosts="*") as gateway:
        assert asked(gateway.port, get("evil.example")).statuses == [200]


@contextlib.contextmanager
def beyond(*arguments: str, **settings: object) -> Iterator[int]:
    """`serve` on all addresses; its port."""
    command = [sys.executable, "-m", "asgi_gateway", "serve", "--port", "0", "--upstream", NOBODY]
    with process([*command, *arguments], environment(**settings)) as started:
        yield int(started.first_line().rsplit(":", 1)[1])


def test_where_it_is_meant_or_keys_are_asked_for_any_name_will_do() -> None:
    with beyond("--host", "0.0.0.0", "--insecure") as port:
        assert asked(port, get("gateway.example.org:8000")).statuses == [200]
    key = f"somebody={hashed(secret_of('somebody'))}"
    with beyond("--host", "127.0.0.1", access__keys=key) as port:
        assert asked(port, get("gateway.example.org:8000")).statuses == [200]


@pytest.mark.parametrize(
    ("flags", "restricted"),
    [
        ({}, True),
        ({"server.host": "::1"}, True),
        ({"server.host": "localhost"}, True),
        ({"server.host": "0.0.0.0", "server.insecure": True}, False),
        ({"server.insecure": True}, False),
        ({"access.hosts": ["*"]}, False),
        ({"access.keys": [f"x={hashed('y' * 20)}"]}, False),
    ],
)
def test_when_names_count(flags: dict[str, object], restricted: bool) -> None:
    settings = load({"upstream.urls": [NOBODY], **flags}, environ={}).settings
    assert (own_names(settings) is not None) == restricted
