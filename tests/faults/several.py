"""Several upstreams of which one is down, hung or slow; all of them down; one that moves."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.faults.found import Found, Size
from tests.faults.judge import asked, counts, cut_off, judged, together
from tests.faults.load import load, loaded, passes, rate, until
from tests.support.processes import (
    Process,
    deaf_port,
    environment,
    free_port,
    process,
    serve,
    stand_in,
)
from tests.support.wire import Remote

RATE: Final = 50.0
CHECKED_WITHIN_S: Final = 6.0
"""By then a health check has told an upstream that hangs."""

NOT_READY_S: Final = 10.0

HOST: Final = "vllm.invalid"


# Shorter than by default, so that a row does not wait for them.
CHECKS: Final = dict[str, object](upstream__health_interval_s=1.0, upstream__health_timeout_s=1.0)


def status(port: int, path: str) -> int:
    """Of one GET; 0 where there is no answer."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        link.request("GET", path)
        return link.getresponse().status
    except OSError:
        return 0
    finally:
        link.close()


@contextlib.contextmanager
def upstream(*arguments: str, port: int = 0, host: str = "127.0.0.1") -> Iterator[Process]:
    """A stand-in whose process can be signalled."""
    command = [sys.executable, "-m", "loadgen", "upstream", "--port", str(port), "--host", host]
    with process([*command, *arguments]) as running:
        running.first_line()
        yield running


def url_of(running: Process) -> str:
    return running.first_line().rsplit(" ", 1)[-1]


async def met(port: int) -> int:
    """How many samples could not be sent where they were to go."""
    told = await Remote(port).metrics()
    named, code = "upstream_requests_total{", 'code="unavailable"'
    return int(sum(n for key, n in told.items() if key.startswith(named) and code in key))


async def one_down(size: Size) -> Found:
    """One of three never listens."""
    dead = f"http://127.0.0.1:{free_port()}"
    with (
        stand_in() as one,
        stand_in() as two,
        serve(one, "--upstream", dead, "--upstream", two) as g,
    ):
        result = await loaded(g.url, one, size.samples, "--style", "future")
        found = judged(result, asked([one, two]))
        found.injected = await met(g.port)
        found.needs(bool(counts(two)["statuses"]), "the third upstream was never asked")
        return found


async def one_deaf(size: Size) -> Found:
    """Connects to one of three neither stand nor fail."""
    port = free_port()
    deaf = f"http://127.0.0.1:{port}"
    with (
        deaf_port(port),
        stand_in() as one,
        stand_in() as two,
        serve(
            one,
            *("--upstream", deaf, "--upstream", two),
            upstream__connect_timeout_s=1,
            upstream__health_interval_s=0,  # they would tell it before the first sample does
        ) as gateway,
    ):
        result = await loaded(gateway.url, one, size.samples, "--style", "future")
        found = judged(result, asked([one, two]))
        found.injected = await met(gateway.port)
        return found


async def one_killed(size: Size) -> Found:
    """One of three is killed under load and comes back."""
    port = free_port()
    slow = ("--delay-s", "0.2")
    with (
        stand_in(*slow) as one,
        stand_in(*slow) as two,
        upstream(*slow, port=port) as third,
        serve(one, "--upstream", two, "--upstream", url_of(third), **CHECKS) as gateway,
    ):
        samples = int(RATE * (3 if size.small else 8))
        async with load(gateway.url, one, samples, *rate(RATE), "--style", "future") as running:
            await until(lambda: counts(url_of(third))["running"] > 0, "load on the third")
            before = cut_off([url_of(third)])
            third.kill()
            await asyncio.sleep(1.0)  # the length of the fault
            with upstream(*slow, port=port) as back:
                result = await running.result()
                found = judged(result, together(before, asked([one, two, url_of(back)])))
        found.injected = sum(map(len, before.faulted.values()))
        return found


async def one_hung(size: Size) -> Found:
    """One of three is stopped as a whole: it accepts and says nothing."""
    hung_s = CHECKED_WITHIN_S + (3.0 if size.small else 6.0)
    slow = ("--delay-s", "0.05")
    with (
        stand_in(*slow) as one,
        stand_in(*slow) as two,
        upstream(*slow) as third,
        serve(one, "--upstream", two, "--upstream", url_of(third), **CHECKS) as gateway,
    ):
        samples = int(RATE * (hung_s + 3))
        async with load(gateway.url, one, samples, *rate(RATE), "--style", "future") as running:
            await until(lambda: bool(counts(url_of(third))["statuses"]), "load on the third")
            name = url_of(third).removeprefix("http://")
            with third.frozen():
                await asyncio.sleep(CHECKED_WITHIN_S)
                before = sum(counts(url)["statuses"].get("200", 0) for url in (one, two))
                began = time.monotonic()
                await asyncio.sleep(hung_s - CHECKED_WITHIN_S)
                after = sum(counts(url)["statuses"].get("200", 0) for url in (one, two))
                due = RATE * (time.monotonic() - began)
                up = (await Remote(gateway.port).metrics())[f'upstream_up{{upstream="{name}"}}']
            result = await running.result()
            found = judged(result, asked([one, two, url_of(third)]))
        found.injected = 1
        found.needs(not up, "the stopped one counts as up, so nothing told that it hangs")
        share = (after - before) / due
        found.figures["answered while one hung"] = round(share, 3)
        found.needs(
            share >= 0.9,
            f"{share:.0%} of the samples were answered later than {CHECKED_WITHIN_S:g} s after"
            " one of three upstreams hung; the bar is 90%",
        )
        return found


