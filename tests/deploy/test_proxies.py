"""The real nginx and HAProxy with the configurations that we ship, in front of a real `serve`.

Changed in them are addresses, the certificate, and how many connections they may have.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.certificate import self_signed
from tests.support.processes import Process, Served, free_port, process, serve
from tests.support.shipped import FOLDER
from tests.support.upstream import FakeUpstream, Raw, Request
from tests.support.wire import SDK_HEADERS, Remote, Wire, poll

pytestmark = [pytest.mark.system, pytest.mark.servers]

HOST = "gateway.test"
# Above what the proxies would wait by themselves for a step of a connection, 5 s.
HELD_S = 8.0


class Proxy:
    """One of the two, on a port, with a certificate for HOST."""

    def __init__(self, name: str, port: int, trusted: ssl.SSLContext, process: Process) -> None:
        self.name = name
        self.port = port
        self.trusted = trusted
        self.process = process

    @contextlib.asynccontextmanager
    async def wire(self) -> AsyncIterator[Wire]:
        """A connection that speaks HTTP/1.1 inside TLS."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self.trusted, server_hostname=HOST
        )
        opened = Wire(reader, writer)
        try:
            yield opened
        finally:
            opened.hang_up()

    def client(self) -> httpx.AsyncClient:
        """One that agrees on HTTP/2, as the SDK does wherever there is TLS."""
        return httpx.AsyncClient(
            http2=True,
            verify=self.trusted,
            base_url=f"https://127.0.0.1:{self.port}",
            headers={"Host": HOST, **SDK_HEADERS},
            timeout=30,
            event_hooks={"request": [named]},
        )


async def named(request: httpx.Request) -> None:
    """The name that the certificate is for, which is not the address."""
    request.extensions = {**request.extensions, "sni_hostname": HOST}


def changed(name: str, changes: dict[str, str]) -> str:
    """A configuration with some of its text replaced, each found exactly once."""
    text = (FOLDER / name).read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, (name, old)
        text = text.replace(old, new)
    return text


def nginx(folder: Path, gateway: int, port: int, certificate: Path, key: Path) -> list[str]:
    changes = {
        "user www-data;\n": "user root;\ndaemon off;\n",
        "worker_processes auto;": "worker_processes 1;",
        "worker_rlimit_nofile 300000;\n": "",
        "worker_connections 131072;": "worker_connections 512;",
        "/run/nginx.pid": f"{folder}/nginx.pid",
        "/var/log/nginx/error.log": f"{folder}/error.log",
        "server 127.0.0.1:8000;": f"server 127.0.0.1:{gateway};",
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "/etc/nginx/tls/gateway.crt": str(certificate),
        "/etc/nginx/tls/gateway.key": str(key),
        "    access_log off;": f"    access_log off;\n    client_body_temp_path {folder}/body;\n"
        + "".join(
            f"    {n}_temp_path {folder}/{n};\n" for n in ("proxy", "fastcgi", "uwsgi", "scgi")
        ),
    }
    config = folder / "nginx.conf"
    config.write_text(changed("nginx.conf", changes))
    return ["nginx", "-e", f"{folder}/error.log", "-p", str(folder), "-c", str(config)]


def haproxy(folder: Path, gateway: int, port: int, certificate: Path, key: Path) -> list[str]:
    both = folder / "both.pem"
    both.write_text(certificate.read_text() + key.read_text())
    changes = {
        "    maxconn 131072\n": "    maxconn 512\n    nbthread 1\n",
        "127.0.0.1:8000": f"127.0.0.1:{gateway}",
        "bind :443 ssl crt /etc/haproxy/gateway.pem": f"bind 127.0.0.1:{port} ssl crt {both}",
    }
    config = folder / "haproxy.cfg"
    config.write_text(changed("haproxy.cfg", changes))
    return ["haproxy", "-db", "-f", str(config)]


PROXIES = {"nginx": nginx, "haproxy": haproxy}


class Behind:
    """A gateway, the proxy before it and the upstream behind it."""

    def __init__(self, gateway: Served, proxy: Proxy, upstream: FakeUpstream) -> None:
        self.gateway = gateway
        self.proxy = proxy
        self.upstream = upstream
        self.remote = Remote(gateway.port)


@pytest.fixture(params=list(PROXIES))
def behind(
    request: pytest.FixtureRequest, upstream: FakeUpstream, tmp_path: Path
) -> Iterator[Behind]:
    certificate, key = self_signed(tmp_path, HOST)
    trusted = ssl.create_default_context(cafile=str(certificate))
    given = {"poll__hold_s": HELD_S, "state__dir": tmp_path / "state", "access__hosts": HOST}
    with serve(upstream.url, **given) as gateway:
        port = free_port()
        command = PROXIES[request.param](tmp_path, gateway.port, port, certificate, key)
        with process(command) as started:
            started.wait_for(lambda: listens(port), "listener")
            yield Behind(gateway, Proxy(request.param, port, trusted, started), upstream)


