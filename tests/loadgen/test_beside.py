"""All that is watched beside a run, put into its result."""

from __future__ import annotations

import os
import time

import pytest

from loadgen.beside import Beside, beside
from loadgen.environment import environment
from loadgen.outcomes import Doubled, Outcomes, Traffic
from loadgen.plan import Plan
from loadgen.processes import cpu_s_of
from loadgen.results import ClientCheck, Result, Series, Server, Upstream, Verdict, decode, encode
from loadgen.settings import Settings
from loadgen.standin import StandIn, StandInError
from loadgen.upstream import running
from tests.loadgen.metered import metered, until
from tests.loadgen.test_upstream import Client


def result(url: str, rows: int) -> Result:
    return Result(
        environment=environment("test"),
        plan=Plan(scenario="smoke", url=url, samples=10),
        seconds=1.0,
        samples_per_s=1.0,
        output_tokens_per_s=1.0,
        outcomes=Outcomes(succeeded=10, lost=0),
        doubled=Doubled(),
        traffic=Traffic(),
        stages={},
        series=Series(t=[float(row + 1) for row in range(rows)]),
        phases=[],
        client=ClientCheck(),
        verdict=Verdict(valid=True),
        server=Server(pids=[1], cpu_s=123.0, busy=0.5),
        upstream=Upstream(requests=3, samples=3, missing=0),
    )


async def test_everything_ends_up_in_the_result() -> None:
    async with (
        metered() as (server, url),
        running(Settings(port=0, script="html:#2-#3")) as upstream,
        Client(upstream) as client,
    ):
        server.metrics = "asgi_gateway_samples_inflight 4\n"
        start = time.monotonic()
        stand_in = StandIn(upstream.url)
        async with beside(url, server_pid=os.getpid(), stand_in=stand_in) as watched:
            for _ in range(3):
                await client.ask()
            await until(lambda: server.asked >= 5 and len(watched.sampler.seen) >= 2)
        assert watched.injected == 2
        rows = int(time.monotonic() - start) + 1
        told = decode(encode(watched.completed(result(url, rows), start)))
    assert [(fault.kind, fault.injected) for fault in told.faults] == [("html", 2)]
    assert told.server is not None
    assert (told.server.cpu_s, told.server.busy) == (123.0, 0.5), "the run knows these better"
    assert told.server.in_flight_peak == 4
    assert told.server.rss_peak is not None
    assert os.getpid() in told.server.pids
    assert told.server.healthz is not None
    assert told.server.healthz.count >= 5
    assert told.server.healthz_failed == 0
    assert told.upstream is not None
    assert (told.upstream.running_peak, told.upstream.aborted) == (1, 0)
    assert told.upstream.cpu_s is not None
    for name in ("server_rss", "server_in_flight", "healthz_max_ms"):
        column = getattr(told.series, name)
        assert len(column) == rows
        assert any(value is not None for value in column), name


async def test_the_probe_ends_where_the_run_fails() -> None:
    watching: list[Beside] = []

    async def fail(url: str) -> None:
        async with beside(url) as watched:
            watching.append(watched)
            await until(lambda: server.asked >= 1)
            raise ZeroDivisionError

    async with metered() as (server, url):
        with pytest.raises(ZeroDivisionError):
            await fail(url)
    with pytest.raises(OSError, match="No such file"):
        cpu_s_of(watching[0].probe.recorder.pid)


async def test_a_stand_in_that_is_gone_is_said_before_anything_starts() -> None:
    async with metered() as (server, url):
        with pytest.raises(StandInError):
            async with beside(url, stand_in=StandIn("http://127.0.0.1:9")):
                pass
        assert server.asked == 0


async def test_profiles_or_the_reason_why_not() -> None:
    async with metered() as (_, url):
        async with beside(url, profile={"client": 99_999_999}) as watched:
            pass
        assert watched.profiles == []
        assert any(note.startswith("no profile: ") for note in watched.notes)
