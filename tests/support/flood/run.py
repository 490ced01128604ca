"""The phases of a flood: submit all, hold all, release until the last is acknowledged; again."""

import asyncio
import contextlib
import os
import platform
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from tests.support.flood.client import Client
from tests.support.flood.ledger import Ledger, Tally
from tests.support.flood.report import Cycle, Report, faults, mb, phase
from tests.support.flood.samples import Samples
from tests.support.flood.servers import Probe, Server, probing, serving
from tests.support.flood.wire import Link

WATCH_EVERY_S: Final = 0.25
# The last probes are answered, /proc has settled, and freed memory was given back.
SETTLE_S: Final = 2.5
STDERR_READ: Final = 1 << 20
METRIC: Final = "asgi_gateway_"


class Plan(NamedTuple):
    """What to run. Times in seconds; a core of None pins nothing; `settings` are the gateway's.

    fault_every: of so many samples one is interrupted upstream, once; 0 for none.
    """

    samples: int = 131_072
    sessions: int = 4
    cycles: int = 2
    prompt_tokens: int = 64
    max_tokens: int = 16
    submitters: int = 64
    fetchers: int = 64
    barrier: bool = True
    hold_s: float = 10.0
    delay_s: float = 0.0
    within_s: float = 900.0
    fault_every: int = 0
    gateway_core: int | None = None
    client_core: int | None = None
    state_dir: str | None = None
    profile: str | None = None
    settings: Mapping[str, str] = {}
    command: str = ""


class Flood:
    """One run against one gateway process."""

    def __init__(self, plan: Plan, gateway: Server, stand_in: Server, probe: Probe) -> None:
        self._plan = plan
        self._gateway = gateway
        self._stand_in = stand_in
        self._probe = probe
        samples = Samples(plan.prompt_tokens, plan.max_tokens, plan.fault_every)
        self._client = Client(
            gateway.port, samples, submitters=plan.submitters, fetchers=plan.fetchers
        )
        own = Tally()
        self._metrics = Link(gateway.port, own)
        self._control = Link(stand_in.port, own)
        self._asking = asyncio.Lock()
        self._in_flight_max = 0
        self._descriptors = {"gateway": 0, "client": 0, "stand-in": 0}
        self._stretches: list[tuple[str, float, float, list[float]]] = []

    async def run(self) -> Report:
        plan = self._plan
        await self._client.handshake(plan.sessions)
        cycles: list[Cycle] = []
        with contextlib.closing(self._metrics), contextlib.closing(self._control):
            async with self._watching(), self._client.running():
                for index in range(plan.cycles):
                    cycles.append(await self._cycle(index * plan.samples))
                    if cycles[-1].outcomes["lost"]:
                        break
                    await self._ask("/hold")
            figures = await self._gauges()
            await self._client.finish()
        return Report(
            command=plan.command,
            environment=_environment(),
            sessions=plan.sessions,
            descriptors=self._descriptors,
            gateway=figures,
            gateway_stderr_lines=len(self._gateway.stderr(STDERR_READ).splitlines()),
            cycles=cycles,
            faults=faults(cycles, figures, self._descriptors, all_at_once=plan.barrier),
        )

    # --- one cycle -------------------------------------------------------------------------------

    async def _cycle(self, first: int) -> Cycle:
        plan, client = self._plan, self._client
        before, rss_before = msgspec.structs.replace(client.tally), self._gateway.rss_bytes()
        self._stretches, self._in_flight_max = [], 0
        rss_in_flight = 0
        ledger = client.flood(first, plan.samples)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(plan.within_s):
                async with self._phase("submit"):
                    await ledger.all_accepted.wait()
                    await self._observe()
                rss_in_flight = self._gateway.rss_bytes()
                if plan.barrier:
                    async with self._phase("hold"):
                        await asyncio.sleep(plan.hold_s)
                        rss_in_flight = self._gateway.rss_bytes()
                        await self._observe()
                    await self._ask("/release")
                async with self._phase("deliver"):
                    await ledger.all_settled.wait()
                    await client.all_acknowledged()
        return await self._closed(ledger, client.tally.since(before), rss_before, rss_in_flight)

    async def _closed(
        self, ledger: Ledger, tally: Tally, rss_before: int, rss_in_flight: int
    ) -> Cycle:
        await asyncio.sleep(SETTLE_S)
        held = await self._gauges()
        seen = msgspec.json.decode((await self._control.get(b"/requests")).body)
        return Cycle(
            samples=ledger.count,
            outcomes=dict(ledger.outcomes()),
            delivered_again=ledger.delivered_again,
            shared_ids=ledger.shared_ids,
            in_flight_max=self._in_flight_max,
            upstream=ledger.upstream_view(seen),
            tally=tally,
            phases=[
                phase(name, ended - began, used, self._probe.between(began, ended))
                for name, began, ended, used in self._stretches
            ],
            rss_before_mb=mb(rss_before),
            rss_in_flight_mb=mb(rss_in_flight),
            rss_after_mb=mb(self._gateway.rss_bytes()),
            left_in_gateway=int(held["samples_held"]),
            problems=ledger.problems,
        )

    @contextlib.asynccontextmanager
    async def _phase(self, name: str) -> AsyncIterator[None]:
        began, cpu_s = time.monotonic(), self._cpu_s()
        try:
            yield
        finally:
            ended = time.monotonic()
            used = [now - then for now, then in zip(self._cpu_s(), cpu_s, strict=True)]
            self._stretches.append((name, began, ended, used))

    def _cpu_s(self) -> tuple[float, float, float]:
        return self._gateway.cpu_s(), time.process_time(), self._stand_in.cpu_s()

    async def _ask(self, path: str) -> None:
        if self._plan.barrier:
            await self._control.post(path.encode(), b"{}")

    # --- watching --------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _watching(self) -> AsyncIterator[None]:
        """Note the most samples in flight and the most descriptors, four times a second."""

        async def watch() -> None:
            while True:
                await asyncio.sleep(WATCH_EVERY_S)
                await self._observe()

        task = asyncio.create_task(watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _observe(self) -> None:
        in_flight = int((await self._gauges())["samples_inflight"])
        self._in_flight_max = max(self._in_flight_max, in_flight)
        now = {
            "gateway": self._gateway.descriptors(),
            "client": len(os.listdir("/proc/self/fd")),
            "stand-in": self._stand_in.descriptors(),
        }
        self._descriptors = {name: max(n, now[name]) for name, n in self._descriptors.items()}

    async def _gauges(self) -> dict[str, float]:
        """The gateway's /metrics, by name and labels without the prefix."""
        async with self._asking:
            text = (await self._metrics.get(b"/metrics")).body.decode()
        pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line[:1] not in ("", "#"))
        return {name.removeprefix(METRIC): float(value) for name, value in pairs}


