"""A proxy before two gateways that gives each request to the other one than the request before.

Polls and cancels of a sample never land on the gateway that accepted it. Threads and blocking
sockets, as the hop's; of HTTP it understands as much as its ends speak.
"""

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from urllib.request import urlopen

import msgspec

from tests.support.hop import message

_API = "/api/v1/"
_OF_ONE_SAMPLE = ("retrieve_future", "cancel_future")


class Front:
    """log: a line per answer, as uvicorn writes its access log. landed: (path, gateway) -> how
    many."""

    def __init__(self, ports: Sequence[int], listener: socket.socket) -> None:
        self.ports = list(ports)
        self.log = ""
        self.landed: Counter[tuple[str, int]] = Counter()
        self._listener = listener
        self._lock = threading.Lock()
        self._turn = 0
        self._accepted_by: dict[str, int] = {}
        self._open: set[socket.socket] = set()
        self.port: int = listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

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

    # --- where to ---------------------------------------------------------------------------------

    def _choice(self, path: str, body: bytes) -> int:
        with self._lock:
            if path in _OF_ONE_SAMPLE:
                accepted_by = self._accepted_by.get(_request_id(body))
                if accepted_by is not None:
                    return 1 - accepted_by
            self._turn = 1 - self._turn
            return self._turn

    def _answered(self, method: str, path: str, where: int, status: int, answer: bytes) -> None:
        with self._lock:
            self.log += f'"{method} {_API}{path} HTTP/1.1" {status}\n'
            self.landed[path, where] += 1
            if path == "asample" and status == 200:
                self._accepted_by[_request_id(answer)] = where

    # --- connections ------------------------------------------------------------------------------

    def _serve(self, client: socket.socket) -> None:
        gateways: dict[int, socket.socket] = {}
        with self._lock:
            self._open.add(client)
        try:
            with contextlib.suppress(OSError), client:
                while self._carry(client, gateways):
                    pass
        finally:
            for gateway in gateways.values():
                gateway.close()
            with self._lock:
                self._open.discard(client)

    def _carry(self, client: socket.socket, gateways: dict[int, socket.socket]) -> bool:
        """One request and its answer; False where the connection is over."""
        head, body = message(client, client)
        if not head:
            return False
        method, target, _ = head.split(b" ", 2)
        path = target.decode().removeprefix(_API)
        if path == "/metrics":
            client.sendall(self._metrics())
            return True
        where = self._choice(path, body)
        where, answer, told = self._asked(where, head + body, client, gateways)
        if not answer:
            return False
        self._answered(method.decode(), path, where, int(answer.split(b" ", 2)[1]), told)
        client.sendall(answer + told)
        return b"connection: close" not in answer.lower()

    def _asked(
        self, where: int, request: bytes, client: socket.socket, gateways: dict[int, socket.socket]
    ) -> tuple[int, bytes, bytes]:
        """Which one answered, and its head and body; empty where there are none, or the client
        left."""
        reused = where in gateways
        if not reused:
            try:
                gateways[where] = socket.create_connection(("127.0.0.1", self.ports[where]))
            except ConnectionRefusedError:  # it is down: the other one, as a load balancer does
                where = 1 - where
                if where not in gateways:
                    gateways[where] = socket.create_connection(("127.0.0.1", self.ports[where]))
        gateway, answer, told = gateways[where], b"", b""
        with contextlib.suppress(OSError):
            # What refuses a long body may have answered and gone before all of it is sent.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                gateway.sendall(request)
            answer, told = message(gateway, client)
        if not answer or b"connection: close" in answer.lower():
            gateways.pop(where).close()
            if not answer and reused and not _left(client):
                return self._asked(where, request, client, gateways)  # it was idle too long
        return where, answer, told

    def _metrics(self) -> bytes:
        """The sum of what both say."""
        total: dict[str, float] = {}
        for port in self.ports:
            with (
                contextlib.suppress(OSError),
                urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as told,
            ):
                for line in told.read().decode().splitlines():
                    if line[:1] != "#":
                        name, _, value = line.rpartition(" ")
                        total[name] = total.get(name, 0.0) + float(value)
        body = "".join(f"{name} {value}\n" for name, value in total.items()).encode()
        return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def _request_id(body: bytes) -> str:
    with contextlib.suppress(msgspec.DecodeError, KeyError, TypeError):
        return str(msgspec.json.decode(body)["request_id"])
    return ""


def _left(client: socket.socket) -> bool:
    """Whether it hung up; it has said nothing more since its request."""
    try:
        return client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@contextlib.contextmanager
def front(*ports: int) -> Iterator[Front]:
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        running = Front(ports, listener)
        threading.Thread(target=running.accept_for_ever, daemon=True).start()
        try:
            yield running
        finally:
            running.close()
