"""The log of `serve` in both forms: one entry is one line, whatever somebody else had a part in."""

import asyncio
import io
import logging
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asgi_gateway import serve as serving
from asgi_gateway.processlog import MAX_MESSAGE_CHARACTERS, AsJson, AsText, ProcessLog
from asgi_gateway.settings import LogSettings
from asgi_gateway.standalone import Standalone
from tests.fuzz.lines import is_one_line
from tests.support.gateway import settings
from tests.support.processes import process, serve
from tests.support.upstream import FakeUpstream, answer, in_order
from tests.support.waiting import until
from tests.support.wire import Remote

KEY = "tml-0123456789abcdef-XYZ_"
HOSTILE = [
    "a\r\n2026-01-01T00:00:00.000Z ERROR root: forged",
    '\n{"level":"error","message":"forged"}',
    "\x1b[2J\x1b[31mred\x07\x08\x7f",
    "\x9b31m \x85 \u2028 \u2029 \u202e turned \u2066 \u200f",
    "\x00\ud800\udfff",
    '"quoted\\" \\u0000',
    "x" * 1_000_000,
    f"Bearer {KEY}",
]
Captured = tuple[logging.Logger, io.StringIO]


@pytest.fixture(params=[AsText, AsJson])
def captured(request: pytest.FixtureRequest) -> Captured:
    """A logger of its own in one of the two forms."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(request.param())
    # Without a parent: what pytest keeps of a test cannot hold half a character.
    logger = logging.Logger("captured")  # noqa: LOG001
    logger.addHandler(handler)
    return logger, stream


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_one_entry_is_one_line(captured: Captured, number: int) -> None:
    hostile = HOSTILE[number]
    logger, stream = captured
    logger.warning("before %s after", hostile)
    written = stream.getvalue()
    assert written.endswith("\n")
    assert is_one_line(written[:-1])
    assert len(written) < 2 * MAX_MESSAGE_CHARACTERS
    assert "before" in written
    assert KEY[4:] not in written
    assert written.encode("utf-8")


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_no_line_of_a_traceback_passes_for_an_entry(captured: Captured, number: int) -> None:
    hostile = HOSTILE[number]
    logger, stream = captured
    try:
        raise ValueError(hostile)
    except ValueError:
        logger.exception("a fault")
    first, *rest = stream.getvalue().splitlines()
    assert "a fault" in first
    for line in rest:
        assert line.startswith("    "), line
        assert is_one_line(line)
    assert len(stream.getvalue()) < 40_000
    assert KEY[4:] not in stream.getvalue()
    if isinstance(logger.handlers[0].formatter, AsJson):
        assert not rest
        assert msgspec.json.decode(first)["exception"]
    else:
        assert rest


def test_what_a_line_says() -> None:
    record = logging.LogRecord("a.b", logging.WARNING, "f.py", 1, "said %d", (7,), None)
    record.created = 1_700_000_000.25
    record.__dict__["request_id"] = "r-1"
    assert AsText().format(record) == "2023-11-14T22:13:20.250Z WARNING a.b: said 7"
    assert msgspec.json.decode(AsJson().format(record)) == {
        "time": "2023-11-14T22:13:20.250000Z",
        "level": "warning",
        "logger": "a.b",
        "message": "said 7",
        "request_id": "r-1",
    }


def test_embedded_the_hosts_logging_is_left_alone() -> None:
    """Neither the import nor a gateway sets up anything."""
    program = """
