"""Several processes on one port, and several addresses: they count, hold and stop as one."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.processes import Child, serving
from loadgen.procfs import tree
from loadgen.request import prompt_digest
from tests.loadgen.test_main import COMMAND, failure


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A running stand-in and its `host:port`s."""
    process = subprocess.Popen(
        [*COMMAND, "upstream", "--port", "0", *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        assert words[:4] == ["loadgen", "upstream", "listening", "on"]
        yield process, [word.removeprefix("http://") for word in words[4:]]
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(timeout=20)
        process.communicate()


def ask(where: str, method: str, path: str, body: Any = None, name: str = "") -> Any:
    """On a connection of its own, so that the kernel picks a process."""
    connection = http.client.HTTPConnection(where, timeout=20)
    headers = {"Content-Type": "application/json"} | ({"X-Request-Id": name} if name else {})
    with contextlib.closing(connection):
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
    return json.loads(text) if text.startswith(b"{") else text.decode()


def complete(where: str, number: int, **fields: Any) -> Any:
    body = {"prompt": [1, number], "max_tokens": 2} | fields
    return ask(where, "POST", "/v1/completions", body, f"s{number}")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within 20 seconds"


def test_counts_and_hits_are_those_of_all_processes() -> None:
    with started("--processes", "3") as (process, (where,)):
        assert len(tree(process.pid)) == 4
        for number in range(60):
            assert complete(where, number % 40)["usage"]["completion_tokens"] == 2
        counted = ask(where, "GET", "/counts")
        assert (counted["processes"], counted["statuses"]) == (3, {"200": 60})
        assert (counted["generation_tokens"], counted["running"]) == (120, 0)
        hits = ask(where, "GET", "/requests")
        assert hits == {f"s{n}": 2 if n < 20 else 1 for n in range(40)}
        now = time.monotonic()
        for count, asked, answered in ask(where, "GET", "/hits").values():
            assert count in (1, 2)
            assert now - 60 < asked <= answered <= now
        text = ask(where, "GET", "/metrics")
        assert 'loadgen_upstream_requests_total{status="200"} 60\n' in text


def test_the_barrier_counts_over_all_processes() -> None:
    with (
        started("--processes", "2", "--barrier", "16") as (_, (where,)),
        concurrent.futures.ThreadPoolExecutor(16) as pool,
    ):
        early = [pool.submit(complete, where, number) for number in range(15)]
        until(lambda: ask(where, "GET", "/counts")["held"] == 15)
        assert not any(each.done() for each in early)
        assert complete(where, 15)["id"] == "cmpl-s15"
        assert {each.result(20)["id"] for each in early} == {f"cmpl-s{n}" for n in range(15)}
        assert ask(where, "POST", "/hold") == {}
        held = [pool.submit(complete, where, number) for number in range(8)]
        until(lambda: ask(where, "GET", "/counts")["held"] == 8)
        assert ask(where, "POST", "/release") == {}
        assert [each.result(20)["id"] for each in held] == [f"cmpl-s{n}" for n in range(8)]


def test_all_processes_refuse_together_and_one_fault_is_counted() -> None:
    with started("--processes", "2", "--faults", "refuse=0.3:#1-#1000") as (_, (where,)):
        # An abrupt end: the answer never comes.
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            complete(where, 1)

        def refused() -> bool:
            try:
                socket.create_connection(tuple(where.split(":")), timeout=5).close()  # type: ignore[arg-type]
            except ConnectionRefusedError:
                return True
            except ConnectionResetError:
                return False  # it came just before the listener closed
            return False

        until(refused)
        until(lambda: not refused())
        assert ask(where, "GET", "/counts")["faults"] == {"REFUSE": 1}


def test_several_addresses_share_a_port_and_the_counts() -> None:
    with started("--host", "127.0.0.1,127.0.0.2", "--host", "127.0.0.3") as (_, wheres):
        hosts, ports = zip(*(where.split(":") for where in wheres), strict=True)
        assert hosts == ("127.0.0.1", "127.0.0.2", "127.0.0.3")
        assert len(set(ports)) == 1
        for number, where in enumerate(wheres):
            complete(where, number)
        assert ask(wheres[0], "GET", "/requests") == {"s0": 1, "s1": 1, "s2": 1}


def test_hits_by_prompt() -> None:
    with started("--hits", "prompt") as (_, (where,)):
        for number in (1, 2, 1):
            complete(where, number)
        digests = {prompt_digest([1, 1]): 2, prompt_digest([1, 2]): 1}
        assert ask(where, "GET", "/requests") == digests


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left(number: signal.Signals) -> None:
    with started("--processes", "2", "--gen-seconds", "600") as (process, _):
        members = tree(process.pid)
        assert len(members) == 3
        process.send_signal(number)
        status = process.wait(timeout=20)
        assert status == (-number if number is signal.SIGKILL else 0)
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in members))


def test_a_process_that_dies_ends_all_with_an_error() -> None:
    process = subprocess.Popen(
        [*COMMAND, "upstream", "--port", "0", "--processes", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    os.kill(tree(process.pid)[-1], signal.SIGKILL)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 2
    assert "has ended by itself" in errors


def test_a_port_that_another_stand_in_shares_is_taken() -> None:
    with started("--processes", "2") as (_, (where,)):
        message = failure("upstream", "--port", where.split(":")[1], "--processes", "2")
    assert "in use" in message
    assert "Traceback" not in message


def test_the_ceiling_is_a_table_and_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loadgen", "upstream", "--ceiling", "--max-model-len", "40"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    head, line = done.stdout.splitlines()
    assert "CPU each" in head
    words = line.split()
    assert words[:2] == ["32", "1"]
    assert float(words[2].removesuffix("/s").replace(",", "")) > 1


# --- servers that a run starts ------------------------------------------------------------------

SPEAKING = (
    "import sys, time; print('at http://127.0.0.1:9', flush=True); print('a\\n' * 9, end='', "
)
SPEAKING += "file=sys.stderr, flush=True); time.sleep(60)"


def test_what_a_server_wrote_can_be_read_while_it_runs_and_afterwards() -> None:
    with serving([sys.executable, "-c", SPEAKING]) as child:
        until = time.monotonic() + 20
        while child.stderr() != "a\n" * 9:
            assert time.monotonic() < until
            time.sleep(0.01)
        assert child.stderr(4) == "a\na\n"
    assert child.stderr() == "a\n" * 9
    assert not child.alive()


def test_a_server_can_be_given_another_environment_and_folder(tmp_path: Path) -> None:
    said = (
        'import os; print(f\'http://h:1/{os.environ.get("HOME")}{os.environ["B"]}{os.getcwd()}\')'
    )
    inherited = {"PATH": os.environ["PATH"]}
    child = Child(
        [sys.executable, "-c", said], environ={"B": "1"}, inherited=inherited, cwd=tmp_path
    )
    child.ready()
    assert child.url == f"http://h:1/None1{tmp_path}"
    child.stop()
