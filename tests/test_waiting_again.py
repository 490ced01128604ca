"""Samples that wait to be sent again: what is said of them, and what they wait for."""

import contextlib
import os
import resource
from collections.abc import Iterator

import pytest

from asgi_gateway.errors import Unavailable
from asgi_gateway.store.states import State
from asgi_gateway.upstream.client import Client
from asgi_gateway.upstream.dispatch import GIVEN_UP_PER_TICK
from asgi_gateway.upstream.fleet import SURVIVED_S
from tests.support.asgi_client import turns
from tests.support.gateway import Driven, driven, settings
from tests.support.inprocess import in_process
from tests.support.upstream import FakeUpstream

GRACE_S = 100


async def said(gateway: Driven, request_id: str) -> str:
    state: str = (await gateway.poll(request_id).response()).json()["queue_state"]
    return state


async def test_a_try_that_stands_is_no_pause_any_more() -> None:
    async with in_process() as (gateway, upstream):
        await gateway.handshake()
        gateway.gateway._sampling.delivery.stop_holding()  # polls are answered at once
        request_id = (await gateway.submit()).json()["request_id"]
        assert await said(gateway, request_id) == "active"
        upstream.sent[-1].fail(Unavailable("busy"))
        await turns()
        assert len(upstream.under_way) == 1, "it is tried again at once"
        assert await said(gateway, request_id) == "paused_capacity"
        await gateway.advance(SURVIVED_S + 0.1)
        assert await said(gateway, request_id) == "active"
        upstream.sent[-1].complete()


async def test_those_that_waited_in_vain_are_given_back_some_at_a_time() -> None:
    """Thousands of them would be one turn of the loop."""
    count = 3 * GIVEN_UP_PER_TICK
    async with in_process(upstream__unavailable_grace_s=GRACE_S) as (gateway, upstream):
        await gateway.handshake()
        for number in range(count):
            assert (await gateway.submit(number)).status == 200
        for _ in range(2):  # at once, and then with back-off
            await turns(30)
            for sent in upstream.under_way:
                sent.fail(Unavailable("busy"))
        store = gateway.gateway._store
        assert store.counts[State.QUEUED] == count
        gateway.gateway.fleet.drain(upstream_url(gateway), True)  # so that none is sent again
        left = count
        while left:
            await gateway.advance(GRACE_S if left == count else 0.1)
            now = store.in_flight
            assert left - now == min(left, GIVEN_UP_PER_TICK)
            left = now


def upstream_url(gateway: Driven) -> str:
    return gateway.gateway.fleet.upstreams[0].url


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """For this process: connects fail for want of one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    filling: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                filling.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in filling:
            os.close(each)


@pytest.mark.usefixtures("each_transport")
async def test_what_this_machine_lacks_is_not_the_upstreams_fault(upstream: FakeUpstream) -> None:
    async with driven(upstream.url, upstream__breaker_failures=1) as gateway:
        await gateway.handshake()
        with no_descriptor_left():
            ids = [(await gateway.submit(n)).json()["request_id"] for n in range(3)]
            await turns(100)
            store = gateway.gateway._store
            (standing,) = gateway.gateway.fleet.states
            assert (standing.breaker, standing.up) == ("closed", True)
            assert store.counts[State.QUEUED] == 3
            dispatch = gateway.gateway._sampling._dispatch
            assert dispatch._shut_until > gateway.clock.time, "the line waits"
            assert all(store.find(i).unavailable_since is None for i in ids)  # type: ignore[union-attr]
        assert not upstream.requests
        await gateway.advance(1.1)
        for request_id in ids:
            assert (await gateway.poll(request_id).response()).status == 200
        assert len(upstream.requests) == 3


async def test_a_health_check_for_which_there_is_no_descriptor_says_so(
    upstream: FakeUpstream,
) -> None:
    client = Client(settings(upstream.url).upstream)
    client.open()
    try:
        with no_descriptor_left(), pytest.raises(Unavailable) as raised:
            await client.health(upstream.url)
        assert raised.value.ours
        await client.health(upstream.url)
    finally:
        await client.close()
