"""One JSON line per finished sample: what it says, what it never says, and that it holds nobody."""

import asyncio
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asgi_gateway import Gateway, samplelog, writer
from asgi_gateway.addresses import shown_url
from asgi_gateway.clock import SystemClock
from asgi_gateway.codec import Want
from asgi_gateway.linefile import LineFile
from asgi_gateway.samplelog import SampleLog, own_words
from asgi_gateway.settings import LogSettings, SettingsError
from asgi_gateway.store.records import Record
from asgi_gateway.store.states import State
from asgi_gateway.writer import Lines, Writer
from tests.support.gateway import SDK_HEADERS, Driven, driven, settings
from tests.support.held import Held, metric
from tests.support.processes import ROOT
from tests.support.upstream import FakeUpstream, Raw, Request, answer, completion, in_order
from tests.support.waiting import until

GOOD = answer(200, completion([11, 12], [-1.0, -2.0]))


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Every line; fails where one is not whole."""
    text = path.read_bytes()
    assert text.endswith(b"\n") or not text
    return [msgspec.json.decode(line) for line in text.splitlines()]


async def logged(path: Path, count: int) -> list[dict[str, Any]]:
    """The lines, once so many are there; the ticker wakes the writer ten times a second."""
    await until(lambda: path.exists() and path.read_bytes().count(b"\n") >= count)
    lines = lines_of(path)
    assert len(lines) == count
    return lines


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "samples.jsonl"


def plain_record(number: int = 0, **fields: Any) -> Record:
    values: dict[str, Any] = {
        "request_id": f"id-{number}",
        "caller": "c",
        "sampling_session_id": "s",
        "seq_id": number,
        "digest": b"",
        "want": Want(),
        "prompt_tokens": 3,
        "reserve_bytes": 0,
        "body": None,
        "accepted_at": 0.0,
        "state": State.SUCCEEDED,
        "result": b"r" * 40,
    }
    return Record(**{**values, **fields})


def plain_log(path: Path | str, most: int = writer.MAX_QUEUED, **fields: Any) -> SampleLog:
    return SampleLog(
        LogSettings(samples=str(path), **fields),
        [],
        SystemClock(),
        {"s": "weights"}.get,
        Writer("log.samples", Lines(LineFile(str(path))), most=most),
    )


# --- what it says ---------------------------------------------------------------------------------


async def test_a_line_of_a_success(upstream: FakeUpstream, path: Path) -> None:
    held = Held(upstream)
    async with driven(upstream.url, log__samples=str(path), upstream__max_connections=1) as gateway:
        await gateway.handshake()
        ids = [(await gateway.submit(n)).json()["request_id"] for n in range(2)]
        await held.running()
        gateway.clock.advance(1.5)
        held.release()
        results = [await gateway.poll(request_id).response() for request_id in ids]
        first, second = await logged(path, 2)
        assert first == {
            "time": "2023-11-14T22:30:01.500000Z",
            "request_id": ids[0],
            "sampling_session_id": gateway.sampling_session_id,
            "outcome": "succeeded",
            "prompt_tokens": 3,
            "result_bytes": len(results[0].body),
            "attempts": 1,
            "queued_s": 0.0,
            "upstream_s": 1.5,
            "model": "stand-in",
            "upstream": upstream.url,
        }
        assert (second["queued_s"], second["upstream_s"]) == (1.5, 0.0)
        text = (await gateway.client.get("/metrics")).body
        assert metric(text, "log_written_total") == 2
        assert metric(text, "log_dropped_total") == 0


async def test_every_outcome_has_its_line(upstream: FakeUpstream, path: Path) -> None:
    refusal = answer(400, {"error": {"message": "max_tokens is wrong: 'input': [1, 2, 3]"}})
    never = asyncio.Event()

    async def script(request: Request) -> Raw:
        number = len(upstream.requests)
        if number == 1:
            return refusal
        if number == 2:
            return Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", "reset")
        if number == 3:
            return answer(200, b"the secret text that was sampled")
        await never.wait()
        return Raw()

    upstream.script = script
    async with driven(upstream.url, log__samples=str(path)) as gateway:
        await gateway.handshake()
        for number in range(3):
            await gateway.submit(number)
            await logged(path, number + 1)
        cancelled = (await gateway.submit(3)).json()["request_id"]
        await gateway.submit(4)
        await until(lambda: len(upstream.requests) == 5)
        body = {"request_id": cancelled}
        await gateway.client.post("/api/v1/cancel_future", body, SDK_HEADERS)
        await logged(path, 4)
    lines = await logged(path, 5)
    assert [line["outcome"] for line in lines] == [
        "failed",
        "gone",
        "failed",
        "cancelled",
        "gone",
    ]
    assert [line.get("category") for line in lines] == ["user", "server", "server", "user", None]
    assert lines[0]["error"] == "the upstream answered 400"
    assert "connection broke" in lines[1]["error"]
    assert "does not parse" in lines[2]["error"]
    assert {line["result_bytes"] for line in lines} == {0}
    for line in lines:
        assert "secret" not in str(line)
        assert "input" not in str(line)


async def test_attempts_are_counted(upstream: FakeUpstream, path: Path) -> None:
    upstream.script = in_order(answer(500, {"error": {"message": "engine"}}), GOOD)
    async with driven(upstream.url, log__samples=str(path)) as gateway:
        await gateway.handshake()
        await gateway.submit()
        store = gateway.gateway._store
        await until(lambda: upstream.requests and store.counts[State.QUEUED])
        await gateway.advance(2)
        (line,) = await logged(path, 1)
        assert (line["attempts"], line["queued_s"], line["outcome"]) == (2, 2.0, "succeeded")


def test_only_our_own_words() -> None:
    assert own_words("the upstream answered 422: [1, 2, 3]; interrupted 3 times") == (
        "the upstream answered 422"
    )
    assert own_words("it does not parse: x (it begins b'sampled text')") == "it does not parse: x"
    assert own_words("a\nb\x1b[31m\u202e\ud800") == "a\\nb\\x1b[31m\\u202e\\ud800"
    assert len(own_words("x" * 10_000)) == samplelog.MAX_TEXT_CHARACTERS


def test_an_upstream_is_shown_without_its_password() -> None:
    assert shown_url("https://user:secret@[::1]:8001/base/?key=secret") == "https://[::1]:8001/base"


# --- which are written ----------------------------------------------------------------------------


async def test_failures_and_slow_samples_are_always_written(
    upstream: FakeUpstream, path: Path
) -> None:
    bad, release = answer(400, {"error": {"message": "no"}}), asyncio.Event()

    async def script(request: Request) -> Raw:
        number = len(upstream.requests)
        if number == 3:
            await release.wait()
        return bad if number == 1 else GOOD

    upstream.script = script
    async with driven(
        upstream.url, log__samples=str(path), log__success_share=0.0, log__slow_s=5.0
    ) as gateway:
        await gateway.handshake()
        ids = []
        for number in range(3):
            ids.append((await gateway.submit(number)).json()["request_id"])
            if number < 2:
                assert (await gateway.poll(ids[-1]).response()).status == 200
        await until(lambda: len(upstream.requests) == 3)
        gateway.clock.advance(5.5)
        release.set()
        lines = await logged(path, 2)
        assert [line["request_id"] for line in lines] == [ids[0], ids[2]]
        assert [line["outcome"] for line in lines] == ["failed", "succeeded"]


def test_the_share_is_chosen_by_the_id(path: Path) -> None:
    """Two gateways, or one twice, write the lines of the same samples."""
    chosen = []
    for _ in range(2):
        log = plain_log(path, success_share=0.25)
        for number in range(4000):
            log.settled(plain_record(number), "succeeded", 0.0, 0.0)
        chosen.append([line.request_id for line in log.writer.queue])
    assert chosen[0] == chosen[1]
    assert 850 < len(chosen[0]) < 1150


def test_nothing_is_written_where_nothing_is_asked(upstream: FakeUpstream, tmp_path: Path) -> None:
    gateway = Gateway(settings("http://127.0.0.1:9"))
    assert gateway._outputs.samples is None
    assert b"log_" not in gateway._metrics.render()


# --- it holds nobody ------------------------------------------------------------------------------


def test_what_does_not_fit_is_dropped_and_counted(
    path: Path,
) -> None:
    log = plain_log(path, most=5)
    for number in range(8):
        log.settled(plain_record(number), "succeeded", 0.0, 0.0)
    log.writer.open()
    log.writer.close()
    assert [line["request_id"] for line in lines_of(path)] == [f"id-{n}" for n in range(5)]
    assert (log.writer.written, log.writer.dropped) == (5, 3)


def test_closing_writes_what_is_queued(path: Path) -> None:
    log = plain_log(path)
    log.writer.open()
    count = 10 * writer.LINES_PER_WRITE + 1
    for number in range(count):
        log.settled(plain_record(number), "succeeded", 0.0, 0.0)
    log.writer.close()
    assert len(lines_of(path)) == log.writer.written == count


async def test_a_file_that_is_gone_for_a_while_costs_lines_and_no_sample(
    upstream: FakeUpstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    path = folder / "samples.jsonl"
    upstream.script = in_order(GOOD)
    async with driven(upstream.url, log__samples=str(path)) as gateway:
        log = gateway.gateway._outputs.samples
        assert log is not None
        await gateway.handshake()

        async def sample(number: int) -> None:
            request_id = (await gateway.submit(number)).json()["request_id"]
            assert (await gateway.poll(request_id).response()).status == 200

        await sample(0)
        await logged(path, 1)
        path.unlink()
        folder.rmdir()
        for number in (1, 2):
            await sample(number)
        await until(lambda: log.writer.dropped == 2)
        folder.mkdir()
        for number in (3, 4):
            await sample(number)
            await logged(path, number - 2)
        text = (await gateway.client.get("/metrics")).body
        assert metric(text, "log_written_total") == 3
        assert metric(text, "log_dropped_total") == 2
    said = [r for r in caplog.records if r.name == "asgi_gateway.writer"]
    assert [r.levelno for r in said] == [logging.ERROR, logging.WARNING], "once per change"


def test_a_line_that_is_no_json_ends_nothing(path: Path) -> None:
    log = plain_log(path)
    log.settled(plain_record(request_id="\ud800"), "succeeded", 0.0, 0.0)
    log.writer.open()
    log.writer.close()
    assert log.writer.dropped == 1
    assert log.writer._thread is not None
    assert not log.writer._thread.is_alive()


HELD = """
import sys
from asgi_gateway import writer
from tests.test_samplelog import plain_log, plain_record
writer.CLOSE_WITHIN_S = 0.2
log = plain_log("-")
log.writer.open()
for number in range(5000):
    log.settled(plain_record(number), "succeeded", 0.0, 0.0)
