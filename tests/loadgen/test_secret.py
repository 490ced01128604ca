"""The API key of a run is nowhere in what the run writes."""

from __future__ import annotations

import http.server
import os
import pty
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from loadgen.plan import Plan
from loadgen.results import decode, encode
from loadgen.secret import HIDDEN, Secret
from tests.loadgen.report import made
from tests.loadgen.test_run_command import SMALL

KEY = "tml-'very\"secret$0123"
LEAKY = f"{sys.executable} -m tests.loadgen.leaky '{{\"lose\": 0}}'"


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`loadgen run` with its stderr on a terminal, which is where the panel is drawn."""
    master, slave = pty.openpty()
    drawn: list[bytes] = []

    def read() -> None:
        while True:
            try:
                data = os.read(master, 1 << 16)
            except OSError:  # what a terminal says when its other end is closed
                return
            if not data:
                return
            drawn.append(data)

    reading = threading.Thread(target=read)
    reading.start()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "loadgen", "run", *SMALL[:3], *arguments],
            stdout=subprocess.PIPE,
            stderr=slave,
            env={**os.environ, "TERM": "xterm", **environ},
            text=True,
            timeout=90,
            check=False,
        )
    finally:
        os.close(slave)
        reading.join()
        os.close(master)
    done.stderr = b"".join(drawn).decode("utf-8", "replace")
    return done


def shown(text: str) -> bool:
    """Whether the key is there, however quoted: its middle is of plain letters."""
    return "secret" in text or "0123" in text


@pytest.mark.parametrize("way", ["flag", "joined", "environment"])
def test_it_is_in_no_file_table_panel_or_command_line(way: str, tmp_path: Path) -> None:
    file, page = tmp_path / "result.json", tmp_path / "page.html"
    given = {"flag": ("--api-key", KEY), "joined": (f"--api-key={KEY}",), "environment": ()}[way]
    environ = {"LOADGEN_API_KEY": KEY} if way == "environment" else {}
    quoted = KEY.replace("'", "'\"'\"'")
    told = run(
        *("-n", "20", *given, "--json", str(file), "--html", str(page), "--profile"),
        *("--start", f"env 'SERVER_KEY={quoted}' {LEAKY}"),
        **environ,
    )
    assert told.returncode in (0, 3), told.stderr
    assert "samples/s" in told.stderr, "the panel was drawn"
    for written in (file.read_text(), page.read_text(), told.stdout, told.stderr):
        assert not shown(written)
    result = decode(file.read_bytes())
    assert result.outcomes.succeeded == 20
    assert result.plan.api_key == HIDDEN
    assert f"SERVER_KEY={HIDDEN}" in result.environment.command
    if way == "flag":
        assert f"--api-key '{HIDDEN}'" in result.environment.command


@pytest.mark.parametrize(
    "arguments",
    [
        ("--start", f"false {shlex.quote(KEY)}"),
        ("--start", f"{sys.executable} -X dev {shlex.quote(KEY)}", "--profile"),
        ("--url", f"ftp://{KEY}"),
    ],
)
def test_it_is_in_no_message_about_what_was_typed(arguments: tuple[str, ...]) -> None:
    told = run("--api-key", KEY, *arguments)
    assert told.returncode == 2
    assert HIDDEN in told.stderr
    assert not shown(told.stderr + told.stdout)


class Refusing(http.server.BaseHTTPRequestHandler):
    """Repeats the key in its answer, as a server should not."""

    def do_POST(self) -> None:
        body = f"no such key: {self.headers['x-api-key']}".encode()
        self.send_response(401)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        pass


@pytest.fixture
def refusing() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


@pytest.mark.parametrize("style", [(), ("--style", "future"), ("--style", "futures")])
def test_it_is_in_no_message_that_quotes_the_server(style: tuple[str, ...], refusing: str) -> None:
    told = run("-n", "20", "--api-key", KEY, "--url", refusing, *style)
    assert told.returncode == 2
    assert f"no such key: {HIDDEN}" in told.stderr, "the key was sent"
    assert not shown(told.stderr)


def test_what_the_server_said_does_not_bring_it_into_the_result() -> None:
    result = made.result()
    result.notes = [f"session given up: {KEY}"]
    result.outcomes.failed = {f"bad {KEY}": 1}
    assert result.server is not None
    result.server.metrics = {f'requests{{key="{KEY}"}}': 1.0}
    result.plan = msgspec.structs.replace(result.plan, api_key=KEY)
    hidden = Secret(KEY).hide_in(result)
    assert not shown(encode(hidden).decode())
    assert hidden.outcomes.failed == {f"bad {HIDDEN}": 1}
    assert hidden.stages == result.stages


@pytest.mark.parametrize(
    "start",
    [
        "env K=tml-\\'very\\\"secret\\$0123 server",
        "env 'K=tml-'\"'\"'very\"secret$0123' server",
        f"sh -c {shlex.quote('exec server ' + shlex.quote(KEY))}",
    ],
)
def test_a_command_line_within_the_command_line_may_quote_it_in_any_way(start: str) -> None:
    words = ["loadgen", "run", "--start", start, "--upstream-args", "--delay-s 1"]
    told = Secret(KEY).command(words)
    assert not shown(told)
    assert shlex.split(told)[-1] == "--delay-s 1"
    assert "server" in told


@pytest.mark.parametrize("before", range(175, 202))
def test_no_part_of_it_stays_where_a_long_answer_is_cut(before: int) -> None:
    told = Secret(KEY).excerpt(b"x" * before + KEY.encode() + b"y" * 5_000)
    assert len(told) == 200
    assert set(told) <= {"x", "*", "y"}


def test_a_short_key_leaves_words_that_hold_it_alone() -> None:
    result = made.result()
    result.plan = msgspec.structs.replace(result.plan, api_key="e2e")
    result.notes = ["the key e2e is no key; e2e2 is one"]
    result.environment.command = Secret("e2e").command(["loadgen", "--api-key=e2e", "e2e.json"])
    hidden = Secret("e2e").hide_in(result)
    assert hidden.plan.api_key == HIDDEN
    assert hidden.notes == ["the key *** is no key; e2e2 is one"]
    assert "--api-key=***" in hidden.environment.command
    assert hidden.stages.keys() == result.stages.keys()


def test_the_key_that_everybody_knows_is_not_hidden_in_text() -> None:
    default = Plan(scenario="burst", url="http://h:1", samples=1).api_key
    assert Secret(default).command(["loadgen", default]) == f"loadgen {default}"


def test_a_key_that_is_no_header_is_refused_and_not_repeated() -> None:
    told = run("--api-key", f"{KEY}\r\nx: y", "--url", "http://127.0.0.1:1", "--style", "future")
    assert told.returncode == 2
    assert "api_key: " in told.stderr
    assert not shown(told.stderr)
