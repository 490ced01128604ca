"""A listener that nobody may ever speak to."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator


class Trap:
    """Listens on both loopbacks where there are two; `hits` counts the connections."""

    def __init__(self) -> None:
        self.hits = 0
        self.port = 0

    async def _caught(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.hits += 1
        writer.close()


@contextlib.asynccontextmanager
async def trap() -> AsyncIterator[Trap]:
    caught = Trap()
    server = await asyncio.start_server(caught._caught, "127.0.0.1", 0)
    caught.port = server.sockets[0].getsockname()[1]
    servers = [server]
    if socket.has_ipv6:
        with contextlib.suppress(OSError):
            servers.append(await asyncio.start_server(caught._caught, "::1", caught.port))
    try:
        yield caught
    finally:
        for one in servers:
            one.close()


def hostile_urls(port: int) -> list[str]:
    """All of them lead, in some reading, to the trap or to a file."""
    loopbacks = (
        *("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "0.0.0.0"),
        *("2130706433", "0x7f000001", "017700000001", "127.1", "0", "127.0.1", "0x7f.1"),
        *("127.0.0.1.", "LOCALHOST", "%31%32%37.0.0.1", "\u2460\u2461\u2466.0.0.1", "[::]"),
        *("user:pass@127.0.0.1", "huggingface.co@127.0.0.1", "127.0.0.1\\@huggingface.co"),
    )
    urls = [f"http://{host}:{port}/x" for host in loopbacks]
    urls += [
        f"https://127.0.0.1:{port}/x",
        f"//127.0.0.1:{port}/x",
        f"/\\127.0.0.1:{port}/x",
        f"http:127.0.0.1:{port}/x",
        f"http:/127.0.0.1:{port}/x",
        f" http://127.0.0.1:{port}/x",
        f"http://127.0.0.1:{port}#@huggingface.co/x",
        f"http://huggingface.co#@127.0.0.1:{port}/x",
        f"ftp://127.0.0.1:{port}/x",
        f"gopher://127.0.0.1:{port}/_GET%20/",
        f"dict://127.0.0.1:{port}/x",
        f"ldap://127.0.0.1:{port}/x",
        f"jar:http://127.0.0.1:{port}/x!/",
        f"tinker://127.0.0.1:{port}/weights/x",
        f"tinker://[::1]:{port}/weights/x",
        f"tinker://a@127.0.0.1:{port}/weights/x",
        f"tinker://run/weights/http://127.0.0.1:{port}",
        f"tinker://run/weights/x?url=http://127.0.0.1:{port}",
        f"tinker://run/weights/x\r\nHost: 127.0.0.1:{port}",
        f"s3://127.0.0.1:{port}/x",
        f"gs://x@127.0.0.1:{port}",
        f"unix:/run/x.sock:http://127.0.0.1:{port}",
        f"data:text/plain,http://127.0.0.1:{port}",
        "file:///etc/passwd",
        "file://localhost/etc/passwd",
        "file:/etc/passwd",
        "/etc/passwd",
        "../../../../etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "tinker://run/weights/../../etc/passwd",
        "tinker://../weights/passwd",
    ]
    return urls