async def run(plan: Plan) -> Report:
    """Start the stand-in and the gateway, run the plan against them, and end both."""
    if plan.client_core is not None:
        os.sched_setaffinity(0, {plan.client_core})
    with (
        tempfile.TemporaryDirectory(prefix="flood-state-") as fresh,
        serving(_stand_in(plan), core=plan.client_core) as stand_in,
        serving(
            _gateway(plan, stand_in.port),
            environ=_settings(plan, plan.state_dir or fresh),
            core=plan.gateway_core,
        ) as gateway,
        probing(gateway) as probe,
    ):
        return await Flood(plan, gateway, stand_in, probe).run()


def _stand_in(plan: Plan) -> Sequence[str]:
    command = [sys.executable, "-m", "loadgen", "upstream", "--port", "0"]
    command += ["--delay-s", str(plan.delay_s)]
    if plan.barrier:
        command.append("--barrier")
    if plan.fault_every:
        command += ["--faults", "--fault-times", "1"]
    return command


def _gateway(plan: Plan, upstream_port: int) -> Sequence[str]:
    command = [sys.executable, "-m"]
    if plan.profile is not None:
        command += ["cProfile", "-o", plan.profile, "-m"]
    command += ["asgi_gateway", "serve", "--port", "0"]
    return [*command, "--upstream", f"http://127.0.0.1:{upstream_port}"]


def _settings(plan: Plan, state_dir: str) -> Mapping[str, str]:
    """Batched polls are offered where a journal is kept, so that one always is."""
    settings = {
        "client.sample_use_retrieve_futures": "true",
        "state.dir": state_dir,
        "drain.predrain_s": "0",
        "drain.grace_s": "0",
    }
    settings |= plan.settings
    return {
        f"ASGI_GATEWAY_{path.replace('.', '__').upper()}": value for path, value in settings.items()
    }


def _environment() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }
