"""The command line, as a process of its own."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

COMMAND = (sys.executable, "-m", "loadgen")


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A running stand-in and its port."""
    process = subprocess.Popen(
        [*COMMAND, "upstream", "--port", "0", *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("loadgen upstream listening on http://127.0.0.1:")
        yield process, int(line.rsplit(":", 1)[1])
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def models(port: int) -> list[str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", "/v1/models")
    with connection.getresponse() as answer:
        cards = json.loads(answer.read())["data"]
    connection.close()
    return [f"{card['id']}<{card['parent']}" for card in cards]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_and_leaves_at_once_even_with_work_pending(number: signal.Signals) -> None:
    with started("--delay-s", "600") as (process, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request(
            "POST", "/v1/completions", b'{"prompt":[1]}', {"Content-Type": "application/json"}
        )
        assert models(port) == ["stand-in<None"]
        process.send_signal(number)
        assert process.wait(timeout=5) == 0
        connection.close()


def test_models_and_adapters_are_listed() -> None:
    with started("--model", "a,b", "--model", "c", "--lora", "d") as (_, port):
        assert models(port) == ["a<None", "b<None", "c<None", "d<a"]


def failure(*arguments: str) -> str:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def test_a_taken_port_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = failure("upstream", "--port", str(port))
    assert message.startswith(f"loadgen upstream: cannot listen on 127.0.0.1:{port}: ")
    assert "in use" in message
    assert "Traceback" not in message


def test_an_unknown_host_is_a_clear_error() -> None:
    message = failure("upstream", "--host", "256.0.0.1", "--port", "0")
    assert "cannot listen on 256.0.0.1:0" in message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "COMMAND"),
        (("downstream",), "downstream"),
        (("upstream", "--port", "70000"), "--port"),
        (("upstream", "--port", "x"), "--port"),
        (("upstream", "--delay-s", "-1"), "--delay-s"),
        (("upstream", "--delay-s", "nan"), "--delay-s"),
        (("upstream", "--delay-s", "x"), "--delay-s"),
        (("upstream", "--vocab-size", "10"), "--vocab-size"),
        (("upstream", "--model", "a,,b"), "--model"),
        (("upstream", "--model", "a", "--lora", "a"), "--lora"),
        (("upstream", "--fault-times", "1"), "--faults"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple[str, ...], named: str) -> None:
    assert named in failure(*arguments)


def test_help_is_quick_because_imports_wait() -> None:
    code = (
        "import sys, loadgen.__main__\n"
        "heavy = {'asyncio', 'msgspec', 'numpy', 'uvloop', 'hdrh', 'httptools', 'rich'}\n"
        "heavy.add('asgi_gateway')\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_stand_in_never_loads_the_gateway() -> None:
    code = "import sys, loadgen.upstream; sys.exit('asgi_gateway' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 0
