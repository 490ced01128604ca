"""A start that fails ends the process, with a status that says so and a line that says why.

hypercorn's supervisor, its default, ends with 0 whatever its worker ended with (0.18): one more
reason for `--workers 0`.
"""

import contextlib
import sys
import zlib
from pathlib import Path

import pytest

from asgi_gateway.state.events import header
from tests.support.failing import REASON
from tests.support.processes import environment, free_port, process, server_command

pytestmark = pytest.mark.servers

IN_ONE_PROCESS = ("--workers", "0")
UPSTREAM = "http://127.0.0.1:9"


def commands(application: str) -> dict[str, tuple[list[str], int]]:
    """How each server starts an application, and what it ends with where that fails."""
    found = {}
    for name, extra, status in (
        ("uvicorn", (), 3),
        ("hypercorn", IN_ONE_PROCESS, 1),
        ("hypercorn", (), 0),
        ("granian", (), 1),
    ):
        command = server_command(name, free_port(), *extra)
        command = [part.replace("asgi_gateway:create_app", application) for part in command]
        found[" ".join((name, *extra))] = command, status
    return found


def test_a_lifespan_that_fails() -> None:
    """Field 4.14."""
    with contextlib.ExitStack() as stack:
        started = {
            name: (stack.enter_context(process(command)), status)
            for name, (command, status) in commands("tests.support.failing:create_app").items()
        }
        for name, (one, status) in started.items():
            assert one.wait() == status, (name, one.story())
            assert REASON in one.stdout + one.stderr, (name, one.story())


FAILING = f"""
import sys
from asgi_gateway.__main__ import main
from asgi_gateway.app import Gateway
async def open(self): raise OSError({REASON!r})
Gateway.open = open
sys.exit(main(["serve", "--port", "0", "--upstream", {UPSTREAM!r}]))
"""


def test_a_lifespan_that_fails_under_serve() -> None:
    with process([sys.executable, "-c", FAILING]) as one:
        assert one.wait() == 3, one.story()
        assert REASON in one.stderr
        assert "Traceback" not in one.stderr
        assert one.stdout == "", "it never accepted"


def test_a_state_directory_that_is_none(tmp_path: Path) -> None:
    """The factory raises; servers print the trace of that, whose last line says what is wrong."""
    taken = tmp_path / "file"
    taken.touch()
    environ = environment(upstream__urls=UPSTREAM, state__dir=taken)
    with contextlib.ExitStack() as stack:
        started = {
            name: (stack.enter_context(process(command, environ)), status)
            for name, (command, status) in commands("asgi_gateway:create_app").items()
        }
        for name, (one, status) in started.items():
            assert (one.wait() == 0) == (status == 0), (name, one.story())
            assert f"state.dir {taken} cannot be used" in one.stderr, (name, one.story())


def test_serve_and_a_state_that_is_not_ours(tmp_path: Path) -> None:
    """A file in the folder's place, and the journal of a version to come: one line and no trace,
    and nothing of it is changed."""
    file = tmp_path / "file"
    file.touch()
    newer = tmp_path / "newer" / "journal-000001.log"
    newer.parent.mkdir()
    stem = header()[:8] + (9).to_bytes(4, "little")
    content = stem + zlib.crc32(stem).to_bytes(4, "little") + b"something else"
    newer.write_bytes(content)
    command = [sys.executable, "-m", "asgi_gateway", "serve", "--port", "0"]
    command += ["--upstream", UPSTREAM]
    with contextlib.ExitStack() as stack:
        started = {
            place: stack.enter_context(process(command, environment(state__dir=place)))
            for place in (file, newer.parent)
        }
        for place, one in started.items():
            assert one.wait() == 2, one.story()
            (line,) = one.stderr.splitlines()
            assert line.startswith("asgi-gateway: ")
            assert str(place) in line
            assert one.stdout == ""
    assert newer.read_bytes() == content