log.writer.tick()
log.writer.close()
sys.stderr.write(f"{log.writer.written + log.writer.dropped}")
"""


def test_an_output_that_nobody_reads_does_not_hold_the_end() -> None:
    """The pipe takes 64 kB of a megabyte; the process ends all the same."""
    with subprocess.Popen(
        [sys.executable, "-c", HELD], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as child:
        assert child.wait(20) == 0
        assert child.stderr is not None
        said = child.stderr.read().decode()
    assert "held" in said
    # All but those of the write that is held.
    assert int(said.splitlines()[-1]) >= 5000 - writer.LINES_PER_WRITE


# --- start, and more than one ---------------------------------------------------------------------


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "samples.jsonl"
    with pytest.raises(SettingsError, match=r"log\.samples: cannot append to .*absent"):
        Gateway(settings("http://127.0.0.1:9", log__samples=str(path)))


async def test_a_refused_log_leaves_the_state_folder_free(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    with pytest.raises(SettingsError):
        Gateway(settings("http://x:9", log__samples=str(tmp_path), state__dir=state))
    async with Gateway(settings("http://x:9", state__dir=state)).running():
        pass


async def test_two_gateways_share_a_file(upstream: FakeUpstream, path: Path) -> None:
    upstream.script = in_order(GOOD)

    async def sample(gateway: Driven, number: int) -> None:
        request_id = (await gateway.submit(number)).json()["request_id"]
        assert (await gateway.poll(request_id).response()).status == 200

    flags: dict[str, Any] = {"log__samples": str(path)}
    async with driven(upstream.url, **flags) as one, driven(upstream.url, **flags) as other:
        for gateway in (one, other):
            await gateway.handshake()
        await asyncio.gather(*(sample(g, n) for n in range(20) for g in (one, other)))
    lines = lines_of(path)
    assert len({line["request_id"] for line in lines}) == len(lines) == 40
