"""What the server is seen to use: real processes, a real /metrics, and the columns made of them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.procfs import Usage, tree, usage, usage_of_tree
from loadgen.prometheus import is_counter, parse, total
from loadgen.results import Series
from loadgen.sampler import Sampler, Seen, starved
from tests.loadgen.metered import metered, until

BURN = "import sys\nprint(flush=True)\nsys.stdin.readline()\nwhile True: pass"
NEST = (
    "import subprocess, sys\n"
    "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=sys.stdin)\n"
    "print(child.pid, flush=True)\n"
    "child.wait()"
)


def child(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_process_is_seen_with_all_it_started() -> None:
    process = child(NEST)
    try:
        assert process.stdout is not None
        inner = int(process.stdout.readline())
        assert tree(process.pid) == sorted([process.pid, inner])
        one, both = usage(process.pid), usage_of_tree(process.pid)
        assert one is not None
        assert both is not None
        assert both.threads == one.threads + 1 == 2
        assert both.rss_bytes > one.rss_bytes > 1 << 20
        assert both.descriptors is not None
        assert both.descriptors >= 6
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
    assert usage(process.pid) is None
    assert usage_of_tree(process.pid) is None
    assert process.stdout is not None
    process.stdout.close()


def test_descriptors_and_threads_are_counted_exactly() -> None:
    before = usage(os.getpid())
    with open(os.devnull), open(os.devnull):
        after = usage(os.getpid())
    assert before is not None
    assert after is not None
    assert before.descriptors is not None
    assert after.descriptors == before.descriptors + 2


def test_a_name_with_parentheses_is_no_trouble(tmp_path: Path) -> None:
    directory = tmp_path / "7"
    (directory / "fd").mkdir(parents=True)
    fields = ["S", *["0"] * 10, "30", "12", *["0"] * 4, "2", *["0"] * 30]
    (directory / "stat").write_text(f"7 (a) (b) {' '.join(fields)}")
    (directory / "statm").write_text("9 3 1")
    (directory / "schedstat").write_text("5 7000000000 1")
    ticks = os.sysconf("SC_CLK_TCK")
    assert usage(7, tmp_path) == Usage(42 / ticks, 7.0, 3 * os.sysconf("SC_PAGE_SIZE"), 0, 2)


def test_the_text_format_is_read() -> None:
    text = (
        "# HELP a_total Text.\n# TYPE a_total counter\n"
        'a_total{x="1"} 2\na_total{x="a } b\\"c"} 3 1700000000\n'
        "b 1.5e3\nc NaN\nnonsense\nd{ 1\na_totals 9\n"
    )
    found = parse(text)
    assert list(found) == ['a_total{x="1"}', 'a_total{x="a } b\\"c"}', "b", "c", "a_totals"]
    assert total(found, "a_total") == 5
    assert total(found, "absent", "b") == 1_500
    assert total(found, "absent") is None
    assert is_counter('a_total{x="1"}')
    assert not is_counter("b")


METRICS = """
asgi_gateway_samples_inflight {flying}
asgi_gateway_event_loop_lag_seconds 0.00{flying}
asgi_gateway_event_loop_lag_seconds_max 0.{done}
asgi_gateway_gc_pause_seconds_max 0.5
asgi_gateway_samples_total{{outcome="ok"}} {done}
asgi_gateway_gc_pause_seconds_count{{generation="0"}} {done}
asgi_gateway_gc_pause_seconds_count{{generation="1"}} 1
asgi_gateway_gc_pause_seconds_sum{{generation="0"}} 0.{done}
asgi_gateway_gc_pause_seconds_sum{{generation="1"}} 1
"""


async def test_a_server_that_works_is_seen_in_every_column() -> None:
    process = child(BURN)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        async with metered() as (server, url):
            sampler = Sampler(process.pid, url)
            server.metrics = METRICS.format(flying=3, done=10)
            await sampler.look()
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            for _ in range(2_000):
                found = usage(process.pid)
                assert found is not None
                if found.cpu_s > 0.3:
                    break
                await asyncio.sleep(0.01)
            server.metrics = METRICS.format(flying=7, done=25)
            await sampler.look()
    finally:
        end(process)
    told = sampler.server(samples=5)
    assert told.pids == [process.pid]
    assert told.cpu_s is not None
    assert told.cpu_s > 0.2
    assert told.cpu_ms_per_sample == pytest.approx(told.cpu_s / 5 * 1000)
    assert (told.in_flight_peak, told.left_behind, told.gc_collections) == (7, 7, 15)
    assert told.lag_max_ms == 250.0, "the greatest since the start rose, so it is of this run"
    assert told.gc_pause_s == pytest.approx(0.15)
    assert told.gc_pause_max_ms is None, "it did not rise, so it is of before"
    assert told.moved['asgi_gateway_samples_total{outcome="ok"}'] == 15
    assert "asgi_gateway_samples_inflight" not in told.moved
    assert told.metrics["asgi_gateway_samples_inflight"] == 7


async def test_a_server_without_metrics_or_pid_is_none_not_zero() -> None:
    async with metered() as (_, url):
        sampler = Sampler(None, url)
        await sampler.look()
    told = sampler.server(samples=1)
    assert (told.cpu_s, told.rss_peak, told.in_flight_peak, told.lag_max_ms) == (None,) * 4
    series = Series(t=[1.0, 2.0])
    sampler.fill(series, start=0.0)
    for name in ("cpu", "rss", "descriptors", "lag_ms", "threads", "gc", "in_flight"):
        assert getattr(series, f"server_{name}") == [None, None], name


async def test_it_looks_once_a_period_until_cancelled() -> None:
    async with metered() as (server, url):
        server.metrics = "a 1\n"
        sampler = Sampler(os.getpid(), url, every_s=0.05)
        task = asyncio.create_task(sampler.run())
        await until(lambda: len(sampler.seen) >= 4)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    gaps = [b.at - a.at for a, b in zip(sampler.seen, sampler.seen[1:], strict=False)]
    assert all(gap >= 0.02 for gap in gaps)


def seen(at: float, cpu_s: float, rss: int, waited_s: float = 0.0, gc: int = 0) -> Seen:
    metrics = {"python_gc_collections_total": float(gc)}
    return Seen(at, Usage(cpu_s, waited_s, rss, 5, 1), metrics)


def test_rows_are_seconds_from_the_start() -> None:
    sampler = Sampler(1, None)
    sampler.seen = [
        seen(99.5, 0.0, 100, gc=0),
        seen(100.5, 0.5, 200, gc=2),
        seen(101.5, 1.5, 300, gc=6),
        seen(102.5, 1.5, 300, gc=6),
    ]
    series = Series(t=[1.0, 2.0, 9.0])
    sampler.fill(series, start=100.0)
    assert series.server_cpu == [0.75, 0.5, None]
    assert series.server_gc == [3.0, 2.0, None]
    assert series.server_rss == [200, 300, None]
    assert series.server_descriptors == [5, 5, None]
    assert series.server_lag_ms == [None, None, None]


def test_starved_is_the_share_of_waiting_for_a_core() -> None:
    rows = [seen(at, 0, 1, waited_s=at / 4) for at in (10.0, 11.0, 12.0, 13.0)]
    assert starved(rows, 10.5, 13.5) == 0.25
    assert starved(rows, 12.5, 13.5) is None
