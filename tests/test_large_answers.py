"""Answers that are read in steps: each is settled, whatever becomes of the others."""

import asyncio
import json
from typing import Any

import pytest

from asgi_gateway import runs
from asgi_gateway.codec.encode import encode
from asgi_gateway.runs import STEPS_FROM_BYTES, Runs
from tests.support.gateway import Driven, driven
from tests.support.upstream import FakeUpstream, Raw, Request, answer, completion
from tests.support.waiting import until

LENGTH = STEPS_FROM_BYTES // 8
# Many more tokens than are asked for, so that the bound of an answer is given.
LARGE = json.dumps(completion([1234567] * LENGTH, [-1.0] * LENGTH)).encode()

each_transport = pytest.mark.usefixtures("each_transport")


async def large(_: Request) -> Raw:
    return answer(200, LARGE)


async def submitted(gateway: Driven, count: int) -> list[str]:
    return [(await gateway.submit(n)).json()["request_id"] for n in range(count)]


@each_transport
async def test_each_is_read_and_its_permit_is_there_again(upstream: FakeUpstream) -> None:
    assert len(LARGE) > STEPS_FROM_BYTES
    upstream.script = large
    async with driven(upstream.url, upstream__answer_bytes=len(LARGE)) as gateway:
        await gateway.handshake()
        for request_id in await submitted(gateway, 40):
            response = await gateway.poll(request_id).response()
            assert response.status == 200
            assert len(response.body) > 8 * LENGTH
        bodies = getattr(gateway.gateway._transport, "large", None)
        assert bodies is None or bodies._free == bodies._at_once


@each_transport
async def test_a_fault_of_ours_in_one_fails_that_one(
    upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once ended the reading of all that came after it."""
    calls = 0

    def faulty(arrays: Any) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("a bug")
        return encode(arrays)

    monkeypatch.setattr(runs, "encode", faulty)
    upstream.script = large
    async with driven(upstream.url, upstream__answer_bytes=len(LARGE)) as gateway:
        await gateway.handshake()
        answers = [await gateway.poll(i).response() for i in await submitted(gateway, 3)]
        failed = [response for response in answers if len(response.body) < LENGTH]
        assert [response.json()["category"] for response in failed] == ["server"]
        assert [response.status for response in answers] == [200] * 3


@each_transport
async def test_a_reader_that_broke_off_is_begun_anew(
    upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault in settling one: what came with it and after it is read all the same."""
    failed, broken = Runs.failed, 0

    def fails_once(self: Runs, run: Any, error: Exception) -> None:
        nonlocal broken
        broken += 1
        if broken == 1:
            raise RuntimeError("a bug in settling")
        failed(self, run, error)

    def faulty(_: Any) -> bytes:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Runs, "failed", fails_once)
    monkeypatch.setattr(runs, "encode", faulty)
    upstream.script = large
    async with driven(upstream.url, upstream__answer_bytes=len(LARGE)) as gateway:
        await gateway.handshake()
        own = gateway.gateway._sampling._runs
        await submitted(gateway, 3)
        await until(lambda: broken > 0 and not own._large)
        assert broken == 3
        monkeypatch.setattr(runs, "encode", encode)
        last = (await gateway.submit(7)).json()["request_id"]
        async with asyncio.timeout(10):
            assert (await gateway.poll(last).response()).status == 200
        await until(lambda: not own._large)
