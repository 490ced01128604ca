"""Hostile clients before the real `serve`: bodies over their caps, compressed, slow sockets."""

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from tests.support.processes import Served, serve
from tests.support.raw import answers, asked, connected, get, scraped

pytestmark = pytest.mark.servers

CAP = 2000
MIB = 1 << 20


@pytest.fixture(scope="module")
def gateway() -> Iterator[Served]:
    caps = {
        "limits__body_bytes": CAP,
        "limits__asample_body_bytes": CAP,
        "limits__retrieve_futures_body_bytes": CAP,
        "limits__telemetry_body_bytes": CAP,
    }
    with serve("http://127.0.0.1:9", limits__header_s=1, limits__body_idle_s=1, **caps) as served:
        yield served


ROUTES = (
    *("asample", "retrieve_future", "retrieve_futures", "cancel_future", "join_sampling_session"),
    *("session_heartbeat", "telemetry", "client/config", "client/dynamic_config"),
    *("create_session", "create_sampling_session", "weights_info", "sessions/x/finish"),
)


def head(route: str, *headers: str) -> bytes:
    lines = [f"POST /api/v1/{route} HTTP/1.1", "Host: gateway", *headers, "", ""]
    return "\r\n".join(lines).encode()


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_a_body_at_its_cap(gateway: Served, route: str, chunked: bool) -> None:
    for size, refused in ((CAP - 1, False), (CAP, False), (CAP + 1, True)):
        body = b"[" * size
        if chunked:
            sent = head(route, "Transfer-Encoding: chunked")
            sent += b"%x\r\n%b\r\n0\r\n\r\n" % (size, body)
        else:
            sent = head(route, f"Content-Length: {size}") + body
        answer = asked(gateway.port, sent, most=9 if refused else 1)
        assert (answer.statuses == [413]) is refused, answer.got
        assert answer.closed is refused


def test_a_client_that_waits_for_100_continue_is_told_before_it_sends(gateway: Served) -> None:
    expect = "Expect: 100-continue"
    answer = asked(gateway.port, head("asample", f"Content-Length: {CAP + 1}", expect), most=9)
    assert answer.statuses == [413]
    with connected(gateway.port) as wire:
        wire.sendall(head("telemetry", f"Content-Length: {CAP}", expect))
        assert wire.recv(1000).startswith(b"HTTP/1.1 100 ")
        wire.sendall(bytes(CAP))
        assert answers(wire, 1).statuses == [200]


def test_what_follows_a_413_is_not_kept(gateway: Served) -> None:
    """64 MiB behind it, on three connections."""
    before = resident_bytes(gateway.process.pid)
    for _ in range(3):
        with connected(gateway.port) as wire:
            wire.sendall(head("asample", "Transfer-Encoding: chunked"))
            with contextlib.suppress(ConnectionError):
                for _ in range(64):
                    wire.sendall(b"100000\r\n" + bytes(MIB) + b"\r\n")
            assert answers(wire).statuses == [413]
    assert resident_bytes(gateway.process.pid) - before < 16 * MIB


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_bomb_is_not_unpacked(gateway: Served, route: str, encoding: str) -> None:
    before = resident_bytes(gateway.process.pid)
    # 30 bytes that stand for gigabytes would do; none of them is looked at.
    sent = head(route, f"Content-Encoding: {encoding}", "Content-Length: 30") + bytes(30)
    answer = asked(gateway.port, sent, most=9)
    assert answer.statuses == [415]
    assert resident_bytes(gateway.process.pid) - before < 4 * MIB


def test_deep_nesting_is_400() -> None:
    nested = b'{"a":' * 6000 + b"[" * 6000
    with serve("http://127.0.0.1:9") as gateway:
        for route in ROUTES:
            body = b'{"user_metadata":' + nested
            sent = head(route, f"Content-Length: {len(body)}") + body
            # Telemetry is not decoded.
            expected = 200 if route == "telemetry" else 400
            assert asked(gateway.port, sent).statuses == [expected], route


# --- slow sockets -------------------------------------------------------------------------------


def median_ms(port: int, requests: int) -> float:
    taken = []
    with connected(port) as wire:
        for _ in range(requests):
            started = time.perf_counter()
            wire.sendall(get())
            assert answers(wire, 1).statuses == [200]
            taken.append(time.perf_counter() - started)
    return sorted(taken)[requests // 2] * 1000


def test_hundreds_of_slow_sockets_are_shaken_off(gateway: Served) -> None:
    """Heads and bodies that never end, while others are served."""
    reasons = ("header_timeout", "body_timeout")
    before = {why: scraped(gateway.port, "connections_closed_total", reason=why) for why in reasons}
    slow: list[socket.socket] = []
    try:
        for n in range(500):
            wire = connected(gateway.port)
            wire.sendall(head("telemetry", "Content-Length: 1000") if n % 2 else b"GET / HT")
            slow.append(wire)
        assert scraped(gateway.port, "connections") > 400
        assert median_ms(gateway.port, 200) < 100
        for wire in slow:
            assert answers(wire).statuses == [408]
    finally:
        for wire in slow:
            wire.close()
    for why in reasons:
        now = scraped(gateway.port, "connections_closed_total", reason=why)
        assert now - before[why] == 250
