"""The programs of examples/embed under real servers, each as its docstring says how to run it."""

import base64
import contextlib
import functools
import os
import socket
import struct
from collections.abc import Iterator, Mapping

from tests.support.processes import (
    Process,
    Served,
    environment,
    free_port,
    process,
    server_command,
)


@contextlib.contextmanager
def programs(server: str, examples: Mapping[str, Mapping[str, str]]) -> Iterator[dict[str, Served]]:
    """Every example in a process of its own under one server, all started at once.

    examples: name of the module -> environment variables of its process.
    """
    with contextlib.ExitStack() as stack:
        started: dict[str, Served] = {}
        for name, environ in examples.items():
            port = free_port()
            application = f"examples.embed.{name}:create_app"
            command = server_command(server, port, application=application)
            started[name] = Served(server, port, stack.enter_context(process(command, environ)))
        for served in started.values():
            served.process.wait_for(functools.partial(listens, served.port), "listener")
        yield started


def configured(upstream: str, **settings: object) -> dict[str, str]:
    """The environment of an example that is configured as `create_app` is."""
    return environment(upstream__urls=upstream, **settings)


def listens(port: int) -> bool:
    """Whether HTTP is answered there; what, is for the test to ask."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0) as wire:
        wire.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        return wire.recv(5) == b"HTTP/"
    return False


def stopped(process: Process) -> str:
    """What a program had printed when it ended on SIGTERM."""
    process.terminate()
    process.wait()
    assert "Traceback" not in process.stderr, process.story()
    return process.stdout


def websocket_echo(port: int, path: str, text: str) -> str:
    """What comes back over a websocket for one text frame of at most 125 bytes (RFC 6455)."""
    key = base64.b64encode(os.urandom(16)).decode()
    lines = [f"GET {path} HTTP/1.1", "host: x", "connection: Upgrade", "upgrade: websocket"]
    lines += ["sec-websocket-version: 13", f"sec-websocket-key: {key}", "", ""]
    with socket.create_connection(("127.0.0.1", port), 20) as wire, wire.makefile("rb") as answers:
        wire.settimeout(20)
        wire.sendall("\r\n".join(lines).encode())
        status = answers.readline()
        assert status.startswith(b"HTTP/1.1 101"), status
        while answers.readline() not in (b"\r\n", b""):
            pass
        mask, data = os.urandom(4), text.encode()
        masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))
        wire.sendall(struct.pack("BB", 0x81, 0x80 | len(data)) + mask + masked)
        kind, length = answers.read(2)
        assert kind == 0x81, kind
        echoed = answers.read(length)
        wire.sendall(struct.pack("BB", 0x88, 0x80) + os.urandom(4))
        return echoed.decode()