import logging
import asgi_gateway
from asgi_gateway.configuration import load
flags = {"upstream.urls": ["http://127.0.0.1:9"], "log.format": "json", "log.level": "debug"}
asgi_gateway.Gateway(load(flags, environ={}).settings)
import asgi_gateway.processlog
asgi_gateway.create_app()
print(logging.getLogger().handlers, logging.getLogger().level)
print([n for n, one in logging.root.manager.loggerDict.items() if getattr(one, "handlers", None)])
"""
    environ = {"ASGI_GATEWAY_UPSTREAM__URLS": "http://h:1", "ASGI_GATEWAY_LOG__FORMAT": "json"}
    with process([sys.executable, "-c", program], environ) as ran:
        assert ran.wait() == 0
        assert ran.stdout == "[] 30\n[]\n", ran.story()


def test_logging_that_is_set_up_already_is_kept() -> None:
    root = logging.getLogger()
    before = list(root.handlers)
    assert before, "pytest's own"
    try:
        ProcessLog(LogSettings(format="json")).open()
        assert root.handlers == before
    finally:
        logging.captureWarnings(False)


async def test_serve_writes_json_alone(upstream: FakeUpstream) -> None:
    """Its own log, uvicorn's, and a request id where a sample is meant."""
    upstream.script = in_order(answer(400, {"error": {"message": "no\nWARNING forged\x1b[2J"}}))
    flags: dict[str, Any] = {"log__format": "json", "log__level": "info", "server__backlog": 64}
    with serve(upstream.url, **flags) as served:
        remote = Remote(served.port)
        await remote.handshake()
        request_id = await remote.submit()
        assert (await remote.poll(request_id)).json()["category"] == "user"
        served.process.terminate()
        assert await asyncio.to_thread(served.process.wait) == 0
        text = served.process.stderr
    lines = [msgspec.json.decode(line) for line in text.splitlines()]
    assert text.count("\n") == len(lines)
    loggers = {line["logger"] for line in lines}
    assert "uvicorn.error" in loggers
    (failed,) = [line for line in lines if "failed" in line["message"]]
    assert (failed["request_id"], failed["level"]) == (request_id, "warning")
    assert "forged" in failed["message"]
    assert is_one_line(failed["message"])
    assert all(line["level"] in ("info", "warning") for line in lines), text


async def test_the_level_is_what_is_set(upstream: FakeUpstream) -> None:
    upstream.script = in_order(answer(400, b"{}"))
    with serve(upstream.url, log__level="error") as served:
        remote = Remote(served.port)
        await remote.handshake()
        assert (await remote.poll(await remote.submit())).status == 200
        served.process.signal(signal.SIGHUP)  # nothing to reload: a warning
        served.process.terminate()
        assert await asyncio.to_thread(served.process.wait) == 0
        assert served.process.stderr == ""


async def test_the_level_changes_at_sighup(upstream: FakeUpstream, tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    write(file, '[log]\nlevel = "error"\n')
    upstream.script = in_order(answer(400, b"{}"))
    with serve(upstream.url, "--config", str(file)) as served:
        remote = Remote(served.port)
        await remote.handshake()
        assert (await remote.poll(await remote.submit())).status == 200
        assert served.process.stderr == ""
        write(file, '[log]\nlevel = "warning"\n')
        served.process.signal(signal.SIGHUP)
        await until(lambda: "log.level from 'error' to 'warning'" in served.process.stderr)
        assert (await remote.poll(await remote.submit())).status == 200
        assert "the upstream answered 400" in served.process.stderr


def write(file: Path, text: str) -> None:
    file.write_text(text)


async def test_a_stall_goes_where_it_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Under `serve` with JSON into the log: standard error has nothing else."""
    limited = settings("http://127.0.0.1:9", server__stall_dump_s=0.5)
    gateway = Standalone(limited, signals=False, say_stall=serving._say)
    async with gateway.running():
        await asyncio.sleep(0.2)
        time.sleep(1.5)  # noqa: ASYNC251 - that is the stall
    (record,) = [one for one in caplog.records if one.name == "asgi_gateway.serve"]
    (line,) = AsJson().format(record).splitlines()
    assert "stood still for 0.5 s" in msgspec.json.decode(line)["message"]


def test_settings_are_checked() -> None:
    environ = {"ASGI_GATEWAY_LOG__FORMAT": "yaml", "ASGI_GATEWAY_LOG__LEVEL": "loud"}
    with process(
        [sys.executable, "-m", "asgi_gateway", "check-config", "--upstream", "http://h:1"], environ
    ) as ran:
        assert ran.wait() == 2
        assert "log.format" in ran.stderr
        assert "log.level" in ran.stderr