def listens(port: int) -> bool:

    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


async def silent(request: Request) -> Raw:
    """An upstream that never answers."""
    await asyncio.Event().wait()
    return Raw()


async def test_a_sample_over_http_2(behind: Behind) -> None:
    """And fifty at once over that one connection, whose answers are what they are without it."""
    await behind.remote.handshake()
    async with behind.proxy.client() as client:

        async def sample(tokens: list[int]) -> bytes:
            body = behind.remote.sample(tokens)
            accepted = await client.post("/api/v1/asample", json=body)
            assert (accepted.status_code, accepted.http_version) == (200, "HTTP/2"), accepted.text
            asked, headers = poll(accepted.json()["request_id"])
            answer = await client.post("/api/v1/retrieve_future", json=asked, headers=headers)
            assert answer.status_code == 200, answer.text
            direct = await behind.remote.poll(asked["request_id"])
            assert direct.body == answer.content
            return answer.content

        await asyncio.gather(*(sample([n, n + 1]) for n in range(50)))


async def test_a_poll_that_is_held_survives(behind: Behind) -> None:
    """Its answer is the gateway's, whole, and the result comes by the next one."""
    release = asyncio.Event()
    answer = behind.upstream.script

    async def script(request: Request) -> Raw:
        await release.wait()
        return await answer(request)

    behind.upstream.script = script
    await behind.remote.handshake()
    request_id = await behind.remote.submit()
    async with behind.proxy.wire() as connection:
        began = asyncio.get_running_loop().time()
        behind.remote.send_poll(connection, request_id)
        held = await connection.read()
        assert held.status == 408, held.body
        assert held.json()["type"] == "try_again"
        assert held.json()["request_id"] == request_id
        assert asyncio.get_running_loop().time() - began >= HELD_S - 1
        behind.remote.send_poll(connection, request_id)  # the connection is good for another
        await behind.remote.polls_parked(1)
        release.set()
        assert (await connection.read()).status == 200


async def test_a_client_that_hangs_up_is_seen(behind: Behind) -> None:
    """Long before its hold ends; else its result would count as delivered."""
    behind.upstream.script = silent
    await behind.remote.handshake()
    request_id = await behind.remote.submit()
    async with behind.proxy.wire() as connection:
        behind.remote.send_poll(connection, request_id)
        await behind.remote.polls_parked(1)
        connection.hang_up(reset=True)
        await behind.remote.polls_parked(0, within_s=HELD_S / 2)
    async with behind.proxy.client() as client:
        asked, headers = poll(request_id)
        polling = asyncio.create_task(
            client.post("/api/v1/retrieve_future", json=asked, headers=headers)
        )
        await behind.remote.polls_parked(1)
        polling.cancel()
    await behind.remote.polls_parked(0, within_s=HELD_S / 2)


async def test_a_large_prompt_passes(behind: Behind) -> None:
    """Above every buffer of a proxy, below the gateway's own limit."""
    await behind.remote.handshake()
    body = behind.remote.sample([123_456] * 60_000)
    async with behind.proxy.wire() as connection:
        accepted = await connection.ask("POST", "/api/v1/asample", body, SDK_HEADERS)
        assert accepted.status == 200, accepted.body
    assert (await behind.remote.poll(accepted.json()["request_id"])).status == 200


@pytest.mark.parametrize("path", ["/metrics", "/admin", "/admin/state"])
async def test_what_is_not_for_clients(behind: Behind, path: str) -> None:
    async with behind.proxy.wire() as connection:
        assert (await connection.ask("GET", path)).status == 404
        assert b"asgi_gateway_" not in (await connection.ask("GET", path)).body


async def test_a_restart_behind_it(behind: Behind, tmp_path: Path) -> None:
    """A parked poll gets the gateway's answer, not the proxy's.

    What comes while there is no gateway waits in HAProxy for the next one; nginx refuses it.
    """
    behind.upstream.script = silent
    await behind.remote.handshake()
    request_id = await behind.remote.submit()
    async with behind.proxy.wire() as connection:
        behind.remote.send_poll(connection, request_id)
        await behind.remote.polls_parked(1)
        behind.gateway.process.terminate()
        behind.gateway.process.terminate()  # the second one does not wait for what is running
        answer = await connection.read()
        # Try again, or gone: either makes the SDK go on by itself. A proxy's own would be 502.
        assert answer.status in (408, 410), answer.body
        assert await asyncio.to_thread(behind.gateway.process.wait) == 0
    async with behind.proxy.wire() as connection:
        behind.remote.send_poll(connection, request_id)
        answered = asyncio.create_task(connection.read())
        if behind.proxy.name == "nginx":
            assert (await answered).status == 502
        port = str(behind.gateway.port)
        with serve(behind.upstream.url, "--port", port, state__dir=tmp_path / "state"):
            if behind.proxy.name == "nginx":
                behind.remote.send_poll(connection, request_id)
                answered = asyncio.create_task(connection.read())
            assert (await answered).status == 410
