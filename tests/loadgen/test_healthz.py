"""The probe: ten times a second, whatever the server does, and from a process of its own."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time

import pytest

from loadgen.address import address
from loadgen.healthz import Probe, Probed, probing
from loadgen.probe import Prober
from loadgen.results import Series
from tests.loadgen.metered import Metered, metered, until


async def asked(server: Metered, count: int) -> None:
    await until(lambda: server.asked >= count)


async def test_ten_a_second_over_one_connection() -> None:
    async with metered() as (server, url):
        with probing(url) as probe:
            await asked(server, 10)
    answered = [each for each in probe.probed if each.word == "ok"]
    assert len(answered) >= 10
    due = [each.due for each in probe.probed]
    assert [b - a for a, b in itertools.pairwise(due)] == pytest.approx(
        [0.1] * (len(due) - 1), abs=0.001
    )
    assert server.connections <= 3
    found = probe.histogram()
    assert found is not None
    assert found.count >= 10
    assert probe.failed == 0


async def test_a_probe_that_comes_early_has_no_negative_latency(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The timers of uvloop have milliseconds and may fire up to one too soon."""
    async with metered() as (_, url):
        prober = Prober(address(url))
        await prober.probe(time.monotonic() + 0.5)
        ((_, writer),) = prober._idle
        writer.close()
        await writer.wait_closed()
    _, latency_s, late_s, word = capsys.readouterr().out.split()
    assert word == "ok"
    assert float(latency_s) > 0
    assert float(late_s) == 0


async def test_a_server_that_stops_is_seen_for_as_long_as_it_stopped() -> None:
    async with metered() as (server, url):
        with probing(url) as probe:
            await asked(server, 2)
            server.going.clear()
            stopped = time.monotonic()
            await asyncio.sleep(1.0)
            server.going.set()
            await asked(server, 14)
    found = probe.histogram(stopped)
    assert found is not None
    assert found.max_ms > 850
    slow = [each for each in probe.probed if each.due > stopped and each.latency_s > 0.1]
    assert len(slow) >= 7, "probes went on while others waited"


async def test_what_is_not_over_at_the_end_counts_as_long_as_it_lasted() -> None:
    async with metered() as (server, url):
        with probing(url) as probe:
            await asked(server, 1)
            server.going.clear()
            await asyncio.sleep(0.6)
    assert probe.probed[-1].word == "pending"
    found = probe.histogram()
    assert found is not None
    assert found.max_ms > 300
    assert probe.failed == 0


async def test_wrong_answers_and_refused_connections_are_failures() -> None:
    async with metered() as (server, url):
        server.health = 503
        with probing(url) as probe:
            await asked(server, 3)
    assert probe.failed >= 3
    assert probe.histogram() is None
    async with metered() as (_, nobody):
        pass
    with probing(nobody) as probe:
        await until(lambda: len(probe.recorder.lines()) > 0)
    assert probe.failed >= 1


async def test_a_busy_starter_does_not_disturb_it() -> None:
    """The loop that starts it stands still for a second; probes are sent all the same."""
    async with metered() as (server, url):
        with probing(url) as probe:
            await asked(server, 1)
            began = time.monotonic()
            time.sleep(1.0)  # noqa: ASYNC251 - it is the point
            ended = time.monotonic()
            await asked(server, 3)
    meanwhile = [each for each in probe.probed if began < each.due < ended - 0.2]
    assert len(meanwhile) >= 7
    assert sorted(each.late_s for each in meanwhile)[len(meanwhile) // 2] < 0.05


def test_columns_are_seconds_from_the_start() -> None:
    probe = Probe.__new__(Probe)
    probe.probed = [
        Probed(99.9, 9.0, 0.0, "ok"),
        Probed(100.0, 0.001, 0.0, "ok"),
        Probed(100.5, 0.003, 0.0, "ok"),
        Probed(100.9, 0.002, 0.0, "ok"),
        Probed(101.5, 0.5, 0.0, "failed"),
        Probed(102.5, 30.0, 0.0, "overdue"),
    ]
    series = Series(t=[1.0, 2.0, 3.0])
    probe.fill(series, start=100.0)
    assert series.healthz_p50_ms == [2.0, None, 30_000.0]
    assert series.healthz_max_ms == [3.0, None, 30_000.0]
    assert probe.failed == 2


def test_it_ends_when_told_and_a_killed_one_is_no_trouble() -> None:
    probe = Probe("http://127.0.0.1:9")
    pid = probe.recorder.pid
    probe.stop()
    assert not os.path.exists(f"/proc/{pid}")
    probe.stop()
    killed = Probe("http://127.0.0.1:9")
    os.kill(killed.recorder.pid, signal.SIGKILL)
    killed.stop()
    assert killed.probed == []
