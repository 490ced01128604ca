"""Bytes of the gateway that one queued sample and one parked poll take, by its resident memory."""

import contextlib
import time
from collections.abc import Iterator
from typing import Final

from tests.bench.driver import Spec
from tests.bench.processes import Bench, BenchError, Driver
from tests.bench.requests import FETCH, PROMPT_TOKENS, PROTOBUF, Caller, Samples, post
from tests.bench.table import Figure, Row
from tests.support.flood.servers import Server

SAMPLES: Final = 131_072
QUICK_SAMPLES: Final = 32_768
POLLS: Final = 16_000
QUICK_POLLS: Final = 4_000
SUBMITTERS: Final = 64
# Fills the upstream's connections and warms up what grows once.
FIRST_SAMPLES: Final = 8_192
FIRST_CONNECTIONS: Final = 512
# Longer than it takes to open the connections, so that all polls are parked at one time.
HOLD_S: Final = 40.0
WITHIN_S: Final = 120.0
SETTLE_S: Final = 0.5

QUEUED: Final = Figure("queued-sample", "queued sample beside its prompt", "bytes", 1024, "value")
PARKED: Final = Figure("parked-poll", "parked poll, its connection too", "bytes", 16_384, "value")
FIGURES: Final = (QUEUED, PARKED)


def measure(bench: Bench, wanted: frozenset[str]) -> Iterator[Row]:
    if QUEUED.name in wanted:
        yield _queued(bench)
    if PARKED.name in wanted:
        yield _parked(bench)


def prompt_bytes(first: int, count: int) -> float:
    """Mean length of the ids in the prompts of these samples, commas included, without brackets."""
    samples = Samples(PROMPT_TOKENS, 16)
    numbers = range(first, first + count, max(1, count // 256))
    bodies = [samples.request(number, "", 0) for number in numbers]
    return sum(b.index(b"]") - b.index(b'"tokens":[') - 10 for b in bodies) / len(bodies)


def _queued(bench: Bench) -> Row:
    count = QUICK_SAMPLES if bench.quick else SAMPLES
    with _held(bench) as (gateway, caller, driver):
        driver.run(FIRST_SAMPLES, start_for_s=WITHIN_S)
        before = _settled(gateway)
        driver.run(count, start_for_s=WITHIN_S)
        grown = _settled(gateway) - before
        in_flight = caller.gauges()["samples_inflight"]
    if in_flight != count + FIRST_SAMPLES:
        raise BenchError(f"{in_flight:g} samples in flight, must be {count + FIRST_SAMPLES}")
    prompt = prompt_bytes(FIRST_SAMPLES, count)
    note = f"{count:,} samples of {PROMPT_TOKENS} prompt tokens, {prompt:.0f} bytes each"
    return QUEUED.single(grown / count - prompt, note)


def _parked(bench: Bench) -> Row:
    count = QUICK_POLLS if bench.quick else POLLS
    with _held(bench) as (gateway, caller, driver):
        driver.run(count, start_for_s=WITHIN_S)
        before = _settled(gateway)
        driver.park()
        deadline = time.monotonic() + WITHIN_S
        while (parked := caller.gauges()["polls_inflight"]) < count:
            if time.monotonic() > deadline:
                raise BenchError(f"only {parked:g} of {count} polls parked after {WITHIN_S:g} s")
            time.sleep(0.1)
        grown = gateway.rss_bytes() - before
    note = f"{count:,} at once; the floor is an idle connection of the bare server"
    return PARKED.single(grown / count, note, floor=_idle_connection(bench, count))


def _idle_connection(bench: Bench, count: int) -> float:
    """Bytes of a connection that had one answer and waits for its next request."""
    ask: list[tuple[bytes, int | None]] = [(post(FETCH, b"{}", PROTOBUF), 0)]
    with bench.stand_in() as upstream, bench.bare(upstream, {}) as bare:
        first = Spec(kind="fixed", port=bare.port, in_flight=FIRST_CONNECTIONS, requests=ask)
        with bench.driver(first) as driver:
            driver.run(FIRST_CONNECTIONS)
            before = _settled(bare)
            spec = Spec(kind="fixed", port=bare.port, in_flight=count, requests=ask)
            with bench.driver(spec) as more:
                more.run(count, start_for_s=WITHIN_S)
                return (_settled(bare) - before) / count


@contextlib.contextmanager
def _held(bench: Bench) -> Iterator[tuple[Server, Caller, Driver]]:
    """A gateway whose upstream answers nothing, and a driver that submits to it."""
    with (
        bench.stand_in("--barrier") as upstream,
        bench.gateway(upstream, {"poll.hold_s": str(HOLD_S)}) as gateway,
        contextlib.closing(Caller(gateway.port)) as caller,
    ):
        spec = Spec(
            kind="held",
            port=gateway.port,
            in_flight=SUBMITTERS,
            sessions=caller.sampling_sessions(1),
        )
        with bench.driver(spec) as driver:
            yield gateway, caller, driver


def _settled(server: Server) -> int:
    """Resident bytes, after what the last requests left to the loop is done."""
    time.sleep(SETTLE_S)
    return server.rss_bytes()
