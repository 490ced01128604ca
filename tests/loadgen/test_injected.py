"""Every kind of fault through real sockets: what a client sees, and that as many are counted."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from loadgen.faults import Fault
from loadgen.script import KINDS
from loadgen.settings import Settings
from loadgen.upstream import Upstream, running
from tests.loadgen.test_upstream import Client, post, until


async def told(server: Upstream) -> dict[str, Any]:
    async with Client(server) as client:
        counted: dict[str, Any] = (await client.get("/counts")).json
    return counted


async def seen(server: Upstream, **fields: Any) -> str:
    """One completion on a connection of its own, in a word."""
    try:
        async with Client(server) as client:
            await client.send(post(max_tokens=200, logprobs=0, n=2, **fields))
            try:
                async with asyncio.timeout(2):
                    got = await client.receive()
            except TimeoutError:
                return "hang"
            except asyncio.IncompleteReadError as error:
                return "closed in the body" if b"{" in error.partial else "closed before"
    except ConnectionResetError:
        return "reset"
    except ConnectionRefusedError:
        return "refused"
    if got.status != 200:
        after = got.headers.get("retry-after")
        return f"{got.status}" if after is None else f"{got.status} after {after}"
    return what(got.body)


async def becomes(server: Upstream, word: str) -> None:
    """Ask until that is what is seen."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if await seen(server) == word:
            return
    raise AssertionError(f"never {word}")


def what(body: bytes) -> str:
    """A body that came with 200, in a word."""
    if b"NaN" in body:
        return "NaN"
    try:
        choices = json.loads(body)["choices"]
    except ValueError:
        return "html" if body.startswith(b"<!doctype html>") else "no JSON"
    if len(choices) < 2:
        return "fewer choices"
    choice = choices[0]
    if choice["logprobs"] is None:
        return "no logprobs"
    if None in choice["logprobs"]["token_logprobs"]:
        return "null"
    if len(choice["logprobs"]["token_logprobs"]) < len(choice["token_ids"]):
        return "a logprob less"
    return "abort" if choice["finish_reason"] == "abort" else "right"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("429", "429"),
        ("429=3", "429 after 3"),
        ("500", "500"),
        ("500=1.5", "500 after 1.5"),
        ("502", "502"),
        ("502=1", "502 after 1"),
        ("503", "503"),
        ("503=2", "503 after 2"),
        ("bad_request", "400"),
        ("nan_logprobs", "400"),
        ("plain_error", "500"),
        ("html", "html"),
        ("truncated", "no JSON"),
        ("close_before", "closed before"),
        ("close_midway", "closed in the body"),
        ("reset_before", "reset"),
        ("null", "null"),
        ("nan", "NaN"),
        ("no_logprobs", "no logprobs"),
        ("logprob_missing", "a logprob less"),
        ("abort", "abort"),
        ("fewer_choices", "fewer choices"),
        ("drip=0.3", "right"),
    ],
)
async def test_each_kind_is_seen_and_counted(kind: str, expected: str) -> None:
    async with running(Settings(port=0, script=f"{kind}:#2-#4")) as server:
        assert [await seen(server) for _ in range(5)] == ["right", *[expected] * 3, "right"]
        counted = await told(server)
    fault = KINDS[kind.partition("=")[0]]
    assert counted["faults"] == {fault.name: 3}
    assert counted["running"] == 0


async def received_until_reset(server: Upstream) -> bytes:
    """What comes of one completion before its connection is reset."""
    part = b""
    try:
        async with Client(server) as client:
            await client.send(post(max_tokens=500, logprobs=0))
            while more := await client.reader.read(1 << 16):
                part += more
    except ConnectionResetError:
        return part
    raise AssertionError("closed, not reset")


async def test_a_reset_in_the_body_comes_after_a_part_of_it() -> None:
    async with running(Settings(port=0, script="reset_body:#1-#2")) as server:
        for _ in range(2):
            part = await received_until_reset(server)
            assert part.startswith(b"HTTP/1.1 200 OK")
            assert b'"choices"' in part
        assert (await told(server))["faults"] == {"RESET_BODY": 2}


async def test_a_hang_is_counted_when_it_begins() -> None:
    async with running(Settings(port=0, script="hang:#1")) as server, Client(server) as client:
        await client.send(post())
        await until(lambda: server.counts.running == 1)
        assert (await told(server))["faults"] == {"SILENT": 1}
        assert await seen(server) == "right"


async def test_a_drip_takes_its_time_and_keeps_the_connection() -> None:
    async with running(Settings(port=0, script="drip=0.5:#1")) as server, Client(server) as client:
        loop = asyncio.get_running_loop()
        began = loop.time()
        got = await client.ask(max_tokens=300, logprobs=0)
        assert loop.time() - began >= 0.35
        assert len(got.json["choices"][0]["token_ids"]) == 300
        assert (await client.ask()).status == 200
        assert server.counts.connections_total == 1


async def test_leaving_in_the_middle_of_a_drip_is_no_trouble() -> None:
    async with running(Settings(port=0, script="drip=0.5:#1")) as server:
        async with Client(server) as client:
            await client.send(post())
            await client.reader.readuntil(b"\r\n\r\n")
        await until(lambda: server.counts.connections == 0)
        assert await seen(server) == "right"


async def test_refusing_by_arrival_ends_by_itself() -> None:
    async with (
        running(Settings(port=0, script="refuse=0.3:#2")) as server,
        Client(server) as idle,
    ):
        assert (await idle.ask()).status == 200
        assert await seen(server) == "closed before"
        assert await seen(server) == "refused"
        assert await idle.rest() == b"", "idle connections end, so that they have to come back"
        await becomes(server, "right")
        assert (await told(server))["faults"] == {"REFUSE": 1}


# asyncio's own loop loses a connection that it accepts in the turn in which its listener closes.
@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_refusing_by_the_clock_counts_from_the_first_completion() -> None:
    async with running(Settings(port=0, script="refuse:0.2s-0.5s")) as server:
        async with Client(server) as early:
            assert (await early.get("/health")).status == 200
        assert await seen(server) == "right"
        await becomes(server, "refused")
        await becomes(server, "right")
        assert (await told(server))["faults"] == {"REFUSE": 1}


async def test_a_rate_is_the_same_in_every_run_and_counted_exactly() -> None:
    runs = []
    for _ in range(2):
        async with running(Settings(port=0, script="503:0.2,html:0.1", seed=5)) as server:
            words = [await seen(server, prompt=[i + 1]) for i in range(100)]
            counted = (await told(server))["faults"]
        assert counted == {"UNAVAILABLE": words.count("503"), "HTML": words.count("html")}
        assert words.count("503") > 5
        runs.append(words)
    assert runs[0] == runs[1]


async def test_scripts_keep_to_fault_times() -> None:
    async with running(Settings(port=0, script="503:1", fault_times=2)) as server:
        assert [await seen(server) for _ in range(4)] == ["503", "503", "right", "right"]


def test_no_kind_is_left_out() -> None:
    here = {"SILENT", "DRIP", "RESET_BODY", "REFUSE"}
    (mark,) = (
        mark
        for mark in test_each_kind_is_seen_and_counted.pytestmark  # type: ignore[attr-defined]
        if mark.name == "parametrize"
    )
    for kind, _ in mark.args[1]:
        here.add(KINDS[kind.partition("=")[0]].name)
    assert here == {fault.name for fault in Fault}
