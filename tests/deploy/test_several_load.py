"""Load through the real proxies onto gateways that share a store, while these die and restart.

The client does what the SDK does and keeps a ledger: what it repeats by itself is no error. It
speaks no TLS, so the proxies listen on one more port without it.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loadgen.results import Result
from tests.faults.load import load, rate, until
from tests.support.processes import stand_in
from tests.support.proxies import NAMES, Proxy, proxy
from tests.support.supervised import Supervised
from tests.support.valkey import valkey
from tests.support.wire import Remote

pytestmark = [pytest.mark.system, pytest.mark.servers, pytest.mark.timeout(240)]

LEASE_S = 1.5
PER_S = 60.0
SAMPLES = 1_200
GENERATION_S = 0.3
# Enough for HAProxy to notice, whose checks are a second apart.
PREDRAIN_S = 4.0


class Fleet:
    """gateways: behind `before`, all lives of them. url: of the proxy, without TLS."""

    def __init__(self, gateways: list[Supervised], before: Proxy, vllm: str) -> None:
        self.gateways = gateways
        self.proxy = before
        self.vllm = vllm
        self.url = f"http://127.0.0.1:{before.plain}"

    async def settled(self, gateway: Supervised, more: int) -> None:
        """Until so many samples have succeeded at one gateway."""
        name = 'samples_total{outcome="succeeded"}'
        await Remote(gateway.port).until(lambda now: now.get(name, 0) >= more, within_s=60)

    def is_up(self, server: str) -> bool:
        """Whether HAProxy gives it requests."""
        return self.proxy.status(server) == "UP"

    def stories(self) -> str:
        return "\n".join(gateway.warnings() for gateway in self.gateways)


@pytest.fixture(params=NAMES)
async def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Fleet]:
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(valkey(tmp_path))
        vllm = stack.enter_context(stand_in("--delay-s", str(GENERATION_S)))
        given = {
            "store__url": store.url,
            "store__lease_s": LEASE_S,
            "drain__predrain_s": PREDRAIN_S,
            "drain__grace_s": 20.0,
            # As by the configuration of each process, which may be stopped at any time.
            "poll__hold_s": 5.0,
        }
        gateways = []
        for _ in range(2):
            gateways.append(Supervised(vllm, None, given))
            stack.callback(_ended_now, gateways[-1])
        names = [f"127.0.0.1:{gateway.port}" for gateway in gateways]
        before = stack.enter_context(proxy(request.param, tmp_path, names, plain=True))
        made = Fleet(gateways, before, vllm)
        if request.param == "haproxy":
            for name in ("one", "two"):
                await until(functools.partial(made.is_up, name), "server")
        yield made


def _ended_now(gateway: Supervised) -> None:
    """A second signal ends a drain."""
    if gateway.process.status is None:
        gateway.process.terminate()
    gateway.close()


def clean(result: Result, fleet: Fleet) -> None:
    """Every sample succeeded, once."""
    outcomes, doubled = result.outcomes, result.doubled
    assert outcomes.succeeded == outcomes.total == SAMPLES, (outcomes, fleet.stories())
    assert (doubled.request_ids, doubled.delivered, doubled.results) == (0, 0, 0)


@pytest.mark.parametrize("style", ["future", "futures"])
async def test_gateways_are_killed(fleet: Fleet, style: str) -> None:
    """One after the other, and started again."""
    flags = ("--style", style, *rate(PER_S))
    async with load(fleet.url, fleet.vllm, SAMPLES, *flags) as running:
        for gateway in fleet.gateways:
            await fleet.settled(gateway, 100)
            gateway.kill()
            await asyncio.sleep(LEASE_S)
            await asyncio.to_thread(gateway.start)
        result = await running.result()
    clean(result, fleet)
    assert result.traffic.resubmitted > 0  # what a dead one had accepted


@pytest.mark.parametrize("style", ["future", "futures"])
async def test_a_rolling_restart(fleet: Fleet, style: str) -> None:
    """Both, one after the other; nothing is given back, and behind HAProxy nothing is refused."""
    flags = ("--style", style, *rate(PER_S))
    async with load(fleet.url, fleet.vllm, SAMPLES, *flags) as running:
        for gateway in fleet.gateways:
            await fleet.settled(gateway, 50)
            gateway.process.terminate()
            assert await asyncio.to_thread(gateway.process.wait, 30) == 0, gateway.stories()
            await asyncio.to_thread(gateway.start)
            if fleet.proxy.name == "haproxy":
                name = ("one", "two")[fleet.gateways.index(gateway)]
                await until(functools.partial(fleet.is_up, name), "server")
        result = await running.result()
    clean(result, fleet)
    assert result.doubled.upstream == 0
    assert result.traffic.resubmitted == 0, (result.traffic, fleet.stories())
    if fleet.proxy.name == "haproxy":
        assert set(result.traffic.retries) <= {"408"}, (result.traffic, fleet.stories())
