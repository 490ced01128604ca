"""Raw bytes to a server and what comes back, over a blocking socket."""

import re
import socket
from typing import Final

from tests.support.held import metric

WITHIN_S: Final = 20.0
_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")


def connected(port: int, address: str = "127.0.0.1") -> socket.socket:
    """address: which one the connection comes from."""
    return socket.create_connection(("127.0.0.1", port), WITHIN_S, source_address=(address, 0))


class Answers:
    """What came on a connection."""

    def __init__(self, got: bytes, closed: bool) -> None:
        self.got = got
        self.closed = closed
        self.statuses = [int(status) for status in _STATUS.findall(got)]


def answers(wire: socket.socket, most: int = 9) -> Answers:
    """Up to so many answers in JSON, or what came until the connection was closed."""
    got = b""
    while True:
        # An answer of the gateway is JSON in one piece, so its end is a brace.
        if len(_STATUS.findall(got)) >= most and got.endswith(b"}"):
            return Answers(got, closed=False)
        try:
            piece = wire.recv(1 << 16)
        except ConnectionError:
            return Answers(got, closed=True)
        if not piece:
            return Answers(got, closed=True)
        got += piece


def asked(port: int, sent: bytes, most: int = 1) -> Answers:
    with connected(port) as wire:
        wire.sendall(sent)
        return answers(wire, most)


def get(target: str = "/livez", *headers: str, close: bool = False) -> bytes:
    lines = [f"GET {target} HTTP/1.1", "Host: gateway", *headers]
    return "\r\n".join([*lines, *["Connection: close"] * close, "", ""]).encode()


def scraped(port: int, name: str, **labels: str) -> float:
    """A number of the gateway's metrics, named without the prefix."""
    with connected(port) as wire:
        wire.sendall(get("/metrics", close=True))
        text = b""
        while piece := wire.recv(1 << 16):
            text += piece
    return metric(text, name, **labels)
