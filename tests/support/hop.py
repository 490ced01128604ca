"""A hop between client and gateway that writes down what crosses it and loses answers on demand.

Blocking sockets and a thread per connection, so that tests without an event loop can use it. It
understands as much HTTP as its ends speak: one request after the other, bodies with their length.
"""

import contextlib
import select
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

_PIECE = 1 << 16
_API = "/api/v1/"


class Crossed(msgspec.Struct):
    """A request and its answer; `lost` where the client never got it. Times of arrival order."""

    path: str
    body: bytes
    status: int = 0
    answer: bytes = b""
    lost: bool = False

    def asked(self) -> Any:
        return msgspec.json.decode(self.body)

    def told(self) -> Any:
        return msgspec.json.decode(self.answer)


class Hop:
    """`crossed` grows as answers come; a request that is not answered yet has status 0."""

    def __init__(self, to_port: int, listener: socket.socket) -> None:
        self._to_port = to_port
        self._listener = listener
        self._to_lose: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.crossed: list[Crossed] = []
        self.port: int = listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def lose(self, *paths: str, times: int = 1) -> None:
        """Drop the connection instead of the next answers to these paths below /api/v1."""
        with self._lock:
            for path in paths:
                self._to_lose[path] += times

    def of(self, path: str) -> list[Crossed]:
        """What crossed to one path below /api/v1, answered or lost."""
        return [one for one in list(self.crossed) if one.path == path and one.status]

    def accept_for_ever(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def close(self) -> None:
        # A blocked accept() does not notice close(), but does notice shutdown().
        self._listener.shutdown(socket.SHUT_RDWR)
        with self._lock:
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def _serve(self, client: socket.socket) -> None:
        where = ("127.0.0.1", self._to_port)
        with contextlib.suppress(OSError), client, socket.create_connection(where) as gateway:
            with self._lock:
                self._open |= {client, gateway}
            try:
                while self._carry(client, gateway):
                    pass
            finally:
                with self._lock:
                    self._open -= {client, gateway}

    def _carry(self, client: socket.socket, gateway: socket.socket) -> bool:
        """One request and its answer; False where either side has gone."""
        head, body = message(client, client)
        if not head:
            return False
        path = head.split(b" ", 2)[1].decode().removeprefix(_API)
        one = Crossed(path, body)
        self.crossed.append(one)
        gateway.sendall(head + body)
        answer, one.answer = message(gateway, client)
        if not answer:
            return False
        with self._lock:
            one.lost = self._to_lose[path] > 0
            self._to_lose[path] -= one.lost
        one.status = int(answer.split(b" ", 2)[1])
        if one.lost:
            return False
        client.sendall(answer + one.answer)
        return True


def message(source: socket.socket, client: socket.socket) -> tuple[bytes, bytes]:
    """Head and body; empty where the source ended, or the client left meanwhile."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = _piece(source, client)
        if not piece:
            return b"", b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    while len(body) < length:
        piece = _piece(source, client)
        if not piece:
            return b"", b""
        body += piece
    return head + b"\r\n\r\n", body


def _piece(source: socket.socket, client: socket.socket) -> bytes:
    waiting = select.poll()  # for more descriptors than select() takes
    for one in (source, client):
        waiting.register(one, select.POLLIN)
    if source.fileno() in dict(waiting.poll()):
        return source.recv(_PIECE)
    # A client that has sent its request says nothing more before the answer, unless it hangs up.
    return b""


@contextlib.contextmanager
def hop(to_port: int) -> Iterator[Hop]:
    """A hop in front of `to_port`."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        running = Hop(to_port, listener)
        threading.Thread(target=running.accept_for_ever, daemon=True).start()
        try:
            yield running
        finally:
            running.close()
