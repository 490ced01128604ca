"""A loop that stands still is told, with the place where it is stuck."""

import asyncio
import threading
import time

import pytest

from asgi_gateway.standalone import Standalone
from tests.support.asgi_client import AsgiClient
from tests.support.gateway import settings
from tests.support.held import metric
from tests.support.waiting import until

NOWHERE = "http://127.0.0.1:9"
LIMIT_S = 0.5


def a_call_that_blocks(seconds: float) -> None:
    time.sleep(seconds)


async def test_a_blocked_loop_is_told_once_with_its_stack(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with Standalone(settings(NOWHERE, server__stall_dump_s=LIMIT_S)).running() as gateway:
        await asyncio.sleep(2 * LIMIT_S)
        assert capsys.readouterr().err == "", "a loop that turns is not told of"
        a_call_that_blocks(4 * LIMIT_S)
        told = capsys.readouterr().err
        assert told.startswith("asgi-gateway: the event loop has stood still for 0.5 s in\n")
        assert "in a_call_that_blocks\n    time.sleep(seconds)" in told
        assert told.count("stood still") == 1
        text = (await AsgiClient(gateway).get("/metrics")).body
        assert metric(text, "loop_stalls_total") == 1
        await until(lambda: gateway._lag.max_s >= 3 * LIMIT_S)
        await asyncio.sleep(LIMIT_S)
        a_call_that_blocks(2 * LIMIT_S)
        assert capsys.readouterr().err.count("stood still") == 1, "the next is told too"


async def test_it_ends_with_the_gateway() -> None:
    before = set(threading.enumerate())
    gateway = Standalone(settings(NOWHERE))
    assert set(threading.enumerate()) == before
    async with gateway.running():
        (watching,) = set(threading.enumerate()) - before
        assert watching.daemon
    assert set(threading.enumerate()) == before
    await gateway.close()


async def test_none_where_it_is_switched_off() -> None:
    before = set(threading.enumerate())
    async with Standalone(settings(NOWHERE, server__stall_dump_s=0)).running():
        assert set(threading.enumerate()) == before
