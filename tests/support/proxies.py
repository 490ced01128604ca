"""The real nginx and HAProxy with the configurations that we ship, in front of gateways.

Changed in them are addresses, the certificate, and how many connections they may have.
"""

import asyncio
import contextlib
import csv
import functools
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path

import httpx
import msgspec

from tests.support.certificate import self_signed
from tests.support.processes import Process, free_port, process
from tests.support.shipped import FOLDER
from tests.support.wire import SDK_HEADERS, Wire

HOST = "gateway.test"
NAMES = ("nginx", "haproxy")


class Place(msgspec.Struct, kw_only=True):
    """What a proxy is told. gateways: host:port of each. prefix: before its command.

    plain: a port that speaks HTTP without TLS as well, for clients that have none; 0 for none.
    """

    folder: Path
    gateways: Sequence[str]
    port: int
    host: str = "127.0.0.1"
    plain: int = 0
    certificate: Path
    key: Path
    changes: Mapping[str, str] = {}
    prefix: Sequence[str] = ()


class Proxy:
    """One of the two, on a port, with a certificate for HOST."""

    def __init__(self, name: str, place: Place, trusted: ssl.SSLContext, process: Process) -> None:
        self.name = name
        self.folder = place.folder
        self.host = place.host
        self.port = place.port
        self.plain = place.plain
        self.trusted = trusted
        self.process = process

    @contextlib.asynccontextmanager
    async def wire(self) -> AsyncIterator[Wire]:
        """A connection that speaks HTTP/1.1 inside TLS."""
        reader, writer = await asyncio.open_connection(
            self.host, self.port, ssl=self.trusted, server_hostname=HOST
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
            base_url=f"https://{self.host}:{self.port}",
            headers={"Host": HOST, **SDK_HEADERS},
            timeout=30,
            event_hooks={"request": [_named]},
        )

    def status(self, server: str, backend: str = "ready") -> str:
        """What HAProxy thinks of a server: UP, NOLB, DOWN and so on; empty before it was asked."""
        row = self.figures(backend, server)
        return "" if "INI" in row["check_status"] else row["status"].split(" ")[0]

    def figures(self, backend: str, server: str) -> dict[str, str]:
        """A row of HAProxy's statistics."""
        with socket.socket(socket.AF_UNIX) as asked:
            asked.connect(str(self.folder / "stats"))
            asked.sendall(b"show stat\n")
            text = b"".join(iter(lambda: asked.recv(65536), b"")).decode()
        rows = csv.DictReader(text.removeprefix("# ").splitlines())
        (row,) = [row for row in rows if (row["pxname"], row["svname"]) == (backend, server)]
        return row


async def _named(request: httpx.Request) -> None:
    """The name that the certificate is for, which is not the address."""
    request.extensions = {**request.extensions, "sni_hostname": HOST}


@contextlib.contextmanager
def proxy(
    name: str,
    folder: Path,
    gateways: Sequence[str],
    *,
    plain: bool = False,
    changes: Mapping[str, str] | None = None,
    host: str = "127.0.0.1",
    prefix: Sequence[str] = (),
) -> Iterator[Proxy]:
    """The shipped configuration for so many gateways, with `changes` of its text besides."""
    certificate, key = self_signed(folder, HOST)
    place = Place(
        folder=folder,
        gateways=gateways,
        port=free_port(),
        host=host,
        plain=free_port() if plain else 0,
        certificate=certificate,
        key=key,
        changes=changes or {},
        prefix=prefix,
    )
    with process([*prefix, *_COMMANDS[name](place)]) as started:
        started.wait_for(functools.partial(_listens, host, place.port), "listener")
        trusted = ssl.create_default_context(cafile=str(certificate))
        yield Proxy(name, place, trusted, started)


def changed(name: str, changes: Mapping[str, str], *, times: int = 1) -> str:
    """A configuration with some of its text replaced, each found exactly so often."""
    return _replaced(name, (FOLDER / name).read_text(), changes, times)


def _replaced(name: str, text: str, changes: Mapping[str, str], times: int) -> str:
    for old, new in changes.items():
        assert text.count(old) == times, (name, old)
        text = text.replace(old, new)
    return text


def _nginx(place: Place) -> list[str]:
    folder, at = place.folder, f"listen {place.host}"
    plain = f"\n        {at}:{place.plain};" if place.plain else ""
    changes = {
        "user www-data;\n": "user root;\ndaemon off;\n",
        "worker_processes auto;": "worker_processes 1;",
        "worker_rlimit_nofile 300000;\n": "",
        "worker_connections 131072;": "worker_connections 2048;",
        "/run/nginx.pid": f"{folder}/nginx.pid",
        "/var/log/nginx/error.log": f"{folder}/error.log",
        **_addresses(place, "server "),
        "listen 443 ssl http2 backlog=65535;": f"{at}:{place.port} ssl http2;{plain}",
        "/etc/nginx/tls/gateway.crt": str(place.certificate),
        "/etc/nginx/tls/gateway.key": str(place.key),
        "    access_log off;": f"    access_log off;\n    client_body_temp_path {folder}/body;\n"
        + "".join(
            f"    {n}_temp_path {folder}/{n};\n" for n in ("proxy", "fastcgi", "uwsgi", "scgi")
        ),
        **place.changes,
    }
    config = folder / "nginx.conf"
    config.write_text(changed(_file("nginx", ".conf", place), changes))
    return ["nginx", "-e", f"{folder}/error.log", "-p", str(folder), "-c", str(config)]


def _haproxy(place: Place) -> list[str]:
    folder, name = place.folder, _file("haproxy", ".cfg", place)
    both = folder / "both.pem"
    both.write_text(place.certificate.read_text() + place.key.read_text())
    plain = f"\n    bind {place.host}:{place.plain}" if place.plain else ""
    bind = "bind :443 ssl crt /etc/haproxy/gateway.pem alpn h2,http/1.1 backlog 65535"
    inside = f"    maxconn 2048\n    nbthread 1\n    stats socket {folder}/stats\n"
    changes = {
        "    maxconn 131072\n": inside,
        bind: f"bind {place.host}:{place.port} ssl crt {both} alpn h2,http/1.1{plain}",
        **place.changes,
    }
    text = changed(name, changes)
    # Of several each stands in both backends.
    times = 1 if len(place.gateways) == 1 else 2
    config = folder / "haproxy.cfg"
    config.write_text(_replaced(name, text, _addresses(place, ""), times))
    return ["haproxy", "-db", "-f", str(config)]


def _file(name: str, suffix: str, place: Place) -> str:
    return f"{name}{'-several' if len(place.gateways) > 1 else ''}{suffix}"


def _addresses(place: Place, before: str) -> dict[str, str]:
    """Those of the shipped file -> of the test."""
    shipped = ["10.80.0.11:8000", "10.80.0.12:8000"]
    if len(place.gateways) == 1:
        shipped = ["127.0.0.1:8000"]
    pairs = zip(shipped, place.gateways, strict=True)
    return {f"{before}{old}": f"{before}{new}" for old, new in pairs}


_COMMANDS: dict[str, Callable[[Place], list[str]]] = {"nginx": _nginx, "haproxy": _haproxy}


def _listens(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
        return True
    return False
