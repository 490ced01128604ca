"""Several hosts: two gateways, HAProxy, the store and vLLM, each in a network namespace of its own,
while one of them is cut off under load and comes back.

Needs root, and a kernel that lets it make namespaces.
"""

import asyncio
import contextlib
import functools
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.faults.load import load, rate, until
from tests.support.hosts import Lan, NotAllowed, lan
from tests.support.processes import Process, environment, process
from tests.support.proxies import Proxy, proxy
from tests.support.wire import Remote

pytestmark = [pytest.mark.system, pytest.mark.servers, pytest.mark.timeout(240)]

LEASE_S = 2.0
PER_S = 40.0
SAMPLES = 800
# Beyond the lease, and until HAProxy gave it up.
CUT_S = 9.0


class Site:
    """Everything, on its hosts."""

    def __init__(self, network: Lan, before: Proxy, gateways: dict[str, Process]) -> None:
        self.network = network
        self.proxy = before
        self.gateways = gateways
        self.url = f"http://{network.address('proxy')}:{before.plain}"
        self.vllm = f"http://{network.address('vllm')}:8001"

    def remote(self, name: str) -> Remote:
        """A client at one of the gateways itself."""
        return Remote(8000, host=self.network.address(name))

    def status_is(self, status: str, server: str) -> bool:
        return self.proxy.status(server) == status

    def stories(self) -> str:
        return "\n".join(gateway.stderr for gateway in self.gateways.values())


@pytest.fixture
def network() -> Iterator[Lan]:
    if os.geteuid():
        pytest.skip("network namespaces need root")
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(lan("one", "two", "proxy", "store", "vllm"))
        except NotAllowed as error:
            pytest.skip(f"the kernel makes no network namespaces: {error}")
        yield made


@pytest.fixture
async def site(network: Lan, tmp_path: Path) -> AsyncIterator[Site]:
    python = [sys.executable, "-m"]
    with contextlib.ExitStack() as stack:
        enter, at = stack.enter_context, network.address
        store = ["redis-server", "--bind", at("store"), "--protected-mode", "no", "--save", ""]
        enter(process([*network.on("store"), *store, "--dir", str(tmp_path)]))
        vllm = ["loadgen", "upstream", "--host", at("vllm"), "--port", "8001", "--delay-s", "0.3"]
        enter(process([*network.on("vllm"), *python, *vllm])).first_line()
        gateways = {}
        for name in ("one", "two"):
            serve = ["asgi_gateway", "serve", "--host", at(name), "--insecure"]
            given = environment(
                upstream__urls=f"http://{at('vllm')}:8001",
                store__url=f"valkey://{at('store')}:6379",
                store__lease_s=LEASE_S,
                store__timeout_s=2.0,
                state__dir="",
                poll__hold_s=5.0,
                access__hosts=at("proxy"),
            )
            gateways[name] = enter(process([*network.on(name), *python, *serve], given))
        for gateway in gateways.values():
            gateway.first_line()
        before = enter(
            proxy(
                "haproxy",
                tmp_path,
                [f"{at(name)}:8000" for name in gateways],
                plain=True,
                host=at("proxy"),
                prefix=network.on("proxy"),
            )
        )
        made = Site(network, before, gateways)
        for name in gateways:
            await until(functools.partial(made.status_is, "UP", name), "server")
        yield made


@pytest.mark.parametrize("style", ["future", "futures"])
@pytest.mark.parametrize("cut", ["a gateway", "the store", "a gateway from the store"])
async def test_a_network_is_cut_and_comes_back(site: Site, cut: str, style: str) -> None:
    """Every sample succeeds. A gateway that was away finds itself fenced, and serves again."""
    network, other = site.network, site.remote("two")
    broken = {
        "a gateway": functools.partial(network.cut_off, "one"),
        "the store": functools.partial(network.cut_off, "store"),
        "a gateway from the store": functools.partial(network.cut_between, "one", "store"),
    }[cut]
    flags = ("--style", style, *rate(PER_S))
    async with load(site.url, site.vllm, SAMPLES, *flags) as running:
        name = 'samples_total{outcome="succeeded"}'
        await site.remote("one").until(lambda now: now.get(name, 0) >= 100, within_s=60)
        loop = asyncio.get_running_loop()
        began = loop.time()
        with broken():
            if cut != "the store":
                await other.until(lambda now: now["store_buried_total"] == 1)
                assert loop.time() - began < LEASE_S + 6
                wanted = "DOWN" if cut == "a gateway" else "NOLB"
                await until(functools.partial(site.status_is, wanted, "one"), wanted)
            await asyncio.sleep(max(0.0, CUT_S - (loop.time() - began)))
        for each in site.gateways:
            await until(functools.partial(site.status_is, "UP", each), "server")
        result = await running.result()
    outcomes, doubled = result.outcomes, result.doubled
    assert outcomes.succeeded == outcomes.total == SAMPLES, (
        f"{outcomes}, {result.traffic}\n{site.stories()}"
    )
    assert (doubled.request_ids, doubled.delivered, doubled.results) == (0, 0, 0)
    one = site.remote("one")
    if cut != "the store":
        assert (await one.metrics())["store_fenced_total"] == 1, site.stories()
        assert "taken for dead" in site.gateways["one"].stderr
    await one.handshake()
    client = site.remote("two")
    client.sampling_session_id = one.sampling_session_id
    assert (await client.poll(await one.submit())).status == 200
