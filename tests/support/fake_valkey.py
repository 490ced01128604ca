"""A server that speaks the protocol and says what a test wants, in the test's own loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

HELLO = {"server": "redis", "version": "7.2.0", "mode": "standalone", "role": "master"}


def hello(**fields: str) -> bytes:
    """The answer to HELLO, with other fields than those of a server that is all right."""
    pairs = {**HELLO, **fields}
    words = [word for pair in pairs.items() for word in pair]
    return b"*%d\r\n" % len(words) + b"".join(map(bulk, words))


def bulk(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return b"$%d\r\n%b\r\n" % (len(data), data)


class FakeValkey:
    """answers: name of a command -> what is sent for it, or a function of it that gives that;
    empty bytes send nothing, None closes. Commands without an entry are answered with OK.

    commands: what came, without handshakes and pings. reads: how many pieces it came in.
    """

    def __init__(self) -> None:
        self.port = 0
        self.answers: dict[str, bytes | Callable[[list[bytes]], bytes | None] | None] = {}
        self.commands: list[list[bytes]] = []
        self.pings = 0
        self.reads = 0
        self.connections = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._heard = asyncio.Event()
        self._heard.set()

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self.port}"

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["FakeValkey"]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, limit=4096)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.hang_up()
            self._heard.set()
            await asyncio.sleep(0)

    def say(self, data: bytes) -> None:
        """To all who are connected."""
        for writer in self._writers:
            writer.write(data)

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def stop_reading(self) -> None:
        self._heard.clear()

    def read_again(self) -> None:
        self._heard.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        rest = b""
        try:
            while True:
                await self._heard.wait()
                data = await reader.read(1 << 16)
                if not data:
                    return
                self.reads += 1
                commands, rest = commands_of(rest + data)
                for command in commands:
                    if not self._answer(command, writer):
                        return
        except ConnectionError:
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    def _answer(self, command: list[bytes], writer: asyncio.StreamWriter) -> bool:
        name = command[0].decode().upper()
        if name == "PING":
            self.pings += 1
        elif name not in ("HELLO", "SELECT"):
            self.commands.append(command)
        default = {"HELLO": hello(), "PING": b"+PONG\r\n"}.get(name, b"+OK\r\n")
        answer = self.answers.get(name, default)
        said = answer(command) if callable(answer) else answer
        if said is None or writer.transport.is_closing():
            return False
        writer.write(said)
        return True


def commands_of(data: bytes) -> tuple[list[list[bytes]], bytes]:
    """Whole commands, and what is left."""
    commands = []
    while (found := _command(data)) is not None:
        command, data = found
        commands.append(command)
    return commands, data


def _command(data: bytes) -> tuple[list[bytes], bytes] | None:
    head, separator, rest = data.partition(b"\r\n")
    if not separator:
        return None
    assert head[:1] == b"*", head
    words = []
    for _ in range(int(head[1:])):
        size, separator, rest = rest.partition(b"\r\n")
        if not separator or len(rest) < int(size[1:]) + 2:
            return None
        assert size[:1] == b"$", size
        word, rest = rest[: int(size[1:])], rest[int(size[1:]) :]
        assert rest[:2] == b"\r\n", rest[:10]
        words.append(word)
        rest = rest[2:]
    return words, rest