async def one_slow(size: Size) -> Found:
    """One of three takes 40 times as long: it gets no more than it can take."""
    with (
        stand_in("--delay-s", "0.05") as one,
        stand_in("--delay-s", "0.05") as two,
        stand_in("--delay-s", "2", "--max-num-seqs", "5") as third,
        serve(one, "--upstream", two, "--upstream", third, **CHECKS) as gateway,
    ):
        samples = int(RATE * (4 if size.small else 10))
        result = await loaded(gateway.url, one, samples, *rate(RATE), "--style", "future")
        found = judged(result, asked([one, two, third]))
        slow = counts(third)
        found.injected = slow["statuses"].get("200", 0)
        most = slow["running_max"]
        found.figures["most at the slow one"] = most
        found.needs(
            most <= samples / 6, f"{most} of {samples} samples stood at the slow one at once"
        )
        return found


async def all_down(size: Size) -> Found:
    """The only upstream is killed under load, and comes back after a while."""
    port = free_port()
    slow = ("--delay-s", "0.3")
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(upstream(*slow, port=port))
        url = url_of(first)
        gateway = stack.enter_context(serve(url, **CHECKS))
        remote = Remote(gateway.port)
        await remote.handshake()
        flags = ("--style", "future", "--concurrency", "20")
        async with load(gateway.url, url, size.samples * 2, *flags) as running:
            await until(lambda: counts(url)["running"] > 10, "load")
            before = cut_off([url])
            first.kill()
            found = Found(injected=sum(map(len, before.faulted.values())))
            try:
                told = await until(
                    lambda: status(gateway.port, "/readyz") == 503, "503", NOT_READY_S
                )
                found.figures["s until not ready"] = round(told, 2)
            except AssertionError:
                found.problems.append(f"/readyz is not 503 within {NOT_READY_S:g} s")
            alive = status(gateway.port, "/livez")
            found.needs(alive == 200, f"/livez says {alive}")
            second = stack.enter_context(upstream(*slow, port=port))
            found.recovery_s = await passes(remote)
            await until(lambda: status(gateway.port, "/readyz") == 200, "ready again", 15)
            judgement = judged(await running.result(), together(before, asked([url_of(second)])))
        judgement.injected, judgement.recovery_s = found.injected, found.recovery_s
        judgement.problems += found.problems
        judgement.figures = found.figures
        return judgement


def point(hosts: Path, address: str) -> None:
    """Have HOST lead there; the same file, as it is mounted."""
    hosts.write_text(f"{address} {HOST}\n127.0.0.1 localhost\n")


async def moved(size: Size) -> Found:
    """The name of the upstream leads to another address; what was there is gone."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder, contextlib.ExitStack() as stack:
        hosts = Path(folder, "hosts")
        point(hosts, "127.0.0.2")
        old = stack.enter_context(upstream(port=port, host="127.0.0.2"))
        serving = f"{sys.executable} -m asgi_gateway serve --port 0 --upstream http://{HOST}:{port}"
        # A mount namespace of its own, in which /etc/hosts is ours; needs root.
        script = f"mount --bind {hosts} /etc/hosts && exec {serving}"
        gateway = stack.enter_context(
            process(["unshare", "--mount", "sh", "-c", script], environment())
        )
        url = url_of(gateway)
        remote = Remote(int(url.rsplit(":", 1)[1]))
        await remote.handshake()
        samples = int(RATE * 4)
        new = stack.enter_context(upstream(port=port, host="127.0.0.3"))
        flags = ("--style", "future", *rate(RATE))
        async with load(url, url_of(new), samples, *flags) as running:
            await until(lambda: bool(counts(url_of(old))["statuses"]), "load")
            point(hosts, "127.0.0.3")
            before = cut_off([url_of(old)])
            old.terminate()
            await asyncio.to_thread(old.wait)
            recovery_s = await passes(remote)
            found = judged(await running.result(), together(before, asked([url_of(new)])))
        found.injected, found.recovery_s = 1, recovery_s
        found.needs(bool(counts(url_of(new))["statuses"]), "the new address was never asked")
        return found
